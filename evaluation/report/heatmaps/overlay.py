"""Relevance over images: a diverging colour map, and the entries of pages that show images.

The colour map goes from near white at zero to blue (against) and orange (towards), along straight lines in OKLab
(Ottosson 2020), a perceptually uniform colour space: equal steps of relevance look like equal steps of colour, and both
ends are equally dark. Readers with any colour vision can tell blue and orange apart.
"""

from __future__ import annotations

import io
import math
from base64 import b64encode
from collections.abc import Sequence
from typing import Any

import numpy as np
from PIL import Image

from closelook.evaluation.benchmark.pictures import Preprocessing, encoded
from closelook.evaluation.report.heatmaps.tokens import Entry, EntryLine

LEVELS = 41  # colours of the map; the middle one is zero
#: The colour at zero in OKLab: lightness, and two axes of colour.
_ZERO = np.array([0.98, 0.0, 0.0])
_LIGHTNESS, _CHROMA = 0.56, 0.145
_TOWARDS, _AGAINST = 52, 255  # hues in degrees
_LMS = np.array(
    [
        [1.0, 0.3963377774, 0.2158037573],
        [1.0, -0.1055613458, -0.0638541728],
        [1.0, -0.0894841775, -1.2914855480],
    ]
)
_RGB = np.array(
    [
        [4.0767416621, -3.3077115913, 0.2309699292],
        [-1.2684380046, 2.6097574011, -0.3413193965],
        [-0.0041960863, -0.7034186147, 1.7076147010],
    ]
)


def colour_map() -> np.ndarray:
    """The colours [LEVELS, 3] uint8 sRGB, from relevance against the explained number to relevance towards it."""
    shares = np.linspace(-1, 1, LEVELS)
    ends = np.where(shares[:, None] < 0, _polar(_AGAINST), _polar(_TOWARDS))  # [LEVELS, 3]
    lab = _ZERO + (ends - _ZERO) * np.abs(shares)[:, None]
    linear = np.clip((lab @ _LMS.T) ** 3 @ _RGB.T, 0, 1)
    encoded_rgb = np.where(linear <= 0.0031308, 12.92 * linear, 1.055 * linear ** (1 / 2.4) - 0.055)
    return np.round(255 * encoded_rgb).astype(np.uint8)


def _polar(hue: float) -> np.ndarray:
    """The OKLab colour [3] of a hue in degrees, at an end of the map."""
    angle = math.radians(hue)
    return np.array([_LIGHTNESS, _CHROMA * math.cos(angle), _CHROMA * math.sin(angle)])


def overlay(relevance: np.ndarray) -> bytes:
    """A PNG of relevance [h, w] in the colours of the map, scaled by the largest magnitude.

    Values that are not finite are drawn as zero.
    """
    finite = np.nan_to_num(np.asarray(relevance, np.float64), posinf=0, neginf=0)
    largest = np.abs(finite).max() or 1.0
    levels = np.round((finite / largest + 1) / 2 * (LEVELS - 1)).astype(np.uint8)
    image = Image.fromarray(levels)
    image.putpalette(colour_map().tobytes())
    out = io.BytesIO()
    image.save(out, "PNG", optimize=True)
    return out.getvalue()


def css_ramp() -> str:
    """Eleven colours of the map as the stops of a CSS gradient."""
    return ", ".join(f"#{red:02x}{green:02x}{blue:02x}" for red, green, blue in colour_map()[:: (LEVELS - 1) // 10])


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
