"""`closelook bench perturb`: the cost of deletion and insertion curves and of methods with many forward passes.

Each is timed against bare passes: batches of the same shape without any perturbation, through the model's own head at
the readout position. The methods are integrated gradients and AtMan. Models have random weights and the shapes of real
ones, texts are random tokens. Runs without Ray.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.parts.harness import WALL, Bench, Runs, interleave, parser, positive
from benchmarks.parts.samples import logits_at, model_of, random_sample
from closelook.evaluation.scoring.faithfulness.flipping import Flipper
from closelook.evaluation.scoring.faithfulness.flips import Ranking, States, candidates, flip_counts, tie_order
from closelook.jobs.bench.record import summary
from closelook.lrp_core import METHODS, Batch, ModelView
from closelook.lrp_core.readers.attention import around_attention
from closelook.lrp_core.records.kinds import ZERO
from closelook.lrp_core.verification.samples import random_rows

CASES = (("gpt2", 128), ("gpt2", 512), ("bert-base", 128))  # shape of the model, and tokens of a sample
TARGET = 0.9  # rows a second over those of bare forwards
METHOD_LENGTH = 128  # tokens of the sample that methods with many forwards explain
QUICK_LENGTH = 64  # the most tokens with --quick
STEPS, IG_TARGET = 50, 1.05  # seconds / seconds of as many bare forward and backward passes
MEMORY_TARGET = 1.2  # peak bytes / peak bytes of bare passes under the same token budget
#: How many times as fast AtMan is as one forward pass for each token at batch size 1. On a CPU, a masked model gains
#: only by batches; a causal one also because the tokens before the suppressed one need not be read again.
ATMAN_MASKED, ATMAN_CAUSAL, ATMAN_GPU = 1.1, 1.8, 5.0


def main(arguments: Sequence[str] | None = None) -> dict:
    """Run all parts on every chosen shape; see `--help`. Returns the result as JSON."""
    names = tuple(dict.fromkeys(name for name, _ in CASES))
    options = parser("perturb", __doc__)
    options.geometries(*names, among=names)
    options.layers()
    options.add_argument("--rows", type=positive, help="states in all, about; default 4 batches")
    options.number("--repeats", 5, "of each timing", quick=2)
    options.number("--token-budget", 4096, "tokens of a batch", quick=1024, on_gpu=65536)
    options.devices()
    results = options.begin(arguments)
    chosen = results.chosen
    longest = QUICK_LENGTH if chosen.quick else max(length for _, length in CASES)
    for name, length in dict.fromkeys((name, min(length, longest)) for name, length in CASES):
        if name in chosen.geometry:
            speed(results.about(geometry=name), length)
    for name in chosen.geometry:
        view = model_of(name, chosen)
        packing(results.about(geometry=name), view)
        batch = random_sample(view, min(METHOD_LENGTH, longest))
        integrated_gradients(results.about(geometry=name), view, batch)
        atman(results.about(geometry=name), view, batch)
    return results.finish()


def speed(bench: Bench, length: int) -> None:
    """Measure the rows a second, and the peak bytes, of states of curves and of bare forwards in the same batches."""
    chosen, view = bench.chosen, model_of(bench.title, bench.chosen)
    budget = chosen.token_budget
    size = max(1, budget // length)  # rows of one full batch
    rows = chosen.rows or 4 * size
    samples = [(row, _states(view, row, rows // 2)) for row in random_rows(view, (length, length))]
    count = sum(len(states.removed) for _, states in samples)
    flip = Flipper(view, ZERO, budget).run
    runs: Runs = {"flipped": partial(flip, samples), "bare": partial(_bare, view, length, count, budget)}
    seconds = interleave(runs, chosen.repeats)
    facts = {"part": "speed", "length": length, "layers": view.n_layers, "rows": count, "unit": "rows per second"}
    for way, taken in seconds.items():
        bench.row(**facts, way=way, **summary([count / value for value in taken]))
    bench.paired(f"T={length}: rows/s flipped / bare", (seconds["bare"], seconds["flipped"]), TARGET, "higher")
    row, states = samples[0]
    one_batch = States(states.removed[:size], ())
    bare = partial(_bare, view, length, len(one_batch.removed), budget)
    _memory(bench, view, "flipped", length, {"flipped": partial(flip, [(row, one_batch)]), "bare": bare})


def packing(bench: Bench, view: ModelView) -> None:
    """Compare logits of states in full batches with those of one state each: the largest by the standard deviation."""
    samples = [(row, _states(view, row, 40)) for row in random_rows(view, (8, 12))]
    logits = []
    for budget in (bench.chosen.token_budget, 1):
        flipped = Flipper(view, ZERO, budget).run(samples)
        logits.append(np.concatenate([outputs.logit for outputs in flipped]))
    together, alone = logits
    difference = float(np.abs(together - alone).max() / alone.std())
    bench.ratio("packed - one at a time, largest difference", difference, 1e-3, "lower")


@torch.inference_mode()
def _bare(view: ModelView, length: int, rows: int, token_budget: int) -> None:
    """Run bare forwards of `rows` texts of random tokens, in batches of the token budget, to logits at the readout."""
    size = max(1, token_budget // length)
    ids = torch.randint(view.vocab, (min(size, rows), length), device=view.device)
    mask, position = torch.ones_like(ids), length // 2 if view.kind.slot else length - 1
    for start in range(0, rows, size):
        part = slice(0, min(size, rows - start))
        logits_at(view, position, input_ids=ids[part], attention_mask=mask[part]).amax(-1).cpu()


def _states(view: ModelView, row: dict[str, Any], count: int) -> States:
    """The states of the deletion and insertion curves of a random relevance of a row, `count` in all or one less."""
    ids = row["input_ids"]
    relevance = np.random.default_rng(0).normal(size=(1, len(ids)))
    slot = row["position"] if view.kind.slot else None
    flippable = candidates(len(ids), special=np.zeros(len(ids), bool), slot=slot)
    ranking = Ranking.of(relevance, flippable, tie_order(ids, 0))
    return States.of(ranking.curves(flip_counts(ranking.flipped, max(1, count // 2))))


def integrated_gradients(bench: Bench, view: ModelView, batch: Batch) -> None:
    """Compare with bare forward and backward passes in the same batches."""
    name, length, budget = "integrated_gradients", batch.input_ids.shape[1], bench.chosen.token_budget
    rows = min(STEPS, max(1, budget // length))
    token = view.token_embedding(batch.input_ids).detach()

    def bare() -> None:
        for start in range(0, STEPS, rows):
            leaf = token.repeat(min(rows, STEPS - start), 1, 1).requires_grad_()
            torch.autograd.grad(_target(view, batch, leaf).sum(), leaf)

    explain = partial(METHODS[name], view, batch, explanation="target", steps=STEPS, token_budget=budget)
    runs: Runs = {name: explain, "bare": bare}
    seconds = bench.timed(runs, bench.chosen.repeats, part="many forwards", length=length, layers=view.n_layers)
    bench.paired(f"T={length}: {name}, seconds / {STEPS} forward-backwards", seconds[WALL], IG_TARGET)
    _memory(bench, view, name, length, runs)


def atman(bench: Bench, view: ModelView, batch: Batch) -> None:
    """Compare with one whole forward pass for each token, at batch size 1, by eager attention as AtMan needs it."""
    name, length, budget = "atman", batch.input_ids.shape[1], bench.chosen.token_budget
    rows = min(length, max(1, budget // length))

    @torch.no_grad()
    def forwards(count: int, of_batch: int) -> None:
        token = view.token_embedding(batch.input_ids).repeat(of_batch, 1, 1)
        with around_attention(view, {}, stock="eager"):
            for _ in range(count):
                _target(view, batch, token).cpu()

    explain = partial(METHODS[name], view, batch, explanation="target", token_budget=budget)
    runs: Runs = {name: explain, "one at a time": partial(forwards, length, 1)}
    seconds = bench.timed(runs, bench.chosen.repeats, part="many forwards", length=length, layers=view.n_layers)
    ours, single = seconds[WALL]
    on_cpu = ATMAN_CAUSAL if view.kind.causal else ATMAN_MASKED
    target = ATMAN_GPU if view.device.type == "cuda" else on_cpu
    bench.paired(f"T={length}: {name}, times as fast as a forward a token", (single, ours), target, "higher")
    _memory(bench, view, name, length, {name: explain, "bare": partial(forwards, 1, rows)})


def _target(view: ModelView, batch: Batch, token: Tensor) -> Tensor:
    """The target's logit [R] for each row of token embeddings [R, T, D]; all logits of that position are computed."""
    mask = batch.attention_mask.expand(len(token), -1)
    logits = logits_at(view, int(batch.position[0]), inputs_embeds=token, attention_mask=mask)
    return logits[:, int(batch.target_ids[0])]


def _memory(bench: Bench, view: ModelView, name: str, length: int, runs: Runs) -> None:
    """Compare the peak bytes of a computation with those of bare passes of as many tokens: the budget limits both."""
    ours, bare = bench.peaks(runs, view.device, part="memory", of=name, length=length)
    title = "peak bytes flipped / bare" if name == "flipped" else f"{name}, peak bytes / bare"
    bench.ratio(f"T={length}: {title}", ours / bare, MEMORY_TARGET, "lower")
