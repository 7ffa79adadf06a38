"""Relevance of a batch of view rows by every requested method, with its cost. Imports no Ray.

Methods that packages bring end nothing but their own cells, and explain logits of the model.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from alti import AltiRelevance
from jobs.methods import METHODS
from jobs.plan.finer import KEPT
from jobs.plan.units import LABELS_PASS
from jobs.products.record import Exited, Row
from lrp_core import Batch, ModelView, Relevance, Request
from lrp_core.device.clock import StageClock
from lrp_core.device.memory import peak_memory
from lrp_core.methods.record import Method
from lrp_core.parts.neuron_names import NeuronNames
from lrp_core.readers.predictions import with_predictions
from lrp_core.readers.readout import label_logits
from lrp_core.records.explained import needs_foil
from lrp_core.records.finer import FINER
from lrp_core.records.registry import OURS
from lrp_core.records.types import UserError, span_row
from lrp_core.views.guard import ROUNDING, undisturbed


@dataclass(frozen=True)
class Timing:
    """The cost of a pass over a batch, or of the share of one method in it."""

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

    def only(self, samples: Collection[str]) -> ExplainedBatch:
        """The rows of these samples."""
        kept = [index for index, row in enumerate(self.rows) if row["sample_id"] in samples]
        relevance = {request: result.mapped(lambda tensor: tensor[kept]) for request, result in self.relevance.items()}
        return replace(self, rows=tuple(self.rows[index] for index in kept), relevance=relevance)


@dataclass(frozen=True)
class Explainer:
    """A loaded model with the requests for it, by names of `methods`; `settings` are passed to functions that take
    them.
    """

    view: ModelView
    requests: tuple[Request, ...]
    product: str = "relevance"  # or what is asked for beside that of tokens: heads, layers
    settings: Mapping[str, Any] = field(default_factory=dict)
    methods: Mapping[str, Method] = field(default_factory=lambda: METHODS)
    metered: set[int] = field(default_factory=set)  # lengths, by powers of two, whose memory is known

    def batch(self, rows: Sequence[Row]) -> ExplainedBatch:
        """Explain a batch in every pass. Rows without a target are explained for the model's own prediction.

        Raises whatever a model raises on bad input or too little memory.
        """
        rows = with_predictions(self.view, rows)
        asked = list(map(with_span, rows))
        batch = Batch.collate(asked, pad_id=self.view.pad_id)  # on the CPU, where checks wait for no device
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
            of_packages = {
                r: of_request for r, of_request in explained_by.items() if is_brought(self.methods[r.method])
            }
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
        """True where the batch's memory is unknown yet. A CPU tells it only by a second, slow run."""
        bucket = (length - 1).bit_length()
        new = bucket not in self.metered
        self.metered.add(bucket)
        return new

    def _explain(
        self, method: Method, batch: Batch, requests: Sequence[Request], clock: StageClock | None = None
    ) -> dict[Request, Relevance]:
        """The relevance for the `requests` of a group, whose methods share forwards."""
        asked = {request: self.methods[request.method].bound(request) for request in requests}
        available = {name for request in requests for name in self.methods[request.method].given}
        kept = KEPT.get(self.product)
        finer_names = () if kept is None else (kept.name, *kept.beside)
        capabilities = self.view.family.capabilities
        finer = {name: True for name in finer_names if name in available and set(FINER[name].needs) <= capabilities}
        distinct = list(dict.fromkeys(asked.values()))
        settings = {"token_budget": batch.input_ids.numel(), **self.settings}  # variants of rows fit where the rows do
        with staying():
            results = method.compute(self.view, batch, distinct, clock=clock, **finer, **settings)
        return {request: results[base] for request, base in asked.items()}

    def _passes(self, has_foil: bool) -> Iterator[tuple[Method, tuple[Request, ...]]]:
        """Requests that are computed together, and one of their methods."""
        passes: dict[Any, list[Request]] = {}
        for request in self.requests:
            if has_foil or not needs_foil(request.explanation):
                passes.setdefault(self.methods[request.method].group, []).append(request)
        for requests in passes.values():
            yield self.methods[requests[0].method], tuple(requests)


def with_span(row: Row, part: int | None = None) -> Row:
    """A view row that explains all tokens of its answer, or those of one `part` of it; other rows are unchanged."""
    answer = row.get("answer_ids")
    if not answer or "span" in row:
        return row
    weights = None if part is None else [float(answer_part == part) for answer_part in row["answer_parts"]]
    return span_row(row, row["position"] - len(answer) + 1, answer, weights)


def _planned(results: Mapping[Request, Relevance]) -> tuple[int, int] | tuple[()]:
    """The largest plan of an ALTI pass: its bytes, and the vectors it held at a time."""
    plans = [plan for result in results.values() if isinstance(result, AltiRelevance) for plan in result.plans]
    largest = max(plans, key=lambda plan: plan.bytes, default=None)
    return () if largest is None else (largest.bytes, largest.chunk.vectors)


@contextmanager
def staying() -> Iterator[None]:
    """A method runs inside. Raises Exited where it would end the process; Ctrl-C and Ray's SIGTERM do end it."""
    try:
        yield
    except Exception:
        raise
    except BaseException as error:
        # Signals are raised in the main thread alone; Ray's say so.
        stopped = isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread()
        if stopped or getattr(error, "ray_terminate_msg", None) is not None:
            raise
        raise Exited(": ".join(filter(None, (type(error).__name__, " ".join(str(error).split()))))) from error


def is_brought(method: Method) -> bool:
    """True of a method whose function an installed package brings."""
    return method.base not in METHODS or METHODS.owner(method.base) != OURS


def check_against_model(
    view: ModelView, batch: Batch, rows: Sequence[Mapping[str, Any]], relevance: Mapping[Request, Relevance]
) -> None:
    """Raises UserError where `relevance` is of other logits than one more forward gives, but for rounding."""
    batch = batch.to(view.device)
    with torch.no_grad(), undisturbed(view):
        state = view.prediction(view.hidden(batch), batch)
        of_targets = view.unembed(state, batch)  # [B, 2], [B, 1] without foils
        of_labels = label_logits(view, state) if any(request.label is not None for request in relevance) else None
    rounding = ROUNDING[str(view.dtype).removeprefix("torch.")]
    for request, explained in relevance.items():
        model_logits = of_targets if request.label is None or of_labels is None else of_labels[:, [request.label]]
        method_logits = {"logit_target": explained.logit_target, "logit_foil": explained.logit_foil}
        for (name, values), expected in zip(method_logits.items(), model_logits.unbind(1), strict=False):
            if values is not None:
                _check(f"method {request.method}: its {name}", values.cpu(), expected.cpu(), rounding, rows)


def _check(
    quantity: str, values: torch.Tensor, expected: torch.Tensor, rounding: float, rows: Sequence[Mapping[str, Any]]
) -> None:
    """Raises UserError where two tensors [B] differ."""
    wrong = (values - expected).abs() > rounding * expected.abs().clamp(min=1)
    if wrong.any():
        at = int(wrong.nonzero()[0])
        difference = f"{quantity} of sample {rows[at]['sample_id']} is {values[at]:g}"
        raise UserError(f"{difference}, and the model's is {expected[at]:g}")
