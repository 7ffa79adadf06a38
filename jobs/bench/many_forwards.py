"""Integrated gradients and AtMan beside as many bare passes of the model, for `closelook bench perturb`."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from jobs.bench.harness import Bench, interleave, paired_ratio, summary
from jobs.bench.samples import alone, random_row
from lrp_core import Batch, ModelView
from lrp_core.attention import around_attention
from lrp_core.memory import peak_memory
from lrp_core.methods import METHODS

STEPS = 50
IG_TARGET = 1.05  # seconds, of as many forwards and backwards
CAPTUM_TARGET = 1.0  # seconds, of captum's
MEMORY_TARGET = 1.2  # peak bytes, of bare passes under the same token budget
#: Times as fast as one forward a token at batch size 1: on a CPU a masked model gains by batching alone, a causal one
#: by what stands before the suppressed token.
ATMAN_MASKED, ATMAN_CAUSAL, ATMAN_GPU = 1.1, 1.8, 5.0

Runs = Mapping[str, Callable[[], Any]]


def many_forwards(bench: Bench, name: str, view: ModelView, length: int, token_budget: int, repeats: int) -> None:
    """Both methods on one sample of `length` tokens: time, and the most bytes held beyond the weights."""
    batch = alone(random_row(view, length, random.Random(0))).to(view.device)
    integrated_gradients(bench, name, view, batch, token_budget, repeats)
    atman(bench, name, view, batch, token_budget, repeats)


def integrated_gradients(
    bench: Bench, name: str, view: ModelView, batch: Batch, token_budget: int, repeats: int
) -> None:
    """Against bare forwards and backwards in the same batches, and against captum's where it is installed."""
    method, length = METHODS["integrated_gradients"], batch.input_ids.shape[1]
    rows = min(STEPS, max(1, token_budget // length))
    token = view.token_embedding(batch.input_ids).detach()

    def ours() -> Tensor:
        return method(view, batch, explanation="target", steps=STEPS, token_budget=token_budget).tokens

    def bare() -> None:
        for start in range(0, STEPS, rows):
            leaf = token.repeat(min(rows, STEPS - start), 1, 1).requires_grad_()
            torch.autograd.grad(_target(view, batch, leaf).sum(), leaf)

    runs: dict[str, Callable[[], Any]] = {method.name: ours, "bare": bare}
    if find_spec("captum") is not None:
        runs["captum"] = lambda: _captum(view, batch, token, rows)
        theirs, own = runs["captum"](), ours()
        difference = float((theirs - own).abs().max() / theirs.abs().max())
        bench.row(part="peer", geometry=name, method=method.name, length=length, largest_difference=difference)
    seconds = _seconds(bench, method.name, name, view, length, runs, repeats)
    targets = {"bare": IG_TARGET, "captum": CAPTUM_TARGET}
    for other in (way for way in seconds if way != method.name):
        ratio = paired_ratio(seconds[method.name], seconds[other])
        label = f"{STEPS} forward-backwards" if other == "bare" else "captum's"
        title = f"T={length}: {method.name}, seconds / {label}"
        bench.ratio(title, ratio.pop("median"), targets[other], "lower", geometry=name, **ratio)
    _memory(bench, method.name, name, view, length, runs)


def atman(bench: Bench, name: str, view: ModelView, batch: Batch, token_budget: int, repeats: int) -> None:
    """Against one whole forward a token at batch size 1, with the weights of attention that suppression needs."""
    method, length = METHODS["atman"], batch.input_ids.shape[1]

    def ours() -> Tensor:
        return method(view, batch, explanation="target", token_budget=token_budget).tokens

    @torch.no_grad()
    def one_at_a_time() -> None:
        with around_attention(view, {}, stock="eager"):
            for _ in range(length):
                _target(view, batch, view.token_embedding(batch.input_ids)).cpu()

    @torch.no_grad()
    def bare() -> None:
        rows = min(length, max(1, token_budget // length))
        with around_attention(view, {}, stock="eager"):
            _target(view, batch, view.token_embedding(batch.input_ids).repeat(rows, 1, 1))

    runs = {method.name: ours, "one at a time": one_at_a_time}
    seconds = _seconds(bench, method.name, name, view, length, runs, repeats)
    ratio = paired_ratio(seconds["one at a time"], seconds[method.name])
    on_cpu = ATMAN_CAUSAL if view.kind.causal else ATMAN_MASKED
    target = ATMAN_GPU if view.device.type == "cuda" else on_cpu
    title = f"T={length}: {method.name}, times as fast as a forward a token"
    bench.ratio(title, ratio.pop("median"), target, "higher", geometry=name, **ratio)
    _memory(bench, method.name, name, view, length, {method.name: ours, "bare": bare})


def _target(view: ModelView, batch: Batch, token: Tensor) -> Tensor:
    """The target's logit of each row of token embeddings [R, T, D], of all logits where the prediction is read."""
    rows = len(token)
    hidden = view.model.base_model(
        inputs_embeds=token, attention_mask=batch.attention_mask.expand(rows, -1), **view.kind.forward_options
    ).last_hidden_state
    logits = view.unembedding(view.head(hidden[:, int(batch.position[0])]))
    return logits[:, int(batch.target_ids[0])]


def _captum(view: ModelView, batch: Batch, token: Tensor, rows: int) -> Tensor:
    """Captum's relevance of tokens [1, T] from the same points, `rows` of them in one forward."""
    from captum.attr import IntegratedGradients

    method = IntegratedGradients(lambda token: _target(view, batch, token))
    relevance = method.attribute(token, n_steps=STEPS, method="riemann_right", internal_batch_size=rows)
    return relevance.sum(-1)


def _seconds(
    bench: Bench, method: str, name: str, view: ModelView, length: int, runs: Runs, repeats: int
) -> dict[str, list[float]]:
    def timed(run: Callable[[], Any]) -> None:
        run()

    seconds = interleave({way: partial(timed, run) for way, run in runs.items()}, repeats, device=str(view.device))
    for way, taken in seconds.items():
        columns = {"part": "many forwards", "geometry": name, "method": method, "length": length, "way": way}
        bench.row(**columns, layers=view.n_layers, wall_s=summary(taken))
    return seconds


def _memory(bench: Bench, method: str, name: str, view: ModelView, length: int, runs: Runs) -> None:
    """What the token budget bounds: the bytes of passes in batches of as many tokens."""
    peaks = {}
    for way in (method, "bare"):
        with peak_memory(view.device) as peak:
            runs[way]()
        peaks[way] = peak.peak_bytes
        bench.row(part="memory", geometry=name, method=method, length=length, way=way, peak_bytes=peaks[way])
    ratio = peaks[method] / peaks["bare"]
    bench.ratio(f"T={length}: {method}, peak bytes / bare", ratio, MEMORY_TARGET, "lower", geometry=name)
