"""The relevance of one sample under every method, as AttnLRP's figure 7: rows of coloured tokens, or images.

The figure of tokens is SVG of rectangles and text in a monospaced font, so that no text has to be measured.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence
from xml.sax.saxutils import escape

from closelook.evaluation.report.heatmaps.tokens import Entry, EntryLine, ground
from closelook.evaluation.report.page import Figure
from closelook.evaluation.report.table import Cell, Column, Row, Table

NAME = "one_sample"
LETTER, LINE, GAP = 7.2, 21, 9  # pixels: the width of a letter, the height of a line, the space between methods
LABEL = 168  # pixels beside the tokens for a method's name
WIDE = 1080  # pixels: the width of the figure
_STYLE = (
    "text{font:12px 'DejaVu Sans Mono',Menlo,Consolas,monospace;fill:#1d2327;white-space:pre}"
    ".m{font:600 12px 'DejaVu Sans',Helvetica,Arial,sans-serif}.s{opacity:.42}"
)

Starts = list[tuple[int, int]]  # the line and the letter at which each token begins


def token_rows(entry: Entry, title: str, caption: str) -> Figure:
    """The figure of an entry: a row of tokens for each method."""
    legend = (
        " Orange is relevance towards the explained logit, blue is relevance against it, as a share of the method's "
        "largest relevance; if all tokens have one sign, the smallest relevance is white. Evidence is underlined; "
        "special tokens are dim."
    )
    return Figure(NAME, title, caption + legend, _svg(entry), WIDE)


def token_table(entry: Entry, title: str, caption: str) -> Table:
    """The numbers of the figure as a table: a row for each method, a column for each token."""
    columns = [Column("", visible(token), str(at), significant=3) for at, token in enumerate(entry["tokens"])]
    rows = []
    for row in entry["rows"]:
        rows.append(Row(entry["task"], (entry["model"], row["label"]), tuple(map(Cell, row["values"]))))
    return Table(NAME, title, caption, ("model", "method"), tuple(columns), tuple(rows))


def _svg(entry: Entry) -> str:
    """The figure as SVG."""
    starts, lines = line_starts(entry["tokens"], int((WIDE - LABEL) / LETTER))
    height = LINE * lines + GAP
    parts = []
    for at, row in enumerate(entry["rows"]):
        top = at * height
        parts.append(f'<text class="m" x="0" y="{top + 14}">{escape(row["label"])}</text>')
        parts += _tokens(entry, row, starts, top)
    size = f'width="{WIDE}" height="{height * len(entry["rows"])}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}><style>{_STYLE}</style>{"".join(parts)}</svg>'


def _tokens(entry: Entry, row: EntryLine, starts: Starts, top: int) -> Iterator[str]:
    """The SVG elements of a row of tokens: colours, the mark of the position, underlines of evidence, and text.

    `starts` are the (line, letter) of each token; the row begins at the pixel (LABEL, `top`).
    """
    marks = zip(entry["tokens"], row["values"], entry["special"], entry["evidence"], strict=True)
    for at, ((token, value, special, evidence), (line, letter)) in enumerate(zip(marks, starts, strict=True)):
        word = visible(token)
        x, y = round(LABEL + LETTER * letter, 1), top + LINE * line
        width = round(LETTER * letters_of(word), 1)
        box = f'<rect x="{x}" y="{y + 1}" width="{width}" height="17" rx="2" '
        if behind := ground(value, row, bool(special)):
            yield f'{box}fill="{behind}"/>'
        if at == entry["position"]:
            yield f'{box}fill="none" stroke="#8a8577"/>'
        if evidence:
            yield f'<path d="M{x} {y + 17.5}h{width}" stroke="#1d2327" stroke-width="1.5"/>'
        dim = ' class="s"' if special else ""
        fit = f'textLength="{width}" lengthAdjust="spacingAndGlyphs"'
        yield f'<text{dim} x="{x}" y="{y + 14}" {fit}>{escape(word)}</text>'


def line_starts(tokens: Sequence[str], across: int) -> tuple[Starts, int]:
    """((line, letter) at which each token begins, number of lines) for lines of `across` letters.

    No line begins with a space. Neighbouring tokens of right-to-left scripts stand from right to left.
    """
    starts, line, end = list[tuple[int, int]](), 0, 0
    for token in tokens:
        space, letters = token.startswith(" "), letters_of(visible(token))
        if end and end + space + letters > across:
            line, end = line + 1, 0
        start = end + space if end else 0
        starts.append((line, start))
        end = start + letters
    for run in _right_to_left(tokens, starts):
        widths = {at: letters_of(visible(tokens[at])) for at in run}
        begin, behind = starts[run[0]][1], starts[run[-1]][1] + widths[run[-1]]
        for at in run:
            line_of_token, start = starts[at]
            starts[at] = line_of_token, begin + behind - (start + widths[at])
    return starts, line + 1


def _right_to_left(tokens: Sequence[str], starts: Sequence[tuple[int, int]]) -> list[list[int]]:
    """The runs of neighbouring tokens of a line that are read from right to left.

    A run begins and ends at a token of a right-to-left script, such as Arabic or Hebrew. Inside, there may be tokens
    without a direction of their own, such as numbers and punctuation.
    """
    runs: list[list[int]] = []
    undirected: list[int] = []
    for at, token in enumerate(tokens):
        direction = _direction(token)
        goes_on = bool(runs) and runs[-1][-1] + len(undirected) + 1 == at and starts[runs[-1][0]][0] == starts[at][0]
        if direction is None:
            undirected.append(at)
        elif direction == "R" and goes_on:
            runs[-1] += [*undirected, at]
        elif direction == "R":
            runs.append([at])
        if direction is not None:
            undirected = []
    return runs


def _direction(token: str) -> str | None:
    """The direction of a token's first letter that has one: R (right to left) or L; None without such a letter."""
    for letter in token:
        kind = unicodedata.bidirectional(letter)
        if kind in ("R", "AL", "L"):
            return "L" if kind == "L" else "R"
    return None


