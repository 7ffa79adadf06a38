"""Integrated gradients and AtMan, compared with as many bare passes of the model, for `closelook bench perturb`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib.util import find_spec

import torch
from torch import Tensor

from benchmarks.parts.harness import Bench, Runs
from benchmarks.parts.samples import logits_at, random_sample
from lrp_core import Batch, ModelView
from lrp_core.methods import METHODS
from lrp_core.readers.attention import around_attention

STEPS = 50
IG_TARGET = 1.05  # seconds / seconds of as many bare forward and backward passes
CAPTUM_TARGET = 1.0  # seconds / captum's seconds
MEMORY_TARGET = 1.2  # peak bytes / peak bytes of bare passes under the same token budget
#: How many times as fast AtMan is as one forward pass for each token at batch size 1. On a CPU, a masked model gains
#: only by batches; a causal one also because the tokens before the suppressed one need not be read again.
ATMAN_MASKED, ATMAN_CAUSAL, ATMAN_GPU = 1.1, 1.8, 5.0


def many_forwards(bench: Bench, view: ModelView, length: int) -> None:
    """Measures both methods on a sample of `length` tokens: seconds, and peak bytes in addition to the weights."""
    batch = random_sample(view, length)
    integrated_gradients(bench, view, batch)
    atman(bench, view, batch)


def integrated_gradients(bench: Bench, view: ModelView, batch: Batch) -> None:
    """Compares with bare forward and backward passes in the same batches, and with captum if it is installed."""
    name, length, budget = "integrated_gradients", batch.input_ids.shape[1], bench.chosen.token_budget
    rows = min(STEPS, max(1, budget // length))
    token = view.token_embedding(batch.input_ids).detach()
    explain = partial(METHODS[name], view, batch, explanation="target", steps=STEPS, token_budget=budget)

    def bare() -> None:
        for start in range(0, STEPS, rows):
            leaf = token.repeat(min(rows, STEPS - start), 1, 1).requires_grad_()
            torch.autograd.grad(_target(view, batch, leaf).sum(), leaf)

    runs: dict[str, Callable[[], object]] = {name: explain, "bare": bare}
    titles = {"bare": (f"{STEPS} forward-backwards", IG_TARGET), "captum": ("captum's", CAPTUM_TARGET)}
    if find_spec("captum") is not None:
        runs["captum"] = partial(_captum, view, batch, token, rows)
        peer = _captum(view, batch, token, rows)
        difference = float((peer - explain().tokens).abs().max() / peer.abs().max())
        bench.row(part="peer", method=name, length=length, largest_difference=difference)
    facts = {"part": "many forwards", "method": name, "length": length, "layers": view.n_layers}
    timed = bench.timed(runs, bench.chosen.repeats, facts, measure="wall_s")
    ours, *others = timed.items()
    for other, seconds in others:
        title, target = titles[other]
        bench.paired(f"T={length}: {name}, seconds / {title}", (ours[1], seconds), target)
    _memory(bench, view, length, {name: explain, "bare": bare})


def atman(bench: Bench, view: ModelView, batch: Batch) -> None:
    """Compares with one whole forward pass for each token, at batch size 1, by eager attention as AtMan needs it."""
    name, length, budget = "atman", batch.input_ids.shape[1], bench.chosen.token_budget
    explain = partial(METHODS[name], view, batch, explanation="target", token_budget=budget)
    rows = min(length, max(1, budget // length))

    @torch.no_grad()
    def one_at_a_time() -> None:
        with around_attention(view, {}, stock="eager"):
            for _ in range(length):
                _target(view, batch, view.token_embedding(batch.input_ids)).cpu()

    @torch.no_grad()
    def bare() -> None:
        with around_attention(view, {}, stock="eager"):
            _target(view, batch, view.token_embedding(batch.input_ids).repeat(rows, 1, 1))

    runs: Runs = {name: explain, "one at a time": one_at_a_time}
    facts = {"part": "many forwards", "method": name, "length": length, "layers": view.n_layers}
    timed = bench.timed(runs, bench.chosen.repeats, facts, measure="wall_s")
    ours, single = timed.values()
    on_cpu = ATMAN_CAUSAL if view.kind.causal else ATMAN_MASKED
    target = ATMAN_GPU if view.device.type == "cuda" else on_cpu
    bench.paired(f"T={length}: {name}, times as fast as a forward a token", (single, ours), target, "higher")
    _memory(bench, view, length, {name: explain, "bare": bare})


def _target(view: ModelView, batch: Batch, token: Tensor) -> Tensor:
    """The target's logit [R] for each row of token embeddings [R, T, D]; all logits of that position are computed."""
    mask = batch.attention_mask.expand(len(token), -1)
    logits = logits_at(view, int(batch.position[0]), inputs_embeds=token, attention_mask=mask)
    return logits[:, int(batch.target_ids[0])]


def _captum(view: ModelView, batch: Batch, token: Tensor, rows: int) -> Tensor:
    """Captum's relevance of tokens [1, T] at the same points of the path, `rows` of them in each forward pass."""
    from captum.attr import IntegratedGradients

    method = IntegratedGradients(partial(_target, view, batch))
    relevance = method.attribute(token, n_steps=STEPS, method="riemann_right", internal_batch_size=rows)
    return relevance.sum(-1)


def _memory(bench: Bench, view: ModelView, length: int, runs: Runs) -> None:
    """Compares the peak bytes of a method with those of bare passes of as many tokens: the budget limits both."""
    method, *_ = runs
    ours, bare = bench.peaks(runs, view.device, {"part": "memory", "method": method, "length": length})
    bench.ratio(f"T={length}: {method}, peak bytes / bare", ours / bare, MEMORY_TARGET, "lower")
