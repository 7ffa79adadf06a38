"""Where the tokens of a figure stand, in letters of a monospaced font."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

Starts = list[tuple[int, int]]  # the line and the letter at which each token begins


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
    """The runs of neighbouring tokens of a line that are read from right to left."""
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
