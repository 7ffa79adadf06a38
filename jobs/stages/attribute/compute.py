"""From view rows to relevance, one batch at a time, whatever goes wrong with a row. No Ray here.

A row that raises, or needs more memory than there is, becomes a reject. What no row is to blame for is raised: as
:class:`MethodFailed` when a method cannot work, as it is when the device is lost, which needs a new process.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from alti import AltiRelevance
from jobs.methods import METHODS
from jobs.plan.units import LABELS_PASS
from jobs.secrets import without_secrets
from jobs.stages.attribute.brought import Exited, check_against_model, is_brought, staying
from lrp_core import Batch, ModelView, Relevance, Request
from lrp_core.clock import StageClock
from lrp_core.explained import needs_foil
from lrp_core.memory import is_device_lost, is_out_of_memory, peak_memory
from lrp_core.method import FINER, Method
from lrp_core.neuron_names import NeuronNames
from lrp_core.readout import with_predictions
from lrp_core.types import UnusableRows, UserError

#: What no row is to blame for: the method, the model or the configuration is wrong.
PROGRAMMING_ERRORS = (TypeError, AttributeError, NameError, KeyError, NotImplementedError, AssertionError, ImportError)

#: What is asked for with a product, where methods give it under their options.
BESIDE = {"neurons": ("boundaries",)}

Row = Mapping[str, Any]  # sample_id, input_ids, position, target_id, foil_id


@dataclass(frozen=True)
class Timing:
    """What one pass over one batch cost, or one method's stage of it."""

    method: str  # the pass, where it is not of one method alone
    stage: str  # forward | backward | aggregate | method: all of it
    wall_s: float
    length: int
    batch: int
    peak_bytes: int | None = None  # beyond the weights; None where it was not measured
    planned_bytes: int | None = None  # what ALTI's planner reserved
    chunk: int | None = None  # vectors it held at a time


@dataclass(frozen=True)
class ExplainedBatch:
    """The relevance of one batch, on the CPU."""

    rows: tuple[Row, ...]
    relevance: dict[Request, Relevance]
    timings: tuple[Timing, ...]
    names: NeuronNames | None = None  # where relevance of neurons is asked for


@dataclass(frozen=True)
class Reject:
    """A row that could not be explained, and why."""

    sample_id: str
    reason: str
    detail: str


class MethodFailed(RuntimeError):
    """A pass cannot work on this model, whatever the row; the message names the error."""


@dataclass
class Outcome:
    """What became of a unit's batches. `splits` counts batches halved for want of memory."""

    explained: list[ExplainedBatch] = field(default_factory=list)
    rejects: list[Reject] = field(default_factory=list)
    splits: int = 0


