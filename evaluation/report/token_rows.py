"""One sample and what every method says of its tokens, as AttnLRP's figure 7: rows of coloured tokens, and the numbers.

The picture is SVG of rectangles and text in a font whose letters are equally wide, so that nothing has to be measured.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from xml.sax.saxutils import escape

from evaluation.report.heatmap import FAINT, colour
from evaluation.report.page import Figure
from evaluation.report.table import Cell, Column, Row, Table

NAME = "one_sample"
LETTER, LINE, GAP = 7.2, 21, 9  # pixels: the width of a letter, the height of a line, between methods
LABEL = 168  # pixels beside the tokens for a method's name; none where it stands above them
WIDE, NARROW = 1080, 318  # pixels of both pictures
_STYLE = (
    "text{font:12px 'DejaVu Sans Mono',Menlo,Consolas,monospace;fill:#1d2327;white-space:pre}"
    ".m{font:600 12px 'DejaVu Sans',Helvetica,Arial,sans-serif}.s{opacity:.42}"
)

Entry = Mapping[str, Any]  # of heatmap.data


def token_rows(entry: Entry, title: str, caption: str) -> Figure:
    """A row of tokens for each line of `entry`, wide, and for narrow screens with the methods' names above."""
    how = (
        " Orange is relevance towards the explained logit, blue against it, as a share of the method's largest; "
        "evidence is underlined, special tokens are dim."
    )
    wide, narrow = _svg(entry, WIDE, LABEL), _svg(entry, NARROW, 0)
    return Figure(NAME, title, caption + how, wide, WIDE, narrow, NARROW)


def token_table(entry: Entry, title: str, caption: str) -> Table:
    """The numbers of the picture: a row a method, a column a token."""
    columns = [Column("", _visible(token), str(at), significant=3) for at, token in enumerate(entry["tokens"])]
    rows = []
    for row in entry["rows"]:
        rows.append(Row(entry["task"], (entry["model"], row["label"]), tuple(map(Cell, row["values"]))))
    return Table(NAME, title, caption, ("model", "method"), tuple(columns), tuple(rows))


def _svg(entry: Entry, width: int, label: int) -> str:
    starts, lines = _starts(entry["tokens"], int((width - label) / LETTER))
    above = 0 if label else LINE
    height = above + LINE * lines + GAP
    parts = []
    for at, row in enumerate(entry["rows"]):
        top = at * height
        parts.append(f'<text class="m" x="0" y="{top + 14}">{escape(row["label"])}</text>')
        parts += _tokens(entry, row, starts, label, top + above)
    size = f'width="{width}" height="{height * len(entry["rows"])}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}><style>{_STYLE}</style>{"".join(parts)}</svg>'


def _tokens(
    entry: Entry, row: Mapping[str, Any], starts: Sequence[tuple[int, int]], left: int, top: int
) -> Iterator[str]:
    """A token is its colour, what marks it, and its text."""
    marks = zip(entry["tokens"], row["values"], entry["special"], entry["evidence"], strict=True)
    for at, ((token, value, special, evidence), (line, letter)) in enumerate(zip(marks, starts, strict=True)):
        word = _visible(token)
        x, y = round(left + LETTER * letter, 1), top + LINE * line
        width, share = round(LETTER * _letters(word), 1), value / row["scale"]
        box = f'<rect x="{x}" y="{y + 1}" width="{width}" height="17" rx="2" '
        if not special and abs(share) >= FAINT:
            yield f'{box}fill="{colour(share)}"/>'
        if at == entry["position"]:
            yield f'{box}fill="none" stroke="#8a8577"/>'
        if evidence:
            yield f'<path d="M{x} {y + 17.5}h{width}" stroke="#1d2327" stroke-width="1.5"/>'
        dim = ' class="s"' if special else ""
        fit = f'textLength="{width}" lengthAdjust="spacingAndGlyphs"'
        yield f'<text{dim} x="{x}" y="{y + 14}" {fit}>{escape(word)}</text>'


def _starts(tokens: Sequence[str], across: int) -> tuple[list[tuple[int, int]], int]:
    """(line and letter at which each word begins, how many lines there are); no line begins with a space."""
    starts, line, end = [], 0, 0
    for token in tokens:
        space, letters = token.startswith(" "), _letters(_visible(token))
        if end and end + space + letters > across:
            line, end = line + 1, 0
        start = end + space if end else 0
        starts.append((line, start))
        end = start + letters
    return starts, line + 1


def _visible(token: str) -> str:
    """The token without the space that begins a word; what has no form of its own is shown as a sign."""
    word = token.removeprefix(" ").replace("\n", "⏎")
    return "".join(letter if letter.isprintable() else "�" for letter in word).strip() or "␣"


def _letters(word: str) -> int:
    """The width in letters."""
    return sum(1 + (unicodedata.east_asian_width(letter) in "WF") for letter in word)
