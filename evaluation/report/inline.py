"""The report's heat map as HTML without scripts or styles of its own, for notebooks, which admit neither."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from evaluation.report.heatmap import FAINT, colour

_TOKEN = Markup('<span title="{title}" style="padding:2px 1px;border-radius:3px;white-space:pre;{style}">{word}</span>')
#: What a decoder has seen, behind what the encoder reads.
_SEEN = Markup(
    '<span title="what the decoder has seen" '
    'style="margin-left:10px;padding-left:10px;border-left:1px solid currentColor">{tokens}</span>'
)
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
    strips = _strip(entry["tokens"], row["values"], entry["special"], row["scale"])
    if "decoder" in row:
        start = [1] + [0] * (len(row["decoder"]) - 1)
        strips += _SEEN.format(tokens=_strip(entry["decoder"], row["decoder"], start, row["scale"]))
    return strips


def _strip(tokens: Sequence[str], values: Sequence[float], specials: Sequence[int], scale: float) -> Markup:
    strip = Markup("")
    for token, value, special in zip(tokens, values, specials, strict=True):
        word, share = token.removeprefix(" "), value / scale
        style = "opacity:.6" if special else ""
        if not special and abs(share) >= FAINT:
            style = f"background:{colour(share)};color:#000"
        strip += " " * (token != word) + _TOKEN.format(title=f"{word}: {value:.4g}", style=style, word=word or "␣")
    return strip