@dataclass(frozen=True)
class Explainer:
    """A loaded model and what to ask of it: requests by names of `methods`, `settings` for functions that know them."""

    view: ModelView
    requests: tuple[Request, ...]
    product: str = "relevance"  # or what is asked for beside that of tokens: heads, layers
    settings: Mapping[str, Any] = field(default_factory=dict)
    methods: Mapping[str, Method] = field(default_factory=lambda: METHODS)
    metered: set[int] = field(default_factory=set)  # lengths, by powers of two, whose memory is known

    def batch(self, rows: Sequence[Row]) -> ExplainedBatch:
        """One batch through every pass; rows without a target are explained for the model's own prediction.

        Raises whatever a model raises on bad input or too little memory.
        """
        rows = with_predictions(self.view, rows)
        batch = Batch.collate(rows, pad_id=self.view.pad_id)  # on the CPU, where checks wait for no device
        relevance: dict[Request, Relevance] = {}
        timings: list[Timing] = []
        size = (batch.input_ids.shape[1], len(batch))
        metering = self._metering(size[0])
        for method, requests in self._passes(has_foil=batch.foil_ids is not None):
            clock = StageClock(self.view.device)
            start = time.perf_counter()
            with peak_memory(self.view.device) if self._on_gpu else nullcontext() as peak:
                explained_by = self._explain(method, batch, requests, clock)
                relevance |= dict(zip(explained_by, Relevance.on_host(list(explained_by.values())), strict=True))
            wall_s = time.perf_counter() - start
            of_packages = {r: told for r, told in explained_by.items() if is_brought(self.methods[r.method])}
            if of_packages:
                check_against_model(self.view, batch, rows, of_packages)
            if metering and not self._on_gpu:
                with peak_memory() as peak:
                    self._explain(method, batch, requests)
            peak_bytes = None if peak is None else peak.peak_bytes
            of_labels = self.product == "labels"  # a backward a label: no measure of the others
            name = f"{method.pass_name}{LABELS_PASS}" if of_labels else method.pass_name
            timings.append(Timing(name, "method", wall_s, *size, peak_bytes, *_planned(explained_by)))
            stages = {} if of_labels else clock.seconds
            timings += [Timing(*of_pass, seconds, *size) for of_pass, seconds in stages.items()]
        names = self.view.neuron_names if self.product == "neurons" else None
        return ExplainedBatch(tuple(rows), relevance, tuple(timings), names)

    @property
    def _on_gpu(self) -> bool:
        return self.view.device.type == "cuda"

    def _metering(self, length: int) -> bool:
        """Whether such a batch's memory is unknown yet. A CPU tells it only at the cost of a second, slow run."""
        bucket = (length - 1).bit_length()
        new = bucket not in self.metered
        self.metered.add(bucket)
        return new

    def _explain(
        self, method: Method, batch: Batch, requests: Sequence[Request], clock: StageClock | None = None
    ) -> dict[Request, Relevance]:
        """What `requests` of the group of `method` ask for; functions know methods by the names of their records."""
        asked = {request: self.methods[request.method].bound(request) for request in requests}
        given = {name for request in requests for name in self.methods[request.method].given}
        wanted = (self.product, *BESIDE.get(self.product, ()))
        capabilities = self.view.family.capabilities
        finer = {name: True for name in wanted if name in given and set(FINER[name][1]) <= capabilities}
        distinct = list(dict.fromkeys(asked.values()))
        settings = {"token_budget": batch.input_ids.numel(), **self.settings}  # variants of rows fit where the rows do
        with staying():
            results = method.compute(self.view, batch, distinct, clock=clock, **finer, **settings)
        return {request: results[base] for request, base in asked.items()}

    def _passes(self, has_foil: bool) -> Iterator[tuple[Method, tuple[Request, ...]]]:
        """Requests that are computed together, and one of their methods."""
        possible = [request for request in self.requests if has_foil or not needs_foil(request.explanation)]
        for requests in replace(self, requests=tuple(possible)).by_pass():
            yield self.methods[requests[0].method], requests

    def by_pass(self) -> list[tuple[Request, ...]]:
        """Requests that are computed together."""
        return self._grouped(lambda request: self.methods[request.method].group)

    def by_method(self) -> list[tuple[Request, ...]]:
        return self._grouped(lambda request: request.method)

    def _grouped(self, key: Callable[[Request], Any]) -> list[tuple[Request, ...]]:
        groups: dict[Any, list[Request]] = {}
        for request in self.requests:
            groups.setdefault(key(request), []).append(request)
        return [tuple(group) for group in groups.values()]


def explain(explainer: Explainer, rows: Sequence[Row], outcome: Outcome) -> None:
    """Add the relevance of a planned batch to `outcome`.

    Out of memory halves the batch. A row that raises becomes a reject and its place is taken by a stand-in of the same
    shape, so that its neighbours keep the numbers they would have had.
    Raises MethodFailed, and the error of a lost device.
    """
    attempted = _attempt(explainer, rows)
    if isinstance(attempted, ExplainedBatch):
        outcome.explained.append(attempted)
    elif attempted.reason == "out_of_memory":
        _explain_halves(explainer, rows, outcome, attempted)
    else:
        _explain_around(explainer, rows, outcome)


def explain_singly(explainer: Explainer, rows: Sequence[Row], outcome: Outcome) -> dict[str, ExplainedBatch]:
    """Each row alone, by sample id; rows that raise become rejects of `outcome`.

    Raises MethodFailed, and the error of a lost device.
    """
    explained = {}
    for row in rows:
        attempted = _attempt(explainer, [row])
        if isinstance(attempted, ExplainedBatch):
            explained[row["sample_id"]] = attempted
        else:
            outcome.rejects.append(attempted)
    return explained


