"""Close Look's table 8: seconds of one sample's backward pass and aggregation, by modified and by explicit gradients.

The protocol of section 5.4: batch size 1, samples of sva, single precision, medians over samples. Methods take turns on
every sample, in an order drawn anew, so that none always follows the one that leaves the caches cold.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from jobs.bench.harness import Bench, paired_ratio, summary, synchronise
from lrp_core import Batch, ModelView
from lrp_core.explained import CONTRASTIVE
from lrp_core.methods import EPSILON
from lrp_core.methods.explicit import relevance_flow
from lrp_core.methods.gradients import READINGS, attribution
from lrp_core.scope import rules_on

_NOTHING: AbstractContextManager = nullcontext()
METHODS = ("gradient_x_input", "lrp", "attnlrp", "attnlrp_explicit")


def table_8(bench: Bench, subject: dict[str, str], view: ModelView, batches: Sequence[Batch], **details: str) -> None:
    """Plain gradient x input, lrp, attnlrp and explicit attnlrp on every batch of one sample, and their ratios.

    `subject` is the `model` of a config or a `geometry` with random weights; `details` go into the rows.
    The report reads the rows of this part: `backward_ms` of each method, and the `speedup` over attnlrp_explicit.
    """
    backward, forward = measure(view, batches)
    (name,) = subject.values()
    columns = {**subject, **details, "dtype": str(view.dtype).removeprefix("torch.")}
    for method in METHODS:
        timed = {"forward_ms": _milliseconds(forward[method]), "backward_ms": _milliseconds(backward[method])}
        bench.row(part="table_8", **columns, method=method, **timed)
    medians = ", ".join(f"{method} {1e3 * summary(backward[method])['median']:.3g}" for method in METHODS)
    print(f"{name}: median ms of backward and aggregation over {len(batches)} samples: {medians}", flush=True)
    for method, target in (("attnlrp", 1.05), ("lrp", 0.95)):
        ratio = paired_ratio(backward[method], backward["gradient_x_input"])
        bench.ratio(f"{method} backward / plain", ratio.pop("median"), target, "lower", **subject, **ratio)
    speedup = paired_ratio(backward["attnlrp_explicit"], backward["attnlrp"])
    bench.row(part="table_8", **columns, method="attnlrp_explicit", speedup=dict(speedup))
    target = 1.6 if view.device.type == "cuda" else 1.15
    promised = speedup.pop("median")
    bench.ratio("explicit / attnlrp backward", promised, target, "higher", **subject, **speedup)
    whole = {method: [sum(pair) for pair in zip(forward[method], backward[method], strict=True)] for method in METHODS}
    total = paired_ratio(whole["attnlrp"], whole["gradient_x_input"])
    bench.row(part="forward and backward", **columns, method="attnlrp / plain", ratio=total)


def _milliseconds(seconds: Sequence[float]) -> dict[str, Any]:
    return summary([1e3 * value for value in seconds])


def measure(view: ModelView, batches: Sequence[Batch]) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Seconds of backward pass and aggregation, and of the forward pass, of every method on every batch."""
    backward: dict[str, list[float]] = {method: [] for method in METHODS}
    forward: dict[str, list[float]] = {method: [] for method in METHODS}
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
    """Seconds of the forward pass and of backward plus aggregation, contrastive, full embeddings.

    Plain gradient x input is the stock model, without any rule of ours.
    """
    if method == "attnlrp_explicit":
        return _explicit_once(view, batch, around_backward)
    rules: AbstractContextManager = (
        nullcontext() if method == "gradient_x_input" else rules_on(view, [READINGS[method].composite])
    )
    with torch.enable_grad(), rules:
        token, full = view.embed(batch)
        return _timed(view, batch, token.detach().requires_grad_(), full.detach(), around_backward)


def _timed(
    view: ModelView, batch: Batch, token: torch.Tensor, full: torch.Tensor, around_backward: AbstractContextManager
) -> tuple[float, float]:
    device = str(view.device)
    synchronise(device)
    start = time.perf_counter()
    explained = CONTRASTIVE.of(view.logits(view.hidden(batch, token), batch))
    synchronise(device)
    middle = time.perf_counter()
    with around_backward:
        (gradient,) = torch.autograd.grad(explained.sum(), token)
        attribution(gradient, full, batch.attention_mask, READINGS["attnlrp"].measure)
    synchronise(device)
    return middle - start, time.perf_counter() - middle


def _explicit_once(view: ModelView, batch: Batch, around_backward: AbstractContextManager) -> tuple[float, float]:
    device = str(view.device)
    with torch.enable_grad():
        token = view.embed(batch)[0].detach().requires_grad_()
        synchronise(device)
        start = time.perf_counter()
        with relevance_flow(view, EPSILON):
            state = view.prediction(view.hidden(batch, token), batch)
        explained = CONTRASTIVE.of(view.unembed(final := state.detach().requires_grad_(), batch))
        synchronise(device)
        middle = time.perf_counter()
        with around_backward:
            (gradient,) = torch.autograd.grad(explained.sum(), final)
            (relevance,) = torch.autograd.grad(state, token, final.detach() * gradient)
            relevance.sum(-1).masked_fill(batch.attention_mask == 0, 0)
        synchronise(device)
        return middle - start, time.perf_counter() - middle
