"""Table 8 of Close Look: seconds of one sample's backward pass and aggregation, by modified or explicit gradients.

The protocol of its section 5.4: batch size 1, samples of sva, single precision, medians over samples. All methods run
on every sample, in an order that is drawn anew for each, so that none always runs after the one that leaves cold
caches.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import torch

from closelook.jobs.bench.record import Results, paired_ratio, seconds_of, summary
from closelook.lrp_core import Batch, ModelView, Request
from closelook.lrp_core.methods import EPSILON
from closelook.lrp_core.methods.gradients import READINGS, Reading, explicit_rules, fields_of, forward_pass
from closelook.lrp_core.records.explained import CONTRASTIVE

_NOTHING: AbstractContextManager = nullcontext()
Seconds = dict[str, list[float]]  # by method, of every sample
METHODS = ("gradient_x_input", "lrp", "attnlrp", "attnlrp_explicit")
_EXPLICIT = Reading(explicit_rules(EPSILON), READINGS["attnlrp"].measure, conserves=True)
_READINGS = {"lrp": READINGS["lrp"], "attnlrp": READINGS["attnlrp"], "attnlrp_explicit": _EXPLICIT}


def table_8(results: Results, view: ModelView, batches: Sequence[Batch], **details: str) -> None:
    """Measure all METHODS on every batch of one sample, and add rows and ratios to `results`."""
    backward, forward = measure(view, batches)
    add_table_8(results, view, backward, forward, **details)


def add_table_8(results: Results, view: ModelView, backward: Seconds, forward: Seconds, **details: str) -> None:
    """Add the rows and ratios of measured seconds to `results`; `details` go into the rows.

    The report reads `backward_ms` of each method, and the `speedup` over attnlrp_explicit.
    """
    columns = {**details, "dtype": str(view.dtype).removeprefix("torch.")}
    medians = []
    for method in METHODS:
        timed = {"forward_ms": _milliseconds(forward[method]), "backward_ms": _milliseconds(backward[method])}
        results.row(part="table_8", **columns, method=method, **timed)
        medians.append(f"{method} {timed['backward_ms']['median']:.3g}")
    shown = ", ".join(medians)
    samples = len(backward["lrp"])
    print(f"{results.title}: median ms of backward and aggregation over {samples} samples: {shown}", flush=True)
    for method, target in (("attnlrp", 1.05), ("lrp", 0.95)):
        results.paired(f"{method} backward / plain", (backward[method], backward["gradient_x_input"]), target)
    explicit = backward["attnlrp_explicit"], backward["attnlrp"]
    results.row(part="table_8", **columns, method="attnlrp_explicit", speedup=paired_ratio(*explicit))
    target = 1.6 if view.device.type == "cuda" else 1.15
    results.paired("explicit / attnlrp backward", explicit, target, "higher")
    ours, plain = (
        [sum(pair) for pair in zip(forward[method], backward[method], strict=True)]
        for method in ("attnlrp", "gradient_x_input")
    )
    total = paired_ratio(ours, plain)
    results.row(part="forward and backward", **columns, method="attnlrp / plain", ratio=total)


def _milliseconds(seconds: Sequence[float]) -> dict[str, float]:
    """The summary of values in seconds, in milliseconds."""
    return summary([1e3 * value for value in seconds])


def measure(view: ModelView, batches: Sequence[Batch]) -> tuple[Seconds, Seconds]:
    """(backward with aggregation, forward): seconds on every batch, by method."""
    backward: Seconds = {method: [] for method in METHODS}
    forward: Seconds = {method: [] for method in METHODS}
    for method in METHODS:
        once(view, batches[0], method)  # warm up
    order = list(METHODS)
    source = random.Random(0)
    for batch in batches:
        source.shuffle(order)
        for method in order:
            before, after = once(view, batch, method)
            backward[method].append(after)
            forward[method].append(before)
    return backward, forward


def once(
    view: ModelView, batch: Batch, method: str, around_backward: AbstractContextManager = _NOTHING
) -> tuple[float, float]:
    """Seconds of the forward pass, and of the backward pass with aggregation, for one batch.

    The explanation is contrastive, with full embeddings. Plain gradient x input runs the model without any of
    closelook's rules.
    """
    timed = _Plain(view, batch) if method == "gradient_x_input" else _Ruled(view, batch, _READINGS[method])
    with torch.enable_grad():
        forward_s = seconds_of(timed.forward)
        with around_backward:
            return forward_s, seconds_of(timed.aggregate)


class _Plain:
    """Gradient x input of one batch, without rules."""

    def __init__(self, view: ModelView, batch: Batch) -> None:
        self._view, self._batch = view, batch
        self._token = view.tokens(batch).detach().requires_grad_()

    def forward(self) -> None:
        with self._view.token_embedding.register_forward_hook(lambda *_: self._token):
            self._explained = CONTRASTIVE.of(self._view.logits(self._batch)).sum()

    def aggregate(self) -> None:
        (gradient,) = torch.autograd.grad(self._explained, self._token)
        (gradient * self._token).sum(-1).masked_fill(self._batch.attention_mask == 0, 0)


class _Ruled:
    """Relevance of one batch by the rules of a reading."""

    def __init__(self, view: ModelView, batch: Batch, reading: Reading) -> None:
        self._view, self._batch, self._reading = view, batch, reading

    def forward(self) -> None:
        self._pass = forward_pass(self._view, self._batch, self._batch, [CONTRASTIVE.name], [self._reading.composite])

    def aggregate(self) -> None:
        numbers = self._pass.output[CONTRASTIVE.name]
        gradients = self._pass.gradients(numbers, self._reading.composite, keep=False)
        fields_of(Request("attnlrp"), self._reading, gradients, self._batch)