def describe(error: BaseException) -> str:
    return without_secrets(f"{type(error).__name__}: {' '.join(str(error).split())}")[:300]


def _attempt(explainer: Explainer, rows: Sequence[Row]) -> ExplainedBatch | Reject:
    """The batch's relevance, or why it has none as a reject of its first row.

    What is done about it is done by the caller, when nothing of the failed batch is alive any more: the traceback of an
    error that is being handled holds every tensor of the graph.
    """
    try:
        return explainer.batch(rows)
    except Exception as error:
        if is_out_of_memory(error):
            return Reject(rows[0]["sample_id"], "out_of_memory", describe(error))
        if is_device_lost(error):
            raise
        if isinstance(error, UnusableRows):
            return Reject(rows[error.rows[0]]["sample_id"], error.reason, error.detail)
        if isinstance(error, UserError):
            raise MethodFailed(" ".join(str(error).split())) from error
        if isinstance(error, PROGRAMMING_ERRORS):
            raise MethodFailed(f"{describe(error)} ({named([row['sample_id'] for row in rows])})") from error
        if isinstance(error, Exited) and len(rows) == 1:  # of more, the row that is to blame is sought
            raise MethodFailed(f"{without_secrets(str(error))[:300]} ({named([rows[0]['sample_id']])})") from error
        return Reject(rows[0]["sample_id"], "model_error", describe(error))


def named(samples: Sequence[str]) -> str:
    """Samples in words, by the first of their ids."""
    return f"sample {samples[0]}" + (f" and {len(samples) - 1} others" if len(samples) > 1 else "")


def _explain_halves(explainer: Explainer, rows: Sequence[Row], outcome: Outcome, reject: Reject) -> None:
    if explainer.view.device.type == "cuda":
        torch.cuda.empty_cache()
    if len(rows) == 1:
        outcome.rejects.append(reject)
        return
    outcome.splits += 1
    middle = len(rows) // 2
    explain(explainer, rows[:middle], outcome)
    explain(explainer, rows[middle:], outcome)


def _explain_around(explainer: Explainer, rows: Sequence[Row], outcome: Outcome) -> None:
    """A row of the batch raises: find it, then explain the others in a batch of the planned shape."""
    singles = explain_singly(explainer, rows, outcome)
    if not singles:
        return
    healthy = next(row for row in rows if row["sample_id"] in singles)
    whole = [row if row["sample_id"] in singles else _stand_in(row, healthy) for row in rows]
    explained = _attempt(explainer, whole)
    if isinstance(explained, Reject):  # no single row is to blame: what the rows gave alone is what there is
        outcome.explained.extend(singles.values())
        return
    outcome.explained.append(_keep(explained, [i for i, row in enumerate(rows) if row["sample_id"] in singles]))


def _stand_in(row: Row, healthy: Row) -> Row:
    """A row with the length and position of `row` and tokens of `healthy`."""
    tokens = list(healthy["input_ids"])
    length = len(row["input_ids"])
    repeated = (tokens * (length // len(tokens) + 1))[:length]
    types = None if row.get("token_type_ids") is None else [0] * length
    said, position = row.get("decoder_input_ids"), min(row["position"], length - 1)
    if said is not None:  # what a decoder has seen, its start token first
        said, position = [said[0], *(tokens * len(said))[: len(said) - 1]], min(row["position"], len(said) - 1)
    return {
        **healthy,
        "decoder_input_ids": said,
        "token_type_ids": types,
        "sample_id": row["sample_id"],
        "input_ids": repeated,
        "position": position,
    }


def _keep(explained: ExplainedBatch, indices: list[int]) -> ExplainedBatch:
    relevance = {
        request: result.mapped(lambda tensor: tensor[indices]) for request, result in explained.relevance.items()
    }
    return replace(explained, rows=tuple(explained.rows[i] for i in indices), relevance=relevance)


def _planned(results: Mapping[Request, Relevance]) -> tuple[int, int] | tuple[()]:
    """The largest plan of an ALTI pass: its bytes, and the vectors it held at a time."""
    plans = [plan for result in results.values() if isinstance(result, AltiRelevance) for plan in result.plans]
    largest = max(plans, key=lambda plan: plan.bytes, default=None)
    return () if largest is None else (largest.bytes, largest.chunk.vectors)
