"""The computation of the parts of a unit from its rows, whatever fails on a row. Imports no Ray.

A row that raises, ends its process or needs more memory than there is becomes a reject, and its neighbours keep the
numbers that they would have had without it. What no row is to blame for fails its node.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from jobs.cluster.attempts import end_with_device
from jobs.plan.node import Node, Part
from jobs.products.record import Exited, NodeFailed, Opened, Product, Reject, Row, of_no_task
from jobs.secrets import without_secrets
from jobs.store import Artifact
from lrp_core.device.memory import is_device_lost, is_out_of_memory
from lrp_core.records.types import UnusableRows, UserError

#: Errors that no row is to blame for: the method, the model or the configuration is wrong.
PROGRAMMING_ERRORS = (TypeError, AttributeError, NameError, KeyError, NotImplementedError, AssertionError, ImportError)

Values = Mapping[Part, Any]  # of one call of `compute`


@dataclass
class Outcome:
    """The values of parts that share forwards, one mapping for each batch, and the rows that have none."""

    values: list[Values] = field(default_factory=list)
    rejects: list[Reject] = field(default_factory=list)
    splits: int = 0  # batches that were halved for want of memory

    def of(self, part: Part) -> list[Any]:
        """The values of one part, in the order of batches."""
        return [values[part] for values in self.values]


def compute_parts(
    product: Product, opened: Opened, parts: Sequence[Part], rows: Sequence[Row], cuts: Sequence[int] = (0,)
) -> dict[Part, Outcome | NodeFailed]:
    """The outcome of every part. Parts that share forwards and fail are computed apart; one that fails alone failed.

    Raises the error of a lost device.
    """
    outcomes: dict[Part, Outcome | NodeFailed] = {}
    groups: dict[Any, list[Part]] = {}
    for part in parts:
        groups.setdefault(part.node.forwards, []).append(part)
    waiting = list(groups.values())
    while waiting:
        group = waiting.pop(0)
        try:
            outcome = _Batches(product, opened, group).run(rows, cuts)
        except NodeFailed as error:
            if len(group) > 1:
                waiting = [[part] for part in group] + waiting
            else:
                outcomes[group[0]] = error
            continue
        except Exception as error:
            end_with_device(error, opened.attempts)
            raise
        for part in group:
            failures = [value for value in outcome.of(part) if isinstance(value, NodeFailed)]
            outcomes[part] = failures[0] if failures else outcome
    return outcomes


@dataclass
class _Batches:
    """The batches of a unit for parts that share forwards."""

    product: Product
    opened: Opened
    parts: Sequence[Part]
    outcome: Outcome = field(default_factory=Outcome)

    @property
    def name(self) -> str:
        """The name of these parts in the notes of attempts."""
        return "+".join(dict.fromkeys(part.node.artifact.method for part in self.parts))

    def run(self, rows: Sequence[Row], cuts: Sequence[int]) -> Outcome:
        """Compute every batch. Batches that ended several workers, or hold a row that did, are computed row by row."""
        attempts = self.opened.attempts
        for index, batch in enumerate(_slices(rows, cuts)):
            mark = f"{index}|{self.name}"
            suspicious = attempts.ended_by(*(f"{row['sample_id']}|" for row in batch))  # whichever parts it was for
            has_ended_workers = attempts.note_batch(mark)
            if has_ended_workers or suspicious:
                self._compute_suspects(batch)
            else:
                with self.opened.watchdog.watching(mark, attempts):
                    self._compute(batch)
            attempts.end_batch(mark)
        return self.outcome

    def _compute_suspects(self, rows: Sequence[Row]) -> None:
        """Compute rows one by one, each noted in the store before it runs. A row that ended a worker is a reject."""
        attempts = self.opened.attempts
        for row in rows:
            mark = f"{row['sample_id']}|{self.name}"
            has_ended_worker = attempts.note_row(mark)
            if has_ended_worker:
                detail = f"the process ended while computing it{attempts.reason}"
                self.outcome.rejects.append(Reject(row["sample_id"], "ended_worker", detail))
                continue
            with self.opened.watchdog.watching(mark, attempts):
                self._compute([row])
            attempts.end_row(mark)

    def _compute(self, rows: Sequence[Row]) -> None:
        """Add the values of a batch. Out of memory halves it; a row that raises becomes a reject."""
        attempted = self._attempt(rows)
        if not isinstance(attempted, Reject):
            self.outcome.values.append(attempted)
        elif len(rows) == 1:
            self.outcome.rejects.append(attempted)
        elif attempted.reason == "out_of_memory":
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
            self.outcome.splits += 1
            for half in _halves(rows):
                self._compute(half)
        else:
            self._compute_without_failing(rows)

    def _attempt(self, rows: Sequence[Row]) -> Values | Reject:
        """The batch's values, or the reason why there are none as a reject of its first row.

        The caller acts on the reason when nothing of the failed batch is alive any more: the traceback of an error that
        is being handled holds every tensor of the graph.
        """
        assert self.product.compute is not None
        try:
            return self.product.compute(self.opened, self.parts, rows)
        except NodeFailed:
            raise
        except Exception as error:
            if is_device_lost(error):
                raise
            if not rows:
                raise NodeFailed(describe(error)) from error
            first = rows[0]["sample_id"]
            if is_out_of_memory(error):
                return Reject(first, "out_of_memory", describe(error))
            if isinstance(error, UnusableRows):
                return Reject(rows[error.rows[0]]["sample_id"], error.reason, error.detail)
            if isinstance(error, UserError):
                raise NodeFailed(" ".join(str(error).split())) from error
            if isinstance(error, PROGRAMMING_ERRORS):
                raise NodeFailed(f"{describe(error)}{_of_samples(rows)}") from error
            if isinstance(error, Exited) and len(rows) == 1:  # in a larger batch, the row to blame is sought
                raise NodeFailed(f"{without_secrets(str(error))[:300]}{_of_samples(rows)}") from error
            return Reject(first, "model_error", describe(error))

    def _compute_without_failing(self, rows: Sequence[Row]) -> None:
        """A row of the batch raises: find it, then compute the others in a batch of the planned shape."""
        values, rejects = self._search(rows)
        self.outcome.rejects += rejects
        failing = {reject.sample_id for reject in rejects}
        healthy = [row for row in rows if row["sample_id"] not in failing]
        if not healthy:
            return
        if failing:
            of_samples = "position" in healthy[0]  # other inputs have no shape that their neighbours depend on
            again = self._attempt(_with_stand_ins(rows, healthy[0], failing) if of_samples else healthy)
            if not isinstance(again, Reject):
                kept = {row["sample_id"] for row in healthy}
                self.outcome.values.append(_only(again, kept) if of_samples else again)
                return
        self.outcome.values += values  # no single row is to blame: the values of smaller batches stay

    def _search(self, rows: Sequence[Row]) -> tuple[list[Values], list[Reject]]:
        """The values of smaller batches of a batch that fails, and the rows that fail alone."""
        values: list[Values] = []
        rejects: list[Reject] = []
        for half in _halves(rows):
            attempted = self._attempt(half)
            if not isinstance(attempted, Reject):
                values.append(attempted)
            elif len(half) == 1:
                rejects.append(attempted)
            else:
                more_values, more_rejects = self._search(half)
                values += more_values
                rejects += more_rejects
        return values, rejects


def compute_alone(compute: Callable[[Sequence[Row]], Any], rows: Sequence[Row]) -> tuple[list[Any], Outcome]:
    """The values of `compute`, which needs no worker, and their outcome."""
    part = Part(Node(artifact=Artifact("alone")), "")
    alone = Product(
        name="alone",
        title="",
        stage="",
        nodes=lambda run: (),
        expected=of_no_task,
        compute=lambda opened, parts, rows: {part: compute(rows)},
    )
    outcome = compute_parts(alone, Opened(), [part], rows)[part]
    if isinstance(outcome, NodeFailed):
        raise outcome
    return outcome.of(part), outcome


def describe(error: BaseException) -> str:
    """An error in a line of at most 300 characters, without secrets."""
    return without_secrets(f"{type(error).__name__}: {' '.join(str(error).split())}")[:300]


def named(samples: Sequence[str]) -> str:
    """Samples in words, by the first of their ids."""
    return f"sample {samples[0]}" + (f" and {len(samples) - 1} others" if len(samples) > 1 else "")


def that_fits(compute: Any, token_budget: int) -> tuple[Any, int]:
    """`compute(token_budget)`, with the budget halved while memory runs out, and how often it was halved."""
    splits = 0
    while True:
        try:
            return compute(token_budget >> splits), splits
        except Exception as error:
            if not is_out_of_memory(error) or token_budget >> splits <= 1:
                raise
            splits += 1


def _of_samples(rows: Sequence[Row]) -> str:
    return f" ({named([row['sample_id'] for row in rows])})"


def _halves(rows: Sequence[Row]) -> tuple[Sequence[Row], Sequence[Row]]:
    middle = len(rows) // 2
    return rows[:middle], rows[middle:]


def _slices(rows: Sequence[Row], cuts: Sequence[int]) -> Iterator[Sequence[Row]]:
    ends = [*cuts[1:], len(rows)] if cuts else []
    for start, end in zip(cuts, ends, strict=True):
        yield rows[start:end]


def _only(values: Values, samples: set[str]) -> Values:
    """The values of these samples; parts that have a value in common still have it in common."""
    kept = {id(value): value.only(samples) for value in values.values()}
    return {part: kept[id(value)] for part, value in values.items()}


def _with_stand_ins(rows: Sequence[Row], healthy: Row, failing: set[str]) -> list[Row]:
    """Samples whose batch has the shape that was planned."""
    return [_stand_in(row, healthy) if row["sample_id"] in failing else row for row in rows]


def _stand_in(row: Row, healthy: Row) -> Row:
    """A row with the length and position of `row` and the tokens of `healthy`."""
    tokens = list(healthy["input_ids"])
    length = len(row["input_ids"])
    repeated = (tokens * (length // len(tokens) + 1))[:length]
    types = None if row.get("token_type_ids") is None else [0] * length
    decoder_ids, position = row.get("decoder_input_ids"), min(row["position"], length - 1)
    if decoder_ids is not None:  # the start token comes first
        decoder_ids = [decoder_ids[0], *(tokens * len(decoder_ids))[: len(decoder_ids) - 1]]
        position = min(row["position"], len(decoder_ids) - 1)
    answer = row.get("answer_ids")
    of_answer = {} if answer is None else {**row, "answer_ids": (tokens * len(answer))[: len(answer)]}
    return {
        **healthy,
        **of_answer,
        "decoder_input_ids": decoder_ids,
        "token_type_ids": types,
        "sample_id": row["sample_id"],
        "input_ids": repeated,
        "position": position,
    }
