"""Heat maps as HTML without scripts and style sheets, which notebooks do not allow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from closelook.evaluation.report.heatmaps.tokens import Entry, EntryLine, ground

_TOKEN = Markup('<span title="{title}" style="padding:2px 1px;border-radius:3px;white-space:pre;{style}">{word}</span>')
#: The tokens that the decoder has seen, after those of the encoder.
_SEEN = Markup(
    '<span title="what the decoder has seen" '
    'style="margin-left:10px;padding-left:10px;border-left:1px solid currentColor">{tokens}</span>'
)
_LINE = Markup(
    '<tr><th scope="row" style="text-align:left;font-weight:600;padding-right:14px;white-space:nowrap">{label}</th>'
    '<td style="text-align:left;line-height:1.9">{tokens}</td></tr>'
)


def heatmaps(entries: Sequence[Entry], caption: str) -> Markup:
    """A table of heat maps with a line for each method of each of `entries`, data of :func:`heatmaps.tokens.data`.

    A token's tooltip shows its relevance.
    """
    lines = Markup("").join(_lines(entry, len(entries) > 1) for entry in entries)
    return Markup(
        '<table style="border-collapse:collapse"><caption style="text-align:left;padding:4px 0">{}</caption>'
        "<tbody>{}</tbody></table>"
    ).format(caption, lines)


def shares_table(rows: Sequence[Mapping[str, Any]]) -> Markup:
    """A table of how much relevance parts of the input have: a row for each target and method, a column for each part.

    `rows` have the fields target, method, part and share; columns are in the order in which parts occur.
    """
    parts = list(dict.fromkeys(row["part"] for row in rows))
    by_line: dict[tuple[str, str], dict[str, float]] = {}
    for row in rows:
        by_line.setdefault((row["target"], row["method"]), {})[row["part"]] = row["share"]
    head = Markup("").join(Markup("<th scope=col>{}</th>").format(name) for name in ("explained", "method", *parts))
    body = Markup("")
    for names, shares in by_line.items():
        cells = Markup("").join(Markup('<td style="text-align:left">{}</td>').format(name) for name in names)
        for part in parts:
            cells += Markup('<td style="text-align:right">{}</td>').format(
                f"{shares[part]:.0%}" if part in shares else ""
            )
        body += Markup("<tr>{}</tr>").format(cells)
    return Markup(
        '<table style="border-collapse:separate;border-spacing:10px 2px;text-align:left">'
        '<caption style="text-align:left">shares of relevance, by magnitude</caption>'
        "<thead><tr>{}</tr></thead><tbody>{}</tbody></table>"
    ).format(head, body)


def _lines(entry: Entry, several: bool) -> Markup:
    """The lines of an entry; their labels name its target if there are `several` entries."""
    target = f"{entry['target']} · " if several else ""
    lines = Markup("")
    for row in entry["rows"]:
        white = f" (white is {row['low']:.3g})" if "low" in row else ""
        lines += _LINE.format(label=target + row["label"] + white, tokens=_tokens(entry, row))
    return lines


def _tokens(entry: Entry, row: EntryLine) -> Markup:
    """The coloured tokens of a line, with those of the decoder if the model has one."""
    strips = strip(entry["tokens"], row["values"], entry["special"], row)
    if "decoder" in row:
        start = [1] + [0] * (len(row["decoder"]) - 1)
        strips += _SEEN.format(tokens=strip(entry["decoder"], row["decoder"], start, row))
    return strips


def strip(tokens: Sequence[str], values: Sequence[float], specials: Sequence[int], row: EntryLine) -> Markup:
    """Tokens coloured by their relevance on the scale of `row`; `specials` are 1 for special tokens, which are dim."""
    spans = Markup("")
    for token, value, special in zip(tokens, values, specials, strict=True):
        word, behind = token.removeprefix(" "), ground(value, row, bool(special))
        style = "opacity:.6" if special else ""
        if behind:
            style = f"background:{behind};color:#000"
        spans += " " * (token != word) + _TOKEN.format(title=f"{word}: {value:.4g}", style=style, word=word or "␣")
    return spans
