"""One image and what every method says of its parts: a row of pictures, each with its relevance over it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from xml.sax.saxutils import escape

from evaluation.report.page import Figure
from evaluation.report.token_rows import NAME, NARROW, WIDE

SIDE, GAP, LABEL = 168, 14, 20  # pixels: a picture's width, between two, and the line of a method's name above
_STYLE = "text{font:600 12px 'DejaVu Sans',Helvetica,Arial,sans-serif;fill:#1d2327}image{image-rendering:pixelated}"
#: The image below is grey and faint, so that the colours above it are those of the map.
_FAINT = (
    '<filter id="faint"><feColorMatrix type="saturate" values="0"/><feComponentTransfer>'
    + "".join(f'<feFunc{channel} type="linear" slope=".24" intercept=".75"/>' for channel in "RGB")
    + "</feComponentTransfer></filter>"
)


def picture_rows(entry: Mapping[str, Any], title: str, caption: str) -> Figure:
    """A picture for each line of `entry`, one of :func:`overlay.with_picture`; beside them the image itself."""
    how = (
        " Orange is relevance towards the explained logit, blue against it, each picture on the scale of its largest; "
        "patches of evidence are outlined."
    )
    return Figure(NAME, title, caption + how, _svg(entry, WIDE), WIDE, _svg(entry, NARROW), NARROW)


def _svg(entry: Mapping[str, Any], width: int) -> str:
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
    """A dashed box around each patch of evidence."""
    at = [patch for patch, marked in enumerate(evidence[1:]) if marked]
    return [
        f'<rect x="{left + wide * (patch % columns):.1f}" y="{top + tall * (patch // columns):.1f}" width="{wide:.1f}" '
        f'height="{tall:.1f}" fill="none" stroke="#1d2327" stroke-dasharray="3 2" stroke-width=".8"/>'
        for patch in at
    ]
