"""Answers many questions in batches of similar ones. An error in one question does not stop the others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby, islice
from typing import Any, NamedTuple

from closelook.jobs.commands.questions.answers import (
    Answer,
    answer_of,
    answers,
    of_row,
    relevance_of_rows,
    with_targets,
)
from closelook.jobs.commands.questions.opened import Opened
from closelook.jobs.commands.questions.question import Question
from closelook.jobs.commands.questions.reading import read
from closelook.lrp_core.device.memory import is_out_of_memory
from closelook.lrp_core.methods.record import Method
from closelook.lrp_core.readers.readout import rows_for
from closelook.lrp_core.records.types import UnsupportedMethod, UserError

Outcome = tuple[Answer, ...] | UserError
Outcomes = Iterator[tuple[int, Outcome]]  # with the key of the question
_WINDOW = 1024  # questions that are tokenised and sorted by length before the first is answered
_TOKENS = 4096  # tokens of a batch, padding included, if its number of questions is not given
_ENOUGH = 512  # tokens of a batch from which on a larger one saves less time than its padding costs
_ALIKE = 0.75  # least length of a text in a larger batch, as a share of the longest


class _Asked(NamedTuple):
    """A question about one prediction, with the row that the model reads."""

    at: int  # index of the question
    question: Question
    row: dict[str, Any]

    @property
    def length(self) -> int:
        """The number of its tokens."""
        return len(self.row["input_ids"])

    @property
    def kind(self) -> tuple[Any, ...]:
        """A value that is equal for questions which can share a batch."""
        return self.row["foil_id"] is None, self.row.get("token_type_ids") is None, self.question.explanation


def each_answered(
    questions: Mapping[int, Question],
    opened: Opened,
    methods: Sequence[Method],
    size: int | None = None,
    **finer: Any,
) -> Outcomes:
    """Yield (key of a question, its answers or the UserError that prevents them), in the order of computation.

    Questions about one prediction are answered in batches of `size`, or of up to _TOKENS tokens, with others of
    similar length; questions about several predictions one by one. `finer` are arguments of methods. Call it within
    `Opened.in_use`. Raises UnsupportedMethod for a method that does not apply to the model.
    """
    entries = iter(questions.items())
    while window := list(islice(entries, max(_WINDOW, size or 0))):
        asked: list[_Asked] = []
        for at, question in window:
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
        rows = with_targets([entry.question for entry in asked], opened, [entry.row for entry in asked])
        asked = [entry._replace(row=row) for entry, row in zip(asked, rows, strict=True)]
        asked.sort(key=lambda entry: (*map(str, entry.kind), -entry.length))
        for batch in _batches(asked, size):
            yield from _of_batch(batch, opened, methods, finer)


def _batches(asked: Sequence[_Asked], size: int | None) -> Iterator[Sequence[_Asked]]:
    """Batches of questions of one kind, the longest first: of `size` questions, or as `batch_size` says.

    `asked` must be sorted by kind and falling length.
    """
    for _, alike in groupby(asked, key=lambda entry: entry.kind):
        some = list(alike)
        while some:
            count = size or batch_size([entry.length for entry in some])
            yield some[:count]
            some = some[count:]


def batch_size(lengths: Sequence[int]) -> int:
    """The number of texts in the next batch, taken from texts with these `lengths` in tokens, the longest first."""
    longest = lengths[0]
    most, enough = max(1, _TOKENS // longest), max(1, _ENOUGH // longest)
    for number in range(enough, min(most, len(lengths))):
        if lengths[number] < _ALIKE * longest:
            return number
    return most


def _of_batch(asked: Sequence[_Asked], opened: Opened, methods: Sequence[Method], finer: Mapping[str, Any]) -> Outcomes:
    """Yield (index, outcome) of the questions of a batch. If a row cannot be explained, each is tried alone.

    If memory does not suffice, the batch is halved.
    """
    rows = [entry.row for entry in asked]
    parts: list[Sequence[_Asked]] = []
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
    if parts:  # outside `except`: the exception's traceback holds the failed batch's tensors in memory
        for part in parts:
            yield from _of_batch(part, opened, methods, finer)
        return
    for number, entry in enumerate(asked):
        of_entry = of_row(relevance, number, entry.row)
        yield entry.at, (answer_of(entry.question, opened, methods, entry.row, of_entry),)
