"""Relevance of a batch of view rows by every requested method, and what it costs. Imports no Ray.

If a method of an installed package raises an error, only its own cells fail. The logits that it returns are checked
against the model's.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch

from closelook.alti import AltiRelevance
from closelook.jobs.methods import METHODS
from closelook.jobs.plan.finer import KEPT
from closelook.jobs.plan.units import LABELS_PASS
from closelook.jobs.products.record import Row
from closelook.jobs.products.unaltered import left_unaltered
from closelook.lrp_core import Batch, ModelView, Relevance, Request
from closelook.lrp_core.device.clock import StageClock
from closelook.lrp_core.device.memory import peak_memory
from closelook.lrp_core.methods.record import Method
from closelook.lrp_core.parts.neuron_names import NeuronNames
from closelook.lrp_core.readers.predictions import with_predictions
from closelook.lrp_core.records.explained import needs_foil
from closelook.lrp_core.records.finer import FINER
from closelook.lrp_core.records.registry import OURS
from closelook.lrp_core.records.types import UserError, span_row
from closelook.lrp_core.views.guard import ROUNDING, undisturbed


@dataclass(frozen=True)
class Timing:
    """The duration of a pass (methods that share forward passes) over a batch, or of one stage of it."""

    method: str  # the name of the pass: of its only method, or of all together
    stage: str  # forward | backward | aggregate, or `method` for the whole pass
    wall_s: float
    length: int
    batch: int
    peak_bytes: int | None = None  # beyond the weights; on a CPU for the longest row alone; None: not measured
    planned_bytes: int | None = None  # what ALTI's planner reserved
    chunk: int | None = None  # vectors that ALTI held at a time


@dataclass(frozen=True)
class ExplainedBatch:
    """The relevance of one batch, on the CPU, by request, with what was timed."""

    rows: tuple[Row, ...]
    relevance: dict[Request, Relevance]
    timings: tuple[Timing, ...]
    names: NeuronNames | None = None  # of neurons, if relevance of neurons was asked for


@dataclass(frozen=True)
class Explainer:
    """A loaded model and the requests to compute on it.

    `methods` has the record of each request's method by name. `settings`, such as `seed`, are passed to the functions
    of methods that take them.
    """

    view: ModelView
    requests: tuple[Request, ...]
    product: str = "relevance"  # or a finer relevance to compute as well, such as "heads"
    settings: Mapping[str, Any] = field(default_factory=dict)
    methods: Mapping[str, Method] = field(default_factory=lambda: METHODS)
    #: Lengths (exponents of 2) whose memory is known; None: no memory is measured.
    metered: set[int] | None = field(default_factory=set)

    def batch(self, rows: Sequence[Row]) -> ExplainedBatch:
        """Explain a batch by all requests, those of a pass together.

        Rows without a target are explained for the model's own prediction. Requests that need a foil are left out of a
        batch without foils. Raises UserError for logits of a package's method that are not the model's, ModelAltered if
        such a method changed the model, and whatever the model raises on bad input or if memory runs out.
        """
        rows = with_predictions(self.view, rows)
        with_spans = list(map(with_span, rows))
        batch = Batch.collate(with_spans, pad_id=self.view.pad_id)  # on the CPU, so that checks need not wait for a GPU
        relevance: dict[Request, Relevance] = {}
        timings: list[Timing] = []
        size = (batch.input_ids.shape[1], len(batch))
        longest = Batch.collate([max(with_spans, key=lambda row: len(row["input_ids"]))], pad_id=self.view.pad_id)
        metering = self._metering(size[0])
        for method, requests in self._passes(has_foil=batch.foil_ids is not None):
            clock = StageClock(self.view.device)
            start = time.perf_counter()
            with peak_memory(self.view.device) if self._on_gpu else nullcontext() as peak:
                explained_by = self._explain(method, batch, requests, clock)
                relevance |= dict(zip(explained_by, Relevance.on_host(list(explained_by.values())), strict=True))
            wall_s = time.perf_counter() - start
            of_packages = {r: result for r, result in explained_by.items() if is_of_package(self.methods[r.method])}
            if of_packages:
                check_against_model(self.view, batch, rows, of_packages)
            if metering and not self._on_gpu:  # measuring slows a CPU very much, so it is done on one row alone
                with peak_memory() as peak:
                    self._explain(method, longest, requests)
            peak_bytes = None if peak is None else peak.peak_bytes
            of_labels = self.product == "labels"  # one backward per label: not comparable with other passes
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
        """True if peak memory is to be measured for a batch of this length, which is then noted as measured.

        It is measured once for each power of two of lengths, since on a CPU it takes another run.
        """
        bucket = (length - 1).bit_length()
        if self.metered is None:
            return False
        new = bucket not in self.metered
        self.metered.add(bucket)
        return new

    def _explain(
        self, method: Method, batch: Batch, requests: Sequence[Request], clock: StageClock | None = None
    ) -> dict[Request, Relevance]:
        """The relevance for each of the `requests`, whose methods share forward passes; `method` is any of these."""
        # methods that differ only in their names or in options of requests share a computation
        base_request_of = {request: self.methods[request.method].bound(request) for request in requests}
        available = {name for request in requests for name in self.methods[request.method].given}
        kept = KEPT.get(self.product)
        finer_names = () if kept is None else (kept.name, *kept.beside)
        capabilities = self.view.family.capabilities
        finer = {name: True for name in finer_names if name in available and set(FINER[name].needs) <= capabilities}
        distinct = list(dict.fromkeys(base_request_of.values()))
        settings = {"token_budget": batch.input_ids.numel(), **self.settings}  # as many tokens as the batch
        names = {request.method for request in requests}
        who = f"method {', '.join(sorted(names))}"
        checked = left_unaltered(self.view.model, who, names) if is_of_package(method) else nullcontext()
        with checked:
            results = method.compute(self.view, batch, distinct, clock=clock, **finer, **settings)
        return {request: results[base] for request, base in base_request_of.items()}

    def _passes(self, has_foil: bool) -> Iterator[tuple[Method, tuple[Request, ...]]]:
        """Yield (a method, the requests) for each group of requests whose methods share forward passes."""
        passes: dict[Any, list[Request]] = {}
        for request in self.requests:
            if has_foil or not needs_foil(request.explanation):
                passes.setdefault(self.methods[request.method].group, []).append(request)
        for requests in passes.values():
            yield self.methods[requests[0].method], tuple(requests)


def with_span(row: Row, part: int | None = None) -> Row:
    """A copy of a view row that asks for all tokens of its answer, or only for the sentence `part` of it.

    Rows without an answer, or with a span, are returned unchanged.
    """
    answer = row.get("answer_ids")
    if not answer or "span" in row:
        return row
    weights = None if part is None else [float(answer_part == part) for answer_part in row["answer_parts"]]
    return span_row(row, row["position"] - len(answer) + 1, answer, weights)


def _planned(results: Mapping[Request, Relevance]) -> tuple[int, int] | tuple[()]:
    """(bytes, vectors at a time) that ALTI's planner reserved for the largest plan; empty for other methods."""
    plans = [plan for result in results.values() if isinstance(result, AltiRelevance) for plan in result.plans]
    largest = max(plans, key=lambda plan: plan.bytes, default=None)
    return () if largest is None else (largest.bytes, largest.chunk.vectors)


