"""`closelook bench perturb`: the cost of deletion and insertion curves and of methods with many forward passes.

Each is timed against bare passes: batches of the same shape without any perturbation, through the model's own head at
the readout position. The savings by merging equal states of curves are counted, too. Models have random weights and the
shapes of real ones, texts are random tokens. Runs without Ray.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch

from benchmarks.parts.harness import Bench, Runs, interleave, parser, peak_bytes, positive
from benchmarks.parts.many_forwards import many_forwards
from benchmarks.parts.samples import alone, logits_at, model_of, random_row, rows_like_sva
from evaluation.scoring.faithfulness.flipping import Flipper
from evaluation.scoring.faithfulness.flips import Ranking, States, candidates, flip_counts, tie_order
from jobs.bench.record import paired_ratio, summary
from jobs.geometries import GEOMETRIES
from lrp_core import ModelView, random_model
from lrp_core.methods import METHODS
from lrp_core.records.kinds import ZERO

CASES = (("gpt2", 128), ("gpt2", 512), ("bert-base", 128))  # shape of the model, and tokens of a sample
TARGET = 0.9  # rows a second over those of bare forwards
MEMORY_TARGET = 1.2  # peak bytes over those of a bare forward of the token budget
COUNTED_METHODS, COUNTED_LENGTH = 6, 64
METHOD_LENGTH = 128  # tokens of the sample that methods with many forwards explain
QUICK_LENGTH = 64  # the most tokens with --quick

Sample = tuple[dict[str, Any], States]


@dataclass(frozen=True)
class FlipCase:
    """A model, samples with the states of their curves, and the token budget of a batch."""

    view: ModelView
    samples: list[Sample]
    token_budget: int

    def logits(self) -> np.ndarray:
        """The logits of all states of all samples, one after the other."""
        of_samples = Flipper(self.view, ZERO, self.token_budget).run(self.samples)
        return np.concatenate([outputs.logit for outputs in of_samples])


def main(arguments: Sequence[str] | None = None) -> dict:
    """Run all parts on every chosen shape; see `--help`. Returns the result as JSON."""
    names = tuple(dict.fromkeys(name for name, _ in CASES))
    options = parser("perturb", __doc__)
    options.add_argument("--geometry", action="append", choices=names, help="repeat for several; default all")
    options.layers()
    options.add_argument("--rows", type=positive, help="states in all, about; default 4 batches")
    options.number("--repeats", 5, "of each timing", quick=2)
    options.number("--token-budget", 4096, "tokens of a batch", quick=1024, on_gpu=65536)
    options.devices()
    results = options.begin(arguments)
    chosen = results.chosen
    names = chosen.geometry or names
    longest = QUICK_LENGTH if chosen.quick else max(length for _, length in CASES)
    for name, length in dict.fromkeys((name, min(length, longest)) for name, length in CASES):
        if name in names:
            speed(results.about(geometry=name), length)
    for name in names:
        bench = results.about(geometry=name)
        forwards(bench)
        packing(bench)
        many_forwards(bench, model_of(name, chosen), min(METHOD_LENGTH, longest))
    return results.finish()


# parts


def speed(bench: Bench, length: int) -> None:
    """Measure the rows a second, and the peak bytes, of states of curves and of bare forwards in the same batches."""
    chosen, view = bench.chosen, model_of(bench.title, bench.chosen)
    size = max(1, chosen.token_budget // length)  # rows of one full batch
    rows = chosen.rows or 4 * size
    source = random.Random(0)
    samples = [_sample(view, random_row(view, length, source), rows // 2) for _ in range(2)]
    case = FlipCase(view, samples, chosen.token_budget)
    count = sum(len(states.removed) for _, states in samples)
    runs: Runs = {"flipped": case.logits, "bare": partial(_bare, view, length, count, chosen.token_budget)}
    seconds = interleave(runs, chosen.repeats)
    facts = {"part": "speed", "length": length, "layers": view.n_layers, "rows": count, "unit": "rows per second"}
    for way, taken in seconds.items():
        bench.row(**facts, way=way, **summary([count / value for value in taken]))
    bench.paired(f"T={length}: rows/s flipped / bare", (seconds["bare"], seconds["flipped"]), TARGET, "higher")
    row, states = samples[0]
    one_batch = States(states.removed[:size], ())
    size = len(one_batch.removed)
    flipped = peak_bytes(FlipCase(view, [(row, one_batch)], chosen.token_budget).logits, view.device)
    bare = peak_bytes(partial(_bare, view, length, size, chosen.token_budget), view.device)
    bench.row(part="memory", length=length, rows=size, flipped_peak_bytes=flipped, bare_peak_bytes=bare)
    bench.ratio(f"T={length}: peak bytes flipped / bare", flipped / bare, MEMORY_TARGET, "lower")


def forwards(bench: Bench) -> None:
    """Count the forward passes for six methods' curves in both orders, against the number of distinct states."""
    view = random_model(GEOMETRIES[bench.title].shrunk().config(), device=bench.chosen.device)
    row = random_row(view, COUNTED_LENGTH, random.Random(0))
    batch = alone(row).to(view.device)
    methods = [method for method in METHODS.values() if "tokens" in method.gives][:COUNTED_METHODS]
    relevance = torch.cat([method(view, batch).tokens for method in methods]).double().cpu().numpy()
    flippable, ties = _flippable(view, row), tie_order(row["input_ids"], 0)
    flipper = Flipper(view, ZERO, bench.chosen.token_budget)
    flipper.run([(row, _states(view, row, relevance, COUNTED_LENGTH))])
    distinct = set()
    for values in relevance:
        most = sorted(np.flatnonzero(flippable).tolist(), key=lambda token: (-values[token], ties[token]))
        for order in (most, most[::-1]):
            distinct |= {frozenset(order[:k]) for k in range(len(order) + 1)}
    computed, asked = flipper.computed, flipper.asked
    facts = {"methods": len(methods), "length": COUNTED_LENGTH, "distinct": len(distinct)}
    bench.row(part="forwards", **facts, computed=computed, asked=asked)
    print(f"{bench.title}: {computed} forwards for {asked} points of curves ({computed / asked:.2f})")
    bench.ratio("forwards / distinct states", computed / len(distinct), 1.0, "lower")


