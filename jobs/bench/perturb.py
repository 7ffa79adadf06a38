"""`closelook bench perturb`: what flipping tokens and methods of many forwards cost beside bare ones, and what merging
saves.

Random weights of real geometries, random tokens. Bare are the same packed batches without any perturbation, through
the model's own head where the prediction is read, in this process after a warm-up. Runs without Ray.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from evaluation.scoring.flipping import Flipper
from evaluation.scoring.flips import Ranking, States, candidates, flip_counts, tie_order
from jobs.bench.harness import Bench, device_name, interleave, paired_ratio, parser, summary
from jobs.bench.many_forwards import many_forwards
from jobs.bench.samples import alone, random_row, rows_like_sva
from jobs.plan.geometries import GEOMETRIES
from lrp_core import ModelView, random_model
from lrp_core.kinds import ZERO
from lrp_core.memory import peak_memory
from lrp_core.methods import METHODS

CASES = (("gpt2", 128), ("gpt2", 512), ("bert-base", 128))  # geometry and tokens of a sample
TARGET = 0.9  # rows a second, of bare forwards
MEMORY_TARGET = 1.2  # peak bytes, of a bare forward of the token budget
COUNTED_METHODS, COUNTED_LENGTH = 6, 64
METHOD_LENGTH = 128  # tokens of the sample that methods of many forwards explain

Sample = tuple[dict[str, Any], States]


@dataclass(frozen=True)
class FlipCase:
    """A model, samples with their states, and the tokens of a batch."""

    view: ModelView
    samples: list[Sample]
    token_budget: int

    def run(self) -> None:
        self.logits()

    def logits(self) -> np.ndarray:
        """The logits of every state of every sample, one after the other."""
        of_samples = Flipper(self.view, ZERO, self.token_budget).run(self.samples)
        return np.concatenate([outputs.logit for outputs in of_samples])


def main(arguments: Sequence[str] | None = None) -> dict:
    """Runs every part on every geometry; see `--help`. Returns the JSON."""
    chosen = _options(arguments)
    bench = Bench("perturb", device_name(chosen.device))
    for name, length in dict.fromkeys((name, min(length, chosen.longest)) for name, length in CASES):
        if name in chosen.geometry:
            speed(bench, name, length, chosen)
    for name in chosen.geometry:
        forwards(bench, name, chosen)
        packing(bench, name, chosen)
        length = min(METHOD_LENGTH, chosen.longest)
        many_forwards(bench, name, _model(name, chosen), length, chosen.token_budget, chosen.repeats)
    return bench.finish(chosen)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    names = tuple(dict.fromkeys(name for name, _ in CASES))
    options = parser("perturb", __doc__ or "")
    options.add_argument("--geometry", action="append", choices=names, help="repeat for several; default all")
    options.add_argument(
        "--layers", type=int, help="of each model; default all on a GPU, 4 on a CPU; quick 2 narrow ones"
    )
    options.add_argument("--rows", type=int, help="states in all, about; default 4 batches")
    options.add_argument("--repeats", type=int, help="default 5; quick 2")
    options.add_argument("--token-budget", type=int, help="tokens of a batch; default 65536 on a GPU, 4096 on a CPU")
    options.add_argument("--dtype", default="float32")
    options.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    chosen = options.parse_args(arguments)
    chosen.longest = 64 if chosen.quick else max(length for _, length in CASES)
    on_gpu = chosen.device.startswith("cuda")
    chosen.geometry = chosen.geometry or list(names)
    chosen.layers = chosen.layers or (2 if chosen.quick else 128 if on_gpu else 4)
    chosen.repeats = chosen.repeats or (2 if chosen.quick else 5)
    chosen.token_budget = chosen.token_budget or (1024 if chosen.quick else 65536 if on_gpu else 4096)
    return chosen


# what is measured


def speed(bench: Bench, name: str, length: int, chosen: argparse.Namespace) -> None:
    """Rows a second of flipped states and of bare forwards in the same batches, and the bytes that both take."""
    view = _model(name, chosen)
    rows = chosen.rows or 4 * max(1, chosen.token_budget // length)
    source = random.Random(0)
    samples = [_sample(view, random_row(view, length, source), rows // 2) for _ in range(2)]
    case = FlipCase(view, samples, chosen.token_budget)
    count = sum(len(states.removed) for _, states in samples)
    runs: dict[str, Callable[[], None]] = {
        "flipped": case.run,
        "bare": lambda: _bare(view, length, count, chosen.token_budget),
    }
    seconds = interleave(runs, chosen.repeats, device=chosen.device)
    rates = {way: [count / s for s in taken] for way, taken in seconds.items()}
    title = f"T={length}"
    for way, values in rates.items():
        bench.row(
            part="speed", geometry=name, length=length, way=way, layers=view.n_layers, rows=count, **summary(values),
            unit="rows per second",
        )  # fmt: skip
    ratio = paired_ratio(rates["flipped"], rates["bare"])
    bench.ratio(f"{title}: rows/s flipped / bare", ratio.pop("median"), TARGET, "higher", geometry=name, **ratio)
    size = max(1, chosen.token_budget // length)  # one full batch
    row, states = samples[0]
    batch = FlipCase(view, [(row, States(states.removed[:size], ()))], chosen.token_budget)
    size = len(batch.samples[0][1].removed)
    flipped = _peak_bytes(batch.run, chosen.device)
    bare = _peak_bytes(lambda: _bare(view, length, size, chosen.token_budget), chosen.device)
    bench.row(part="memory", geometry=name, length=length, rows=size, flipped_peak_bytes=flipped, bare_peak_bytes=bare)
    bench.ratio(f"{title}: peak bytes flipped / bare", flipped / bare, MEMORY_TARGET, "lower", geometry=name)


def forwards(bench: Bench, name: str, chosen: argparse.Namespace) -> None:
    """Forwards of six methods' curves in both orders, beside their distinct states, counted one by one."""
    view = random_model(GEOMETRIES[name].shrunk().config(), device=chosen.device)
    row = random_row(view, COUNTED_LENGTH, random.Random(0))
    batch = alone(row).to(view.device)
    methods = [method for method in METHODS.values() if "tokens" in method.gives][:COUNTED_METHODS]
    relevance = torch.cat([method(view, batch).tokens for method in methods]).double().cpu().numpy()
    chosen_tokens, ties = _flipped(view, row), tie_order(row["input_ids"], 0)
    ranking = Ranking.of(relevance, chosen_tokens, ties)
    states = States.of(ranking.curves(flip_counts(ranking.flipped, COUNTED_LENGTH)))
    flipper = Flipper(view, ZERO, chosen.token_budget)
    flipper.run([(row, states)])
    distinct = set()
    for values in relevance:
        most = sorted(np.flatnonzero(chosen_tokens).tolist(), key=lambda token: (-values[token], ties[token]))
        for order in (most, most[::-1]):
            distinct |= {frozenset(order[:k]) for k in range(len(order) + 1)}
    facts = {"methods": len(methods), "length": COUNTED_LENGTH}
    bench.row(
        part="forwards", geometry=name, **facts, computed=flipper.computed, distinct=len(distinct), asked=flipper.asked
    )
    share = flipper.computed / flipper.asked
    print(f"{name}: {flipper.computed} forwards for {flipper.asked} points of curves ({share:.2f})")
    bench.ratio("forwards / distinct states", flipper.computed / len(distinct), 1.0, "lower", geometry=name)


