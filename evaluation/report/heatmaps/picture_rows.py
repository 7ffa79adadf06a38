"""The relevance of one image under every method, as a figure: a row of images with relevance over them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from xml.sax.saxutils import escape

from evaluation.report.heatmaps.token_rows import NAME, NARROW, WIDE
from evaluation.report.page import Figure

SIDE, GAP, LABEL = 168, 14, 20  # pixels: the width of an image, the space between two, the line with a method's name
_STYLE = "text{font:600 12px 'DejaVu Sans',Helvetica,Arial,sans-serif;fill:#1d2327}image{image-rendering:pixelated}"
#: The image below is grey and faint, so that the colours above it are those of the map.
_FAINT = (
    '<filter id="faint"><feColorMatrix type="saturate" values="0"/><feComponentTransfer>'
    + "".join(f'<feFunc{channel} type="linear" slope=".24" intercept=".75"/>' for channel in "RGB")
    + "</feComponentTransfer></filter>"
)


def picture_rows(entry: Mapping[str, Any], title: str, caption: str) -> Figure:
    """The image of `entry`, data of :func:`overlay.with_picture`, and an image with relevance for each of its rows."""
    legend = (
        " Orange is relevance towards the explained logit, blue is relevance against it, scaled by the largest of each "
        "image. Patches of evidence are outlined."
    )
    return Figure(NAME, title, caption + legend, _svg(entry, WIDE), WIDE, _svg(entry, NARROW), NARROW)


def _svg(entry: Mapping[str, Any], width: int) -> str:
    """The figure as SVG, `width` pixels wide."""
    rows, columns = entry["image"]["grid"]
    tall = round(SIDE * rows / columns)
    across = max(1, (width + GAP) // (SIDE + GAP))
    parts = []
    pictures = [("the image", None), *((row["label"], row["overlay"]) for row in entry["rows"])]
    for at, (name, over) in enumerate(pictures):
        x, y = (at % across) * (SIDE + GAP), (at // across) * (tall + LABEL + GAP)
        box = f'x="{x}" y="{y + LABEL}" width="{SIDE}" height="{tall}" preserveAspectRatio="none"'
        faint = "" if over is None else ' filter="url(#faint)"'
        parts.append(f'<text x="{x}" y="{y + 13}">{escape(name)}</text>')
        parts.append(f'<image {box} href="{entry["image"]["source"]}"{faint}/>')
        if over is not None:
            parts.append(f'<image {box} href="{over}" style="mix-blend-mode:multiply"/>')
            parts += _outlines(entry["evidence"], x, y + LABEL, SIDE / columns, tall / rows, columns)
    height = -(-len(pictures) // across) * (tall + LABEL + GAP)
    size = f'width="{width}" height="{height}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}><style>{_STYLE}</style>{_FAINT}{"".join(parts)}</svg>'


def _outlines(evidence: list[int], left: float, top: float, wide: float, tall: float, columns: int) -> list[str]:
    """A dashed box around each patch of evidence; patches are `wide` and `tall` pixels, from (`left`, `top`) on."""
    look = 'fill="none" stroke="#1d2327" stroke-dasharray="3 2" stroke-width=".8"'
    boxes = []
    for patch, marked in enumerate(evidence[1:]):
        if marked:
            x, y = left + wide * (patch % columns), top + tall * (patch // columns)
            boxes.append(f'<rect x="{x:.1f}" y="{y:.1f}" width="{wide:.1f}" height="{tall:.1f}" {look}/>')
    return boxes
