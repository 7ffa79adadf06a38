"""Heat maps drawn by matplotlib, for papers and slides: rows of coloured tokens, and pictures."""

from __future__ import annotations

import io
from base64 import b64decode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_pdf import PdfPages
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from PIL import Image

from closelook.evaluation.report.heatmaps.layout import letters_of, line_starts, visible
from closelook.evaluation.report.heatmaps.tokens import Entry, EntryLine, ground

_SIZE, _LETTER, _LINE = 9, 0.602 * 9 / 72, 0.24  # points; inches of a letter of the font, and of a line
_TOKENS, _TITLES = "DejaVu Sans Mono", "DejaVu Sans"  # the fonts of tokens, and of all else
_WIDTH, _LABEL = 7.0, 1.5  # inches, of all and of a method's name
_STYLE: Any = {"svg.fonttype": "none", "svg.hashsalt": "closelook", "pdf.fonttype": 42}
_WITHOUT_DATES = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": {}}


class Plot(Figure):
    """A figure that notebooks show, whether or not pyplot was imported."""

    def _repr_png_(self) -> bytes:
        """The figure as PNG; notebooks call it."""
        out = io.BytesIO()
        _write(self, out, "png")
        return out.getvalue()


def plotted(entries: Sequence[Entry], title: str) -> Plot:
    """The heat maps of `entries` as a figure: rows of tokens, or of images the pictures.

    Characters that matplotlib's own fonts lack are drawn with the fonts of `matplotlib.rcParams["font.family"]`.
    """
    further = matplotlib.rcParams["font.family"]
    with matplotlib.rc_context({"font.family": [_TITLES, *further]}):
        if "image" in entries[0]:
            return _pictures(entries[0], title)
        font = {"family": [_TOKENS, *further], "size": _SIZE}
        return _rows(entries, title, font)


def saved(figure: Plot, path: Path) -> None:
    """Writes the figure in the format of the path's suffix: .pdf, .svg or .png."""
    _write(figure, path, path.suffix.removeprefix(".").lower())


def saved_as_sheets(figures: Iterable[Plot], path: Path) -> None:
    """Write the figures as the pages of a PDF. Raises OSError."""
    with matplotlib.rc_context(_STYLE), PdfPages(path, metadata=_WITHOUT_DATES["pdf"]) as sheets:
        for figure in figures:
            sheets.savefig(figure, bbox_inches="tight")


def _write(figure: Plot, target: Any, form: str) -> None:
    """Writes the figure to `target`, a path or a stream; `form` is pdf, svg or png."""
    with matplotlib.rc_context(_STYLE):
        figure.savefig(target, format=form, dpi=200, bbox_inches="tight", metadata=_WITHOUT_DATES[form])


def _figure(width: float, height: float) -> tuple[Plot, Axes]:
    """A figure of `width` and `height` inches, and axes over all of it, in inches from the upper left."""
    figure = Plot(figsize=(width, height))
    FigureCanvasAgg(figure)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, width), ylim=(height, 0))
    axes.set_axis_off()
    return figure, axes


class _Token(NamedTuple):
    """A token of a strip."""

    text: str
    behind: str | None  # the colour behind it
    dim: bool = False
    underlined: bool = False


class _Strip(NamedTuple):
    """The tokens of a method, possibly over several lines; without tokens, a heading of the strips below it."""

    label: str
    tokens: list[_Token]
    starts: list[tuple[int, int]]  # (line, letter) at which each token begins
    lines: int  # number of lines

    @property
    def end(self) -> int:
        """The number of letters of the longest line."""
        pairs = zip(self.tokens, self.starts, strict=True)
        return max((start + letters_of(visible(token.text)) for token, (_, start) in pairs), default=0)