def packing(bench: Bench, name: str, chosen: argparse.Namespace) -> None:
    """Samples as long as those of the sva task: what packing gains over a state at a time, and that it changes little.

    The difference is the largest one of a logit, relative to the spread of logits.
    """
    view = _model(name, chosen)
    rows = rows_like_sva(view, 2 if chosen.quick else 4)
    packed = FlipCase(view, [_sample(view, row, 40) for row in rows], chosen.token_budget)
    single = replace(packed, token_budget=1)
    runs: dict[str, Callable[[], None]] = {"packed": packed.run, "one at a time": single.run}
    seconds = interleave(runs, chosen.repeats, device=chosen.device)
    gain = paired_ratio(seconds["one at a time"], seconds["packed"])
    states = sum(len(states.removed) for _, states in packed.samples)
    bench.row(part="packing", geometry=name, states=states, **gain, unit="ratio")
    print(f"{name}: packing states of sva samples gains {gain['median']:.1f} times")
    alone_logits = single.logits()
    difference = float(np.abs(packed.logits() - alone_logits).max() / alone_logits.std())
    bench.ratio("packed - one at a time, largest difference", difference, 1e-3, "lower", geometry=name)


# the ways


@torch.inference_mode()
def _bare(view: ModelView, length: int, rows: int, token_budget: int) -> None:
    """Bare forwards of random tokens, as many and in batches of the same shape; logits where the prediction is read."""
    size = max(1, token_budget // length)
    ids = torch.randint(view.vocab, (min(size, rows), length), device=view.device)
    mask, position = torch.ones_like(ids), _position(view, length)
    for start in range(0, rows, size):
        part = slice(0, min(size, rows - start))
        hidden = view.model.base_model(
            input_ids=ids[part], attention_mask=mask[part], **view.kind.forward_options
        ).last_hidden_state
        view.unembedding(view.head(hidden[:, position])).amax(-1).cpu()


def _peak_bytes(run: Callable[[], object], device: str) -> int:
    with peak_memory(device) as peak:
        run()
    return peak.peak_bytes


# what it is measured on


def _model(name: str, chosen: argparse.Namespace) -> ModelView:
    geometry = GEOMETRIES[name].shrunk() if chosen.quick else GEOMETRIES[name]
    config = replace(geometry, layers=min(geometry.layers, chosen.layers)).config()
    return random_model(config, dtype=chosen.dtype, device=chosen.device)


def _position(view: ModelView, length: int) -> int:
    return length // 2 if view.kind.slot else length - 1


def _flipped(view: ModelView, row: dict[str, Any]) -> np.ndarray:
    length = len(row["input_ids"])
    return candidates(length, special=np.zeros(length, bool), slot=row["position"] if view.kind.slot else None)


def _sample(view: ModelView, row: dict[str, Any], states: int) -> Sample:
    """The curves of one random relevance in both orders, with so many `states` in all or one less."""
    chosen = _flipped(view, row)
    relevance = np.random.default_rng(0).normal(size=(1, len(chosen)))
    ranking = Ranking.of(relevance, chosen, tie_order(row["input_ids"], 0))
    return row, States.of(ranking.curves(flip_counts(ranking.flipped, max(1, states // 2))))


if __name__ == "__main__":
    main()
