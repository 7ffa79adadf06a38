"""Heat maps as LaTeX, for papers: tokens in coloured boxes, with line breaks. They need the package xcolor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from evaluation.report.heatmaps.tokens import FAINT, colour, share_of

_ESCAPED = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
}


def latex(entries: Sequence[Mapping[str, Any]], title: str) -> str:
    r"""The heat maps of `entries` (data of :func:`heatmaps.tokens.data`), a paragraph for each line, for \input."""
    parts = [f"% {' '.join(title.split())}: needs \\usepackage{{xcolor}}", r"{\setlength{\fboxsep}{1pt}"]
    for entry in entries:
        for row in entry["rows"]:
            prefix = f"{entry['target']}: " if len(entries) > 1 else ""
            parts.append(
                rf"\noindent\textbf{{{_text(prefix + row['label'])}}}\quad {_tokens(entry, row)}\par\smallskip"
            )
    return "\n".join([*parts, "}", ""])


def _tokens(entry: Mapping[str, Any], row: Mapping[str, Any]) -> str:
    """The coloured tokens of a line, then after a bar those that a decoder has seen."""
    strip = _strip(entry["tokens"], row["values"], row)
    if "decoder" in row:
        strip += rf" $\mid$ {_strip(entry['decoder'], row['decoder'], row)}"
    return strip


def _strip(tokens: Sequence[str], values: Sequence[float], row: Mapping[str, Any]) -> str:
    r"""The tokens in boxes coloured on the scale of `row`; lines may break between boxes (\allowbreak)."""
    boxes = []
    for token, value in zip(tokens, values, strict=True):
        word, share = token.removeprefix(" "), share_of(value, row["scale"], row.get("low", 0.0))
        shown = _text(word.replace("\n", " ")) or r"\textvisiblespace{}"
        ground = colour(share) if abs(share) >= FAINT else "#ffffff"
        space = " " if token != word else r"\allowbreak{}"
        boxes.append(rf"{space}\colorbox[HTML]{{{ground.removeprefix('#').upper()}}}{{\strut {shown}}}")
    return "".join(boxes).removeprefix(r"\allowbreak{}").lstrip()


def _text(words: str) -> str:
    """`words` with the characters escaped that have a meaning in LaTeX."""
    return "".join(_ESCAPED.get(letter, letter) for letter in words)