def is_of_package(method: Method) -> bool:
    """True if the method's function belongs to an installed package, not to closelook."""
    return method.base not in METHODS or METHODS.owner(method.base) != OURS


def check_against_model(
    view: ModelView, batch: Batch, rows: Sequence[Mapping[str, Any]], relevance: Mapping[Request, Relevance]
) -> None:
    """Raises UserError if `relevance` holds other logits than one more forward pass gives, beyond rounding.

    `rows` are the rows of `batch`, whose ids the message needs.
    """
    batch = batch.to(view.device)
    with torch.no_grad(), undisturbed(view):
        of_targets = view.logits(batch)  # [B, 2], [B, 1] without foils
        of_labels = view.all_logits(batch)[:, -1] if any(request.label is not None for request in relevance) else None
    rounding = ROUNDING[str(view.dtype).removeprefix("torch.")]
    for request, explained in relevance.items():
        model_logits = of_targets if request.label is None or of_labels is None else of_labels[:, [request.label]]
        method_logits = {"logit_target": explained.logit_target, "logit_foil": explained.logit_foil}
        for (name, values), expected in zip(method_logits.items(), model_logits.cpu().unbind(1), strict=False):
            if values is None:
                continue
            wrong = (values.cpu() - expected).abs() > rounding * expected.abs().clamp(min=1)  # [B]
            for at in wrong.nonzero().flatten().tolist():
                difference = f"its {name} of sample {rows[at]['sample_id']} is {values[at]:g}"
                raise UserError(f"method {request.method}: {difference}, and the model's is {expected[at]:g}")
