"""Questions to a model in batches. Similar questions share a batch, and an error in a question stops no other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from jobs.commands.questions.answers import Answer, answer_of, answers, of_row, relevance_of_rows, with_targets
from jobs.commands.questions.opened import Opened
from jobs.commands.questions.question import Question
from jobs.commands.questions.reading import read
from lrp_core.device.memory import is_out_of_memory
from lrp_core.methods.record import Method
from lrp_core.readers.readout import rows_for
from lrp_core.records.types import Relevance, UnsupportedMethod, UserError

Outcome = tuple[Answer, ...] | UserError
_WINDOW = 1024  # questions that are read, and sorted by length, before any of them is answered
_TOKENS = 4096  # of a pass, padding included, where nobody says how many questions share one


class _Asked(NamedTuple):
    """A question of one prediction, as the model reads it."""

    at: int  # of the question in the list
    question: Question
    row: dict[str, Any]

    @property
    def length(self) -> int:
        """Tokens."""
        return len(self.row["input_ids"])

    @property
    def kind(self) -> tuple[Any, ...]:
        """Equal for rows that can share a batch."""
        return self.row["foil_id"] is None, self.row.get("token_type_ids") is None, self.question.explanation


def each_answered(
    questions: Sequence[Question], opened: Opened, methods: Sequence[Method], size: int | None = None, **finer: Any
) -> Iterator[tuple[int, Outcome]]:
    """The number of each question with its answers, or with the error that says why it has none, as they are computed.

    Questions of one prediction each are answered `size` in a pass, those of alike lengths together, or as many as make
    `_TOKENS`; others one by one. `finer` as for methods. The model is in use (`Opened.in_use`). Raises
    UnsupportedMethod for a method that does not apply to the model, whatever is asked.
    """
    window = max(_WINDOW, size or 0)
    for start in range(0, len(questions), window):
        asked: list[_Asked] = []
        for at in range(start, min(start + window, len(questions))):
            question = questions[at]
            try:
                if question.several:
                    yield at, tuple(answers(question, opened, methods, **finer))
                    continue
                [row] = rows_for(opened.view, [read(question, opened)])
                asked.append(_Asked(at, question, dict(row)))
            except UnsupportedMethod:
                raise
            except UserError as error:
                yield at, error
        rows = with_targets([entry.question for entry in asked], opened.view, [entry.row for entry in asked])
        asked = [entry._replace(row=row) for entry, row in zip(asked, rows, strict=True)]
        asked.sort(key=lambda entry: (*map(str, entry.kind), -entry.length))
        for batch in _batches(asked, size):
            yield from _of_batch(batch, opened, methods, finer)


def _batches(asked: Sequence[_Asked], size: int | None) -> Iterator[Sequence[_Asked]]:
    """Batches of similar questions, the longest first: up to `size` questions, or as many as have `_TOKENS` tokens."""
    for _, alike in groupby(asked, key=lambda entry: entry.kind):
        some = list(alike)
        while some:
            count = size or max(1, _TOKENS // some[0].length)
            yield some[:count]
            some = some[count:]


def _of_batch(
    asked: Sequence[_Asked], opened: Opened, methods: Sequence[Method], finer: Mapping[str, Any]
) -> Iterator[tuple[int, Outcome]]:
    """The outcomes of questions whose rows share a batch; where it fails, each is asked alone.

    A batch that memory does not hold is halved.
    """
    rows = [entry.row for entry in asked]
    parts: list[Sequence[_Asked]] = []
    relevance: Mapping[str, Relevance] = {}
    try:
        relevance = relevance_of_rows(opened, methods, rows, asked[0].question.explanation, **finer)
    except UnsupportedMethod:
        raise
    except UserError as error:
        if len(asked) == 1:
            yield asked[0].at, error
            return
        parts = [[entry] for entry in asked]
    except Exception as error:
        if len(asked) == 1 or not is_out_of_memory(error):
            raise
        parts = [asked[: len(asked) // 2], asked[len(asked) // 2 :]]
    if parts:  # the failed batch's memory is free again only here, with its exception gone
        for part in parts:
            yield from _of_batch(part, opened, methods, finer)
        return
    for number, entry in enumerate(asked):
        of_entry = of_row(relevance, number, entry.row)
        yield entry.at, (answer_of(entry.question, opened, methods, entry.row, of_entry),)
