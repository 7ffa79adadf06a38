"""Pages about explained texts: an overview of all cases, and a printable sheet for a single case."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from closelook.evaluation.explained.cases import FEWEST, Case, Disagreement, Importance, Importances
from closelook.evaluation.explained.rows import DECODER, SECOND, TEXT
from closelook.evaluation.report.heatmaps.markup import strip
from closelook.evaluation.report.heatmaps.tokens import in_digits, least, scale
from closelook.evaluation.report.page import Provenance, page_alone
from closelook.evaluation.report.table import Cell, Column, Row, Table

DECISIONS = 12  # most decisions on the overview, those of most texts
WORDS = 10  # most words of a decision and method at either end of their order
_ROWS = 1_200  # most rows of words on the overview, which keeps it well below 1 MB
PAIRS = 30  # most disagreements on the overview
_STRONGEST = 6  # most words for, and against, a decision by each method on a sheet
_OF_ALL = 16  # such words on a sheet, shared by its methods; each method has at least two
_WHOLE = 1_600  # most characters of a text on a sheet; a longer text is cut to the surroundings of relevant words
_AROUND = 8  # words shown on either side of a relevant word
_MEAN, _TEXTS = Column("", "mean relevance", significant=3), Column("", "texts", digits=0)


def overview(
    cases: Sequence[Case],
    importances: Importances,
    disagreements: Sequence[tuple[Disagreement, str]],
    provenance: Provenance,
) -> str:
    """The overview of all cases as HTML; `disagreements` are those to show, each with the address of its sheet."""
    shown = _most_frequent(importances)
    every = {group.decision for group in importances.texts}
    distinct = len({case.content for case in cases})
    facts = [f"{len(cases):,} cases, {distinct:,} of them of different content."]
    facts.append(
        "Importance of every word with its interval: `importance.csv`; disagreement of methods: `disagreements.csv`."
    )
    if len(shown) < len(every):
        facts.append(f"Of {len(every):,} decisions the {len(shown)} of most texts are shown; the files hold all.")
    groups = sum(group.decision in shown for group in importances.texts)
    most = max(1, min(WORDS, _ROWS // (2 * groups)))
    parts = [_importance(importances, decision, f"importance-{at}", most) for at, decision in enumerate(shown)]
    several = any(len(case.by_method) > 1 for case in cases)
    reason = (
        "No two methods order a case." if several else "One method explains these texts: there is nothing to compare."
    )
    return page_alone(
        "decisions.html",
        provenance.run,
        provenance,
        facts=facts,
        decisions=_decisions(cases),
        importances=parts,
        disagreements=disagreements,
        no_disagreements=reason,
    )


def _most_frequent(importances: Importances) -> list[str | None]:
    """Up to DECISIONS decisions, those of most texts first."""
    counts = Counter[str | None]()
    for group, texts in importances.texts.items():
        counts[group.decision] = max(counts[group.decision], texts)
    return [decision for decision, _ in counts.most_common(DECISIONS)]


def _decisions(cases: Sequence[Case]) -> Table:
    """A table of decisions: how many texts have it and its mean probability, the most frequent first."""
    counts = Counter((case.model, case.decision) for case in cases)
    probable: dict[tuple[str, str | None], list[float]] = {}
    for case in cases:
        if case.probability is not None:
            probable.setdefault((case.model, case.decision), []).append(case.probability)
    rows = []
    for (model, decision), count in counts.most_common(DECISIONS):
        values = probable.get((model, decision))
        mean = Cell(state="not kept") if values is None else Cell(sum(values) / len(values))
        rows.append(Row("", (model, _named(decision)), (Cell(count), mean)))
    columns = Column("", "texts", digits=0), Column("", "mean probability", digits=3)
    return Table("decisions", "Decisions", "", ("model", "decision"), columns, tuple(rows))


def _importance(importances: Importances, decision: str | None, name: str, most: int) -> Table:
    """A table of words by method: those of the `most` largest and of the `most` smallest means with an interval."""
    rows = []
    for group in [group for group in importances.texts if group.decision == decision]:
        with_interval = [each for each in importances.of(group) if each.low is not None]
        ends = with_interval if len(with_interval) <= 2 * most else [*with_interval[:most], *with_interval[-most:]]
        labels = [group.model, *(label for label in group.variant if label != "none")]
        rows += [Row("", (", ".join(labels), each.word), _cells(each)) for each in ends]
    caption = (
        f"Words that at least {FEWEST} texts with this decision have: the largest means and the smallest, by method, "
        "each with an interval; the intervals of a method hold together at 95 %. A text counts once, with the mean "
        "over the word's places in it. Relevance above zero speaks for the decision, unless the method knows no sign."
    )
    return Table(name, f"Words of “{_named(decision)}”", caption, ("method", "word"), (_MEAN, _TEXTS), tuple(rows))


def _cells(importance: Importance) -> tuple[Cell, Cell]:
    """The cells of a word: its mean with the interval, and its number of texts."""
    return Cell(importance.mean, n=importance.texts, low=importance.low, high=importance.high), Cell(importance.texts)


def _named(decision: str | None) -> str:
    """The decision in words; None stands for models that predict a score."""
    return "a score" if decision is None else decision


def sheet(case: Case, provenance: Provenance) -> str:
    """The page of a single case as HTML, which prints on one sheet of paper."""
    decision = _named(case.decision)
    (first, values), *_ = case.by_method.items()
    facts = [_sentence(case), f"Explained by {', '.join(case.by_method)}, of the model {case.model}."]
    caption = (
        f"Coloured by {first}: orange words raise the model's number for {decision}, blue ones lower it; "
        "the stronger the colour, the more. White words hardly count."
    )
    most = max(2, min(_STRONGEST, _OF_ALL // len(case.by_method)))
    methods = [_strongest(name, case, of_method, most) for name, of_method in case.by_method.items()]
    return page_alone(
        "case.html",
        f"Case {case.name.id}",
        provenance,
        facts=facts,
        sides=_sides(case, values.tolist()),
        caption=caption,
        decision=decision,
        methods=methods,
    )


def _sentence(case: Case) -> str:
    """The decision in plain words."""
    if case.decision is None:
        return "The model gave this text a score."
    sure = "" if case.probability is None else f", with a probability of {_percent(case.probability)}"
    against = (
        "" if case.against is None else f" The runner-up, or the alternative that was asked about: {case.against}."
    )
    return f"The model decided: {case.decision}{sure}.{against}"


def _percent(share: float) -> str:
    """A probability in percent, never rounded to certainty.

    >>> _percent(0.98765), _percent(0.99996)
    ('98.8 %', 'more than 99.9 %')
    """
    if share > 0.999:
        return "more than 99.9 %"
    return "less than 0.1 %" if share < 0.001 else f"{share:.1%}".replace("%", " %")


def _strongest(method: str, case: Case, values: Any, most: int) -> Mapping[str, str]:
    """The up to `most` words of largest positive, and of largest negative, relevance with their numbers, as text."""
    counted = [at for at in range(len(values)) if case.words[at].is_counted]
    numbers = dict(zip(counted, in_digits([float(values[at]) for at in counted]), strict=True))
    order = sorted(counted, key=lambda at: -values[at])
    raising = [at for at in order if values[at] > 0][:most]
    lowering = [at for at in reversed(order) if values[at] < 0][:most]
    strongest = [", ".join(f"{case.words[at].word} {numbers[at]}" for at in some) for some in (raising, lowering)]
    return {"method": method, "words_for": strongest[0], "words_against": strongest[1]}


def _sides(case: Case, values: Sequence[float]) -> list[Markup]:
    """Each side of the case as coloured words: its text, the second text of a pair, and what a decoder has seen.

    All have the same scale of colours. Words without relevance in `values`, which may be shorter than the words, are
    not coloured.
    """
    padded = [*values, *(math.nan for _ in range(len(case.words) - len(values)))]
    specials = [word.special for word in case.words]
    row = {"scale": scale(padded, specials), "low": least(padded, specials)}  # NaN does not count
    kept = _kept(case, padded)
    sides = []
    for side in (TEXT, SECOND, DECODER):
        positions = [at for at in kept if case.words[at].side == side and not case.words[at].special]
        if positions:
            sides.append(_side(case, positions, padded, row))
    return sides


def _kept(case: Case, values: Sequence[float]) -> list[int]:
    """The indices of the words to show: all, or of a long text those around the most relevant words."""
    count = len(case.words)
    lengths = [len(word.word) + 1 for word in case.words]
    if sum(lengths) <= _WHOLE:
        return list(range(count))
    kept: set[int] = set()
    order = sorted(range(count), key=lambda at: -abs(values[at]) if not math.isnan(values[at]) else 0.0)
    for at in order:
        around = set(range(max(0, at - _AROUND), min(count, at + _AROUND + 1)))
        if sum(lengths[other] for other in kept | around) > _WHOLE:
            break
        kept |= around
    return sorted(kept)


def _side(case: Case, positions: Sequence[int], values: Sequence[float], row: Mapping[str, float]) -> Markup:
    """The words at `positions`, coloured on the scale in `row`, with the spaces between them; … for words left out."""
    text = Markup("")
    for before, at in zip([None, *positions], positions, strict=False):
        word = case.words[at]
        gap = "" if before is None else _gap(case, before, at)
        value = 0.0 if math.isnan(values[at]) else values[at]
        text += gap + strip([word.word], [value], [False], row)
    return text


def _gap(case: Case, before: int, at: int) -> str:
    """The text between the word `before` and the next shown word `at`: a space if the case has one, "" or " … "."""
    if at > before + 1:
        return " … "
    end, start = case.words[before].end, case.words[at].start
    return " " if end is None or start is None else " " * (start > end)
