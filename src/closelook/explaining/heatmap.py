"""Explained predictions as heat maps: lines of coloured tokens or words, in HTML and in figures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from markupsafe import Markup

from closelook.evaluation.report.heatmaps.markup import shares_table
from closelook.evaluation.report.heatmaps.overlay import with_picture
from closelook.evaluation.report.heatmaps.tokens import Line, beyond_noise, data
from closelook.evaluation.report.page import Provenance, explain_page
from closelook.explaining.explained import Explained
from closelook.explaining.record import shares_of_all
from closelook.lrp_core.records.types import UserError
from closelook.versions import versions

_TITLE = 160  # most characters of the explained predictions in a title


class Lines(NamedTuple):
    """Texts of tokens or words, whether each is special, and a line of their relevance for each method."""

    texts: list[str]
    special: list[bool]
    lines: list[Line]


def sum_by_word(values: Sequence[float], groups: Sequence[Sequence[int]], adds_up: bool) -> list[float]:
    """The relevance of each word, from the `values` of its tokens: their sum if it `adds_up`, else their mean."""
    sums = [sum(values[at] for at in group) for group in groups]
    if adds_up:
        return sums
    return [total / len(group) for total, group in zip(sums, groups, strict=True)]


def lines_of(explained: Explained, by_word: bool = False) -> Lines:
    """The lines of a heat map. `by_word` joins the tokens of a word: their relevance is summed or, for methods that do
    not conserve, averaged, which the line's label says.

    Where a conserving method gives nothing but rounding noise, its line is all zero. Raises UserError for words of an
    image.
    """
    lines = []
    for method in explained.methods:
        relevance = explained.relevance[method.name]
        columns = {"decoder": relevance.decoder_tokens, "pixels": relevance.pixels}
        further: dict[str, Any] = {
            name: values[0].flatten().tolist() for name, values in columns.items() if values is not None
        }
        line = Line(method.name, relevance.tokens[0].tolist(), **further)
        lines.append(beyond_noise(line, explained.logits) if method.conserves else line)
    special, words = explained.text.special, explained.text.words
    if not by_word:
        return Lines(explained.text.shown, special, lines)
    if explained.images is not None:
        raise UserError("an image has no words: leave out the sum by word")
    groups = [word.tokens for word in words]
    joined = []
    for method, line in zip(explained.methods, lines, strict=True):
        adds_up = explained.adds_up(method)
        label = line.label if adds_up else f"{line.label} (means)"
        joined.append(line._replace(label=label, values=sum_by_word(line.values, groups, adds_up)))
    return Lines([word.text for word in words], [special[group[0]] for group in groups], joined)


def entry_of(explained: Explained, by_word: bool = False) -> dict[str, Any]:
    """The data of a heat map; its text goes on with the tokens that were predicted before."""
    item, span, answer, decoder = explained.item, explained.span, explained.answer, explained.decoder
    tokens, special, lines = lines_of(explained, by_word)
    before = None  # the number of tokens of prompt and answer before the explained span
    if span is not None and answer is not None:
        before = len(answer.pieces) - len(answer.ids) + span.first
    if decoder is not None:
        written = [token for token, is_start in zip(decoder.tokens, decoder.special, strict=True) if not is_start]
        text = f"{item.before} → {''.join(written[:before])} "
    elif explained.at or span is not None:
        text = "".join(explained.tokens[:before]) + " "
    elif item.second is not None:
        text = f"{item.text} | {item.second} "
    else:
        text = item.before + item.after
    is_whole = decoder is None and not explained.at and span is None and item.second is None
    unit = "token" if len(explained.view.span or [0]) == 1 else "span"
    shown = data(
        tokens,
        lines,
        special=special,
        decoder=None if decoder is None else decoder.tokens,
        model=explained.model,
        sample_id=f"{unit} {explained.at + 1}",
        text=text,
        slot=len(item.before) if is_whole else len(text),
        target=explained.target,
        foil=explained.foil,
    )
    if explained.images is None or explained.view.pixels is None:
        return shown
    return with_picture(shown, explained.view.pixels, explained.images, [line.pixels for line in lines], item.text)


def titled(explained: Sequence[Explained]) -> str:
    """A title of one line: the model and the explained predictions, shortened to _TITLE characters."""
    words = " ".join(each.why + each.note for each in explained)
    more = len(words) > _TITLE
    return f"{explained[0].model}: why {words[:_TITLE].rstrip()}{'…' if more else ''}"


def page(texts: Sequence[Sequence[Explained]], identity: str, by_word: bool = False) -> str:
    """The explained predictions of one or more texts as an HTML page.

    Above the parts of an answer stands a table of shares.
    """
    first = texts[0]
    above: Markup | None = None
    model = first[0].model
    provenance = Provenance("explain", "", versions(), models=[(model, identity)])
    entries = [entry_of(each, by_word) for explained in texts for each in explained]
    if len(texts) > 1:
        numbers = [at for at, explained in enumerate(texts, start=1) for _ in explained]
        for at, entry in zip(numbers, entries, strict=True):
            entry["sample_id"] = f"text {at}, {entry['sample_id']}"
        return explain_page(entries, f"{model}: {len(texts):,} texts", provenance)
    if first[0].answer is not None:
        above = shares_table(shares_of_all(first))
    return explain_page(entries, titled(first), provenance, above)