def packing(bench: Bench) -> None:
    """Measure the gain of packing states into batches, and its effect on logits, for samples as long as those of sva.

    The difference is the largest change of a logit, relative to the standard deviation of logits.
    """
    view = model_of(bench.title, bench.chosen)
    samples = [_sample(view, row, 40) for row in rows_like_sva(view, 2 if bench.quick else 4)]
    packed = FlipCase(view, samples, bench.chosen.token_budget)
    single = replace(packed, token_budget=1)
    seconds = interleave({"packed": packed.logits, "one at a time": single.logits}, bench.chosen.repeats)
    gain = paired_ratio(seconds["one at a time"], seconds["packed"])
    states = sum(len(states.removed) for _, states in samples)
    bench.row(part="packing", states=states, **gain, unit="ratio")
    print(f"{bench.title}: packing states of sva samples gains {gain['median']:.1f} times")
    alone_logits = single.logits()
    difference = float(np.abs(packed.logits() - alone_logits).max() / alone_logits.std())
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


def _flippable(view: ModelView, row: dict[str, Any]) -> np.ndarray:
    """True for the tokens of a row that curves may remove, [T]: all but the slot of a masked model."""
    length = len(row["input_ids"])
    return candidates(length, special=np.zeros(length, bool), slot=row["position"] if view.kind.slot else None)


def _states(view: ModelView, row: dict[str, Any], relevance: np.ndarray, points: int) -> States:
    """The states of the deletion and insertion curves of relevance [methods, T], with at most `points` points each."""
    ranking = Ranking.of(relevance, _flippable(view, row), tie_order(row["input_ids"], 0))
    return States.of(ranking.curves(flip_counts(ranking.flipped, points)))


def _sample(view: ModelView, row: dict[str, Any], states: int) -> Sample:
    """A row, and the states of both curves of a random relevance, `states` in all or one less."""
    relevance = np.random.default_rng(0).normal(size=(1, len(row["input_ids"])))
    return row, _states(view, row, relevance, max(1, states // 2))