def _rows(entries: Sequence[Entry], title: str, font: Mapping[str, Any]) -> Plot:
    """The figure with a strip for each row (method) of each entry; several entries have their targets as headings."""
    across, strips = int((_WIDTH - _LABEL) / _LETTER), []
    for entry in entries:
        if len(entries) > 1:
            strips.append(_Strip(entry["target"], [], [], 1))
        for row in entry["rows"]:
            tokens = list(_cells(entry, row))
            strips.append(_Strip(row["label"], tokens, *line_starts([token.text for token in tokens], across)))
    height = _LINE * (1.5 + sum(strip.lines + 0.5 for strip in strips))
    width = max(_LABEL + max(strip.end for strip in strips) * _LETTER, len(title) * 0.09)
    figure, axes = _figure(width, height)
    axes.text(0, _LINE * 0.8, title, fontsize=_SIZE + 1)
    top = _LINE * 1.5
    for strip in strips:
        look: dict[str, Any] = {"fontweight": "bold"} if strip.tokens else {"fontstyle": "italic"}
        axes.text(0, top + _LINE * 0.7, strip.label, fontsize=_SIZE, parse_math=False, **look)
        _draw_strip(axes, strip, top, font)
        top += _LINE * (strip.lines + 0.5)
    return figure


def _draw_strip(axes: Axes, strip: _Strip, top: float, font: Mapping[str, Any]) -> None:
    """Draws the tokens of a strip, whose upper edge is at `top` inches, on coloured boxes."""
    for token, (line, letter) in zip(strip.tokens, strip.starts, strict=True):
        x, y, word = _LABEL + letter * _LETTER, top + line * _LINE, visible(token.text)
        width, ink = letters_of(word) * _LETTER, "#8a8577" if token.dim else "#1d2327"
        if token.behind:
            axes.add_patch(Rectangle((x, y + 0.02), width, _LINE * 0.84, color=token.behind, lw=0))
        if token.underlined:
            axes.plot([x, x + width], [y + _LINE * 0.86] * 2, color=ink, lw=1.2)
        axes.text(x, y + _LINE * 0.7, word, color=ink, parse_math=False, **font)


def _cells(entry: Entry, row: EntryLine) -> Iterator[_Token]:
    """The tokens of a line, underlined if they are evidence; a bar precedes those of the decoder."""
    marks = zip(entry["tokens"], row["values"], entry["special"], entry["evidence"], strict=True)
    for token, value, special, evidence in marks:
        yield _Token(token, ground(value, row, bool(special)), bool(special), bool(evidence))
    if "decoder" in row:
        yield _Token(" |", None, dim=True)
        for token, value in zip(entry["decoder"], row["decoder"], strict=True):
            yield _Token(token, ground(value, row))


def _pictures(entry: Entry, title: str) -> Plot:
    """The picture that the model saw, followed by its relevance under each method."""
    pictures = [("", entry["image"]["source"]), *((row["label"], row["overlay"]) for row in entry["rows"])]
    figure = Plot(figsize=(2.2 * len(pictures), 2.7))
    FigureCanvasAgg(figure)
    figure.suptitle(title, fontsize=_SIZE + 1, x=0.02, ha="left")
    for axes, (label, uri) in zip(figure.subplots(1, len(pictures), squeeze=False)[0], pictures, strict=True):
        data = b64decode(uri.partition(",")[2])
        shown = np.asarray(Image.open(io.BytesIO(data)).convert("RGBA"))
        axes.imshow(shown, interpolation="nearest")
        axes.set_title(label, fontsize=_SIZE)
        axes.set_axis_off()
        _outline_evidence(axes, entry, *shown.shape[:2])
    return figure


def _outline_evidence(axes: Axes, entry: Entry, height: int, width: int) -> None:
    """Draw a dashed box around each patch of evidence, in a picture of `height` and `width` pixels."""
    rows, columns = entry["image"]["grid"]
    tall, wide = height / rows, width / columns
    for patch in np.flatnonzero(entry["evidence"][1:]):  # the first token is the class token
        corner = (wide * (patch % columns) - 0.5, tall * (patch // columns) - 0.5)
        axes.add_patch(Rectangle(corner, wide, tall, fill=False, ls="--", lw=0.8, ec="#1d2327"))
