"""Relevance over images, in the colours of relevance over tokens, and the entries of pages that show images."""

from __future__ import annotations

import io
from base64 import b64encode
from collections.abc import Sequence
from typing import Any

import numpy as np
from PIL import Image

from closelook.evaluation.benchmark.pictures import Preprocessing, encoded
from closelook.evaluation.report.heatmaps.tokens import Entry, EntryLine, rgb

LEVELS = 41  # colours of an overlay; the middle one is zero


def overlay(relevance: np.ndarray) -> bytes:
    """A PNG of relevance [h, w] in LEVELS colours, scaled by the largest magnitude.

    Values that are not finite are drawn as zero.
    """
    finite = np.nan_to_num(np.asarray(relevance, np.float64), posinf=0, neginf=0)
    largest = np.abs(finite).max() or 1.0
    levels = np.round((finite / largest + 1) / 2 * (LEVELS - 1)).astype(np.uint8)
    image = Image.fromarray(levels)
    colours = [rgb(share) for share in np.linspace(-1, 1, LEVELS)]
    image.putpalette(bytes(channel for colour in colours for channel in colour))
    out = io.BytesIO()
    image.save(out, "PNG", optimize=True)
    return out.getvalue()


def data_uri(png: bytes) -> str:
    """A PNG as a data URI."""
    return f"data:image/png;base64,{b64encode(png).decode()}"


def patch_names(preprocessing: Preprocessing) -> list[str]:
    """Names of an image's tokens: the class token, then the patches by row and column, counted from 1."""
    rows, columns = preprocessing.grid
    return ["class token", *(f"patch {row + 1}, {column + 1}" for row in range(rows) for column in range(columns))]


def with_picture(
    entry: Entry,
    pixels: np.ndarray,
    preprocessing: Preprocessing,
    maps: Sequence[Sequence[float] | None],
    name: str,
) -> dict[str, Any]:
    """An entry of :func:`heatmaps.tokens.data` with the image that the model saw, and a PNG of relevance for each row.

    `pixels` [H, W, C] uint8 are the image, which is called `name`. `maps` has for each row the relevance of pixels
    [H * W], or None for a method that gives relevance of patches only: it is drawn patch by patch.
    """
    shape, grid = (preprocessing.height, preprocessing.width), preprocessing.grid
    rows = []
    for row, of_pixels in zip(entry["rows"], maps, strict=True):
        if of_pixels is None:
            values = np.array(row["values"][1:]).reshape(grid)  # the first token is the class token
        else:
            values = np.array(of_pixels).reshape(shape)
        rows.append({**row, "overlay": data_uri(overlay(values)), "alt": _alt(row, entry["evidence"], grid)})
    seen = pixels[..., 0] if pixels.shape[2] == 1 else pixels
    picture = {"source": data_uri(encoded(seen)), "alt": name, "grid": list(grid)}
    return {**entry, "rows": rows, "image": picture}


def _alt(row: EntryLine, evidence: Sequence[int], grid: tuple[int, int]) -> str:
    """The alternative text of an overlay: its method, and the patch with the largest relevance."""
    of_label = f" of {row['of']}" if "of" in row else ""
    if not row.get("finite", True):
        return f"relevance{of_label} by {row['label']}"
    values = row["values"][1:]
    top = max(range(len(values)), key=lambda at: values[at])
    marked = (", on evidence" if evidence[1 + top] else ", not on evidence") if any(evidence) else ""
    patch = f"row {top // grid[1] + 1}, column {top % grid[1] + 1}"
    return f"relevance{of_label} by {row['label']}: most in the patch of {patch}{marked}"
