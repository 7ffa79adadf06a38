"""Computes the parts of a unit from its rows, whichever rows fail. Imports no Ray.

A batch that fails is halved until rows fail alone. These become rejects, like a row that ends its process.
An error for which no single row is to blame fails the node.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch

from closelook.jobs.cluster.attempts import COMPUTING, end_with_device
from closelook.jobs.plan.node import Node, Part
from closelook.jobs.products.record import NodeFailed, Opened, Product, Reject, Row
from closelook.jobs.products.unaltered import ModelAltered
from closelook.jobs.secrets import without_secrets
from closelook.jobs.store import Artifact, StoreFull
from closelook.jobs.store.retry import StillUnavailable
from closelook.lrp_core.device.memory import is_device_lost, is_out_of_memory
from closelook.lrp_core.records.types import UnusableRows, UserError

#: Errors for which no row is to blame: the method, the model or the configuration is wrong.
PROGRAMMING_ERRORS = (TypeError, AttributeError, NameError, KeyError, NotImplementedError, AssertionError, ImportError)

#: Errors of the store, for which neither a row nor a method is to blame: the unit is computed again.
STORE_ERRORS = (StillUnavailable, StoreFull)

OUT_OF_MEMORY = "out_of_memory"  # the reason of a reject

Values = Mapping[Part, Any]  # what one call of `compute` returns


@dataclass
class Outcome:
    """The values of parts that share forward passes, by batch, and rejects for the rows without values."""

    values: list[Values] = field(default_factory=list)
    rejects: list[Reject] = field(default_factory=list)
    splits: int = 0  # how many batches were halved because memory ran out

    def of(self, part: Part) -> list[Any]:
        """The values of one part, in the order of batches."""
        return [values[part] for values in self.values]


Outcomes = dict[Part, Outcome | NodeFailed]


def compute_parts(
    product: Product, opened: Opened, parts: Sequence[Part], rows: Sequence[Row], cuts: Sequence[int] = (0,)
) -> Outcomes:
    """The outcome of every part, computed on `rows` in batches that start at the indices `cuts`.

    If parts that share forward passes fail together, each is computed alone; a part that fails alone has a NodeFailed.
    Ends the process if its device is lost. Raises ModelAltered if code of a package changed the model: the numbers of
    all parts may then be wrong. Raises the errors of the store, to which notes about attempts are written.
    """
    outcomes: Outcomes = {}
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
    """Computes the batches of a unit, for parts that share forward passes."""

    product: Product
    opened: Opened
    parts: Sequence[Part]
    outcome: Outcome = field(default_factory=Outcome)

    def run(self, rows: Sequence[Row], cuts: Sequence[int]) -> Outcome:
        """Compute every batch.

        Rows of a unit that has ended several processes are computed one by one, and a row that ended a process becomes
        a reject. Raises NodeFailed for such a unit without rows.
        """
        opened, attempts = self.opened, self.opened.attempts
        has_ended_processes = attempts.has_ended_processes()
        if has_ended_processes and not rows:
            raise NodeFailed(f"several processes ended while computing it{attempts.reason(COMPUTING)}")
        methods = "+".join(dict.fromkeys(part.node.artifact.method for part in self.parts))
        for start, end in pairwise([*(range(len(rows)) if has_ended_processes else cuts), len(rows)]):
            batch = rows[start:end]
            if has_ended_processes:
                sample = batch[0]["sample_id"]
                name = f"row {sample}|{methods}"
                if attempts.deaths(name):
                    detail = f"the process ended while computing it{attempts.reason(name)}"
                    self.outcome.rejects.append(Reject(sample, "ended_worker", detail))
                    continue
                attempts.run(name)
            with opened.watchdog.watching(attempts):
                self._compute(batch)
        return self.outcome

    def _compute(self, rows: Sequence[Row]) -> None:
        """Add the values of a batch to the outcome. One that raises an error is halved until rows raise alone."""
        reject = self._attempt(rows)
        if reject is None:
            return
        if len(rows) == 1:
            self.outcome.rejects.append(reject)
            return
        if reject.reason == OUT_OF_MEMORY:
            self.outcome.splits += 1
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
        middle = len(rows) // 2
        self._compute(rows[:middle])
        self._compute(rows[middle:])

    def _attempt(self, rows: Sequence[Row]) -> Reject | None:
        """Add the values of a batch to the outcome. If it fails, returns a reject with the reason instead.

        The reason is returned and not raised, so that the caller acts when all tensors of the failed batch are freed:
        the traceback of an exception that is being handled keeps them alive. Raises NodeFailed if no row is to blame.
        """
        assert self.product.compute is not None
        try:
            self.outcome.values.append(self.product.compute(self.opened, self.parts, rows))
            return None
        except (NodeFailed, ModelAltered, *STORE_ERRORS):
            raise
        except Exception as error:
            if is_device_lost(error):
                raise
            if not rows:
                raise NodeFailed(describe(error)) from error
            first = rows[0]["sample_id"]
            if is_out_of_memory(error):
                return Reject(first, OUT_OF_MEMORY, describe(error))
            if isinstance(error, UnusableRows):
                return Reject(rows[error.rows[0]]["sample_id"], error.reason, error.detail)
            if isinstance(error, UserError):
                raise NodeFailed(" ".join(str(error).split())) from error
            if isinstance(error, PROGRAMMING_ERRORS):
                names = first_and_others([row["sample_id"] for row in rows])
                raise NodeFailed(f"{describe(error)} ({names})") from error
            return Reject(first, "model_error", describe(error))


def compute_alone(compute: Callable[[Sequence[Row]], Any], rows: Sequence[Row]) -> tuple[list[Any], Outcome]:
    """The values of `compute` on `rows`, in batches if need be, and the outcome. For computations without a worker."""
    part = Part(Node(artifact=Artifact("alone")), "")
    product = Product(
        name="alone",
        title="",
        stage="",
        nodes=lambda run: (),
        compute=lambda opened, parts, rows: {part: compute(rows)},
    )
    outcome = compute_parts(product, Opened(), [part], rows)[part]
    if isinstance(outcome, NodeFailed):
        raise outcome
    return outcome.of(part), outcome


def describe(error: BaseException) -> str:
    """An error as a line of at most 300 characters, without secrets."""
    return without_secrets(f"{type(error).__name__}: {' '.join(str(error).split())}")[:300]


def first_and_others(samples: Sequence[str]) -> str:
    """Samples in words: the id of the first, and how many others."""
    return f"sample {samples[0]}" + (f" and {len(samples) - 1} others" if len(samples) > 1 else "")


def that_fits(compute: Any, token_budget: int) -> tuple[Any, int]:
    """(`compute(token_budget)`, how often the budget was halved): it is halved as long as memory runs out."""
    splits = 0
    while True:
        try:
            return compute(token_budget >> splits), splits
        except Exception as error:
            if not is_out_of_memory(error) or token_budget >> splits <= 1:
                raise
            splits += 1