def visible(token: str) -> str:
    """The token without a leading space; white space and other invisible characters are shown as signs."""
    word = token.removeprefix(" ").replace("\n", "⏎")
    return "".join(letter if letter.isprintable() else "�" for letter in word).strip() or "␣"


def letters_of(word: str) -> int:
    """The width in letters."""
    return sum(1 + (unicodedata.east_asian_width(letter) in "WF") for letter in word)


# In pixels: the width of an image, the space between two, the line with a method's name.
SIDE, _BETWEEN, _NAMES = 168, 14, 20
_PICTURES_STYLE = (
    "text{font:600 12px 'DejaVu Sans',Helvetica,Arial,sans-serif;fill:#1d2327}image{image-rendering:pixelated}"
)
#: The image below is grey and faint, so that the colours above it are those of the map.
_FAINT = (
    '<filter id="faint"><feColorMatrix type="saturate" values="0"/><feComponentTransfer>'
    + "".join(f'<feFunc{channel} type="linear" slope=".24" intercept=".75"/>' for channel in "RGB")
    + "</feComponentTransfer></filter>"
)


def picture_rows(entry: Entry, title: str, caption: str) -> Figure:
    """The image of `entry`, data of :func:`overlay.with_picture`, and an image with relevance for each of its rows."""
    legend = (
        " Orange is relevance towards the explained logit, blue is relevance against it, scaled by the largest of each "
        "image. Patches of evidence are outlined."
    )
    return Figure(NAME, title, caption + legend, _pictures_svg(entry), WIDE)


def _pictures_svg(entry: Entry) -> str:
    """The figure as SVG."""
    rows, columns = entry["image"]["grid"]
    tall = round(SIDE * rows / columns)
    across = max(1, (WIDE + _BETWEEN) // (SIDE + _BETWEEN))
    parts = []
    pictures = [("the image", None), *((row["label"], row["overlay"]) for row in entry["rows"])]
    for at, (name, over) in enumerate(pictures):
        x, y = (at % across) * (SIDE + _BETWEEN), (at // across) * (tall + _NAMES + _BETWEEN)
        box = f'x="{x}" y="{y + _NAMES}" width="{SIDE}" height="{tall}" preserveAspectRatio="none"'
        faint = "" if over is None else ' filter="url(#faint)"'
        parts.append(f'<text x="{x}" y="{y + 13}">{escape(name)}</text>')
        parts.append(f'<image {box} href="{entry["image"]["source"]}"{faint}/>')
        if over is not None:
            parts.append(f'<image {box} href="{over}" style="mix-blend-mode:multiply"/>')
            parts += _outlines(entry["evidence"], x, y + _NAMES, SIDE / columns, tall / rows, columns)
    height = -(-len(pictures) // across) * (tall + _NAMES + _BETWEEN)
    size = f'width="{WIDE}" height="{height}"'
    style = f"<style>{_PICTURES_STYLE}</style>{_FAINT}"
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}>{style}{"".join(parts)}</svg>'


def _outlines(evidence: list[int], left: float, top: float, wide: float, tall: float, columns: int) -> list[str]:
    """A dashed box around each patch of evidence; patches are `wide` and `tall` pixels, from (`left`, `top`) on."""
    look = 'fill="none" stroke="#1d2327" stroke-dasharray="3 2" stroke-width=".8"'
    boxes = []
    for patch, marked in enumerate(evidence[1:]):
        if marked:
            x, y = left + wide * (patch % columns), top + tall * (patch // columns)
            boxes.append(f'<rect x="{x:.1f}" y="{y:.1f}" width="{wide:.1f}" height="{tall:.1f}" {look}/>')
    return boxes
