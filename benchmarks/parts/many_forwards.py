"""Integrated gradients and AtMan beside as many bare passes of the model, for `closelook bench perturb`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib.util import find_spec

import torch
from torch import Tensor

from benchmarks.harness import Bench, Runs
from benchmarks.parts.samples import logits_at, random_sample
from lrp_core import Batch, ModelView
from lrp_core.methods import METHODS
from lrp_core.readers.attention import around_attention

STEPS = 50
IG_TARGET = 1.05  # seconds, of as many forwards and backwards
CAPTUM_TARGET = 1.0  # seconds, of captum's
MEMORY_TARGET = 1.2  # peak bytes, of bare passes under the same token budget
#: Times as fast as one forward a token at batch size 1: on a CPU a masked model gains by batching alone, a causal one
#: by what stands before the suppressed token.
ATMAN_MASKED, ATMAN_CAUSAL, ATMAN_GPU = 1.1, 1.8, 5.0


def many_forwards(bench: Bench, view: ModelView, length: int) -> None:
    """Both methods on a sample of `length` tokens: time, and the peak of bytes beyond the weights."""
    batch = random_sample(view, length)
    integrated_gradients(bench, view, batch)
    atman(bench, view, batch)


def integrated_gradients(bench: Bench, view: ModelView, batch: Batch) -> None:
    """Against bare forwards and backwards in the same batches, and against captum's where it is installed."""
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
    """Against one whole forward a token at batch size 1, with the weights of attention that suppression needs."""
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
    """The target's logit of each row of token embeddings [R, T, D], of all logits where the prediction is read."""
    mask = batch.attention_mask.expand(len(token), -1)
    logits = logits_at(view, int(batch.position[0]), inputs_embeds=token, attention_mask=mask)
    return logits[:, int(batch.target_ids[0])]


def _captum(view: ModelView, batch: Batch, token: Tensor, rows: int) -> Tensor:
    """Captum's relevance of tokens [1, T] from the same points, `rows` of them in a forward pass."""
    from captum.attr import IntegratedGradients

    method = IntegratedGradients(partial(_target, view, batch))
    relevance = method.attribute(token, n_steps=STEPS, method="riemann_right", internal_batch_size=rows)
    return relevance.sum(-1)


def _memory(bench: Bench, view: ModelView, length: int, runs: Runs) -> None:
    """The memory that the token budget bounds: the bytes of a method, and of bare passes of as many tokens."""
    method, *_ = runs
    ours, bare = bench.peaks(runs, view.device, {"part": "memory", "method": method, "length": length})
    bench.ratio(f"T={length}: {method}, peak bytes / bare", ours / bare, MEMORY_TARGET, "lower")
