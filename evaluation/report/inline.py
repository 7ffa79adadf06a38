"""The report's heat map as HTML without scripts or styles of its own, for notebooks, which admit neither."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from evaluation.report.heatmap import FAINT, colour

_TOKEN = Markup('<span title="{title}" style="padding:2px 1px;border-radius:3px;white-space:pre;{style}">{word}</span>')
_LINE = Markup(
    '<tr><th scope="row" style="text-align:left;font-weight:600;padding-right:14px;white-space:nowrap">{label}</th>'
    '<td style="text-align:left;line-height:1.9">{tokens}</td></tr>'
)


def heatmaps(entries: Sequence[Mapping[str, Any]], caption: str) -> Markup:
    """A table of `entries` (of :func:`heatmap.data`), a line a method; pointing at a token tells its relevance."""
    lines = Markup("").join(_lines(entry, len(entries) > 1) for entry in entries)
    return Markup(
        '<table style="border-collapse:collapse"><caption style="text-align:left;padding:4px 0">{}</caption>'
        "<tbody>{}</tbody></table>"
    ).format(caption, lines)


def _lines(entry: Mapping[str, Any], several: bool) -> Markup:
    told = f"{entry['target']} · " if several else ""
    return Markup("").join(_LINE.format(label=told + row["label"], tokens=_tokens(entry, row)) for row in entry["rows"])


def _tokens(entry: Mapping[str, Any], row: Mapping[str, Any]) -> Markup:
    found = Markup("")
    for token, value, special in zip(entry["tokens"], row["values"], entry["special"], strict=True):
        word, share = token.removeprefix(" "), value / row["scale"]
        style = "opacity:.6" if special else ""
        if not special and abs(share) >= FAINT:
            style = f"background:{colour(share)};color:#000"
        found += " " * (token != word) + _TOKEN.format(title=f"{word}: {value:.4g}", style=style, word=word or "␣")
    return found
