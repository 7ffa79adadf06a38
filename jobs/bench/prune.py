"""`closelook bench prune`: what a pruning sweep costs, what merging curves and sharing layers gain, and the hours.

Random weights of real geometries, random orders, samples as long as those of the sva task. Runs without Ray.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import torch

from evaluation.scoring.head_orders import RemovalOrder, random_curves
from evaluation.scoring.pruning import Sweep
from jobs.bench.harness import Bench, device_name, interleave, paired_ratio, parser, summary, synchronise
from jobs.bench.samples import LENGTHS, sva_like
from jobs.plan.geometries import GEOMETRIES
from lrp_core import Batch, ModelView, random_model
from lrp_core.interventions.heads import HeadsLeft, heads_removed

TARGET = 3.0  # times faster than one forward a sample and point
CURVES = 6 * 3 * 2 + 10  # six methods, three poolings, two orders; ten random orders
SAMPLES = 1000  # of sva


@dataclass(frozen=True)
class PruneCase:
    """A model, single-sample batches, random curves of its heads, and the tokens of a pass."""

    view: ModelView
    samples: list[Batch]
    curves: list[RemovalOrder]
    token_budget: int

    def sweep(self, curves: slice = slice(None), shared: bool = True) -> Sweep:
        return Sweep(self.view, self.curves[curves], shared=shared)


def main(arguments: Sequence[str] | None = None) -> dict:
    """Runs every part on every geometry; see `--help`. Returns the JSON."""
    chosen = _options(arguments)
    bench = Bench("prune", device_name(chosen.device))
    for name in chosen.geometry or ["gpt2", "Llama-3.2-1B"]:
        geometry = GEOMETRIES[name]
        layers = min(geometry.layers, chosen.layers)
        config = replace(geometry, layers=layers).config()
        view = random_model(config, dtype=chosen.dtype, device=chosen.device)
        samples = [batch.to(chosen.device) for batch in sva_like(view, chosen.samples)]
        curves = random_curves(layers * geometry.heads, chosen.curves, seed=0)
        case = PruneCase(view, samples, curves, chosen.token_budget)
        speed(bench, name, case, chosen)
        agreement(bench, name, case)
        del view, case
    return bench.finish(chosen)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    options = parser("prune", __doc__ or "")
    options.add_argument("--geometry", action="append", choices=sorted(GEOMETRIES), help="repeat for several")
    options.add_argument(
        "--layers", type=int, help="of each model, the rest is projected; default all on a GPU, 4 on a CPU; quick 2"
    )
    options.add_argument("--samples", type=int, help="default 3; quick 2")
    options.add_argument("--curves", type=int, help="drawn together; default 4; quick 3")
    options.add_argument("--repeats", type=int, help="default 3; quick 2")
    options.add_argument("--token-budget", type=int, default=8192, help="tokens of a pass")
    options.add_argument("--dtype", default="float32")
    options.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    chosen = options.parse_args(arguments)
    layers = 128 if chosen.device.startswith("cuda") else 4
    for name, usual, quick in (("samples", 3, 2), ("curves", 4, 3), ("repeats", 3, 2), ("layers", layers, 2)):
        if getattr(chosen, name) is None:
            setattr(chosen, name, quick if chosen.quick else usual)
    return chosen


# what is measured


def speed(bench: Bench, name: str, case: PruneCase, chosen: argparse.Namespace) -> None:
    """Seconds a sample and point of a curve: one forward each, and four ways to batch them."""
    runs = {
        "one at a time": lambda: _one_at_a_time(case, chosen.device),
        "samples batched, one mask": lambda: _samples_batched(case, chosen.device),
        "steps batched, one curve": lambda: _sweeps([case.sweep(slice(i, i + 1), False) for i in range(2)], case),
        "curves merged": lambda: _sweeps([case.sweep(shared=False)], case),
        "lower layers shared": lambda: _sweeps([case.sweep()], case),
    }
    seconds = interleave(runs, chosen.repeats, device=chosen.device)
    facts = {"layers": case.view.n_layers, "curves": len(case.curves), "samples": len(case.samples)}
    for way, values in seconds.items():
        bench.row(part="speed", geometry=name, way=way, **facts, **summary(values), unit="s per sample and point")
    one, batched, steps, merged, shared = seconds.values()
    ratio = paired_ratio(one, shared)
    bench.ratio("sweep / one at a time throughput", ratio.pop("median"), TARGET, "higher", geometry=name, **ratio)
    for gain, before, after in (
        ("steps of a curve in a batch, over samples", batched, steps),
        ("merging curves", steps, merged),
        ("sharing lower layers", merged, shared),
    ):
        gained = paired_ratio(before, after)
        bench.row(part="gain", geometry=name, of=gain, **gained, unit="ratio")
        print(f"{name}: gain of {gain}: {gained['median']:.2f} ({gained['q1']:.2f} to {gained['q3']:.2f})")
    _project(bench, name, case, summary(shared)["median"], summary(one)["median"])


def _project(bench: Bench, name: str, case: PruneCase, shared_s: float, one_s: float) -> None:
    """Hours of all curves of the paper on sva, from the work of the measured sweep and that of the whole one.

    The work of a sweep is its layers times rows; random orders stand for ranked ones.
    """
    geometry = GEOMETRIES[name]
    shape = {"n_layers": geometry.layers, "n_shared_layers": geometry.layers - 1, "n_heads": geometry.heads}
    view: Any = SimpleNamespace(**shape, device=torch.device("cpu"), dtype=torch.float32)  # all that planning reads
    whole = Sweep(view, random_curves(geometry.layers * geometry.heads, CURVES, seed=0))
    measured = case.sweep()
    length = sum(len(batch.input_ids[0]) for batch in case.samples) / len(case.samples)
    per_row_s = shared_s * measured.points.size / _layer_rows(measured, case) / length  # and token
    tokens = SAMPLES * sum(LENGTHS["causal"]) / len(LENGTHS["causal"])
    shared_h = per_row_s * _layer_rows(whole, case) * tokens / 3600
    one_h = one_s / length * tokens * whole.points.size * geometry.layers / case.view.n_layers / 3600
    bench.row(
        part="projection", geometry=name, curves=CURVES, samples=SAMPLES, points=whole.points.size,
        sweep_h=shared_h, one_at_a_time_h=one_h,
    )  # fmt: skip
    print(f"{name}: {CURVES} curves x {SAMPLES} sva samples: {shared_h:.2f} h, {one_h:.1f} h one at a time")


def _layer_rows(sweep: Sweep, case: PruneCase) -> int:
    passes = sweep.passes(case.samples[0], case.token_budget)
    return sum(len(layer.parents) for layers in passes for layer in layers)


def agreement(bench: Bench, name: str, case: PruneCase) -> None:
    """The largest difference between margins of the sweep and those of one forward each, relative to their spread."""
    sample, sweep = case.samples[0], case.sweep()
    together = sweep.margins(sample, case.token_budget)
    chosen = list(range(0, len(sweep.masks), max(1, len(sweep.masks) // 16)))
    alone = torch.stack([_alone(case.view, sample, sweep.masks[i]) for i in chosen])
    difference = (together[chosen] - alone).abs().max() / together.std()
    bench.ratio("sweep - one at a time, largest difference", float(difference), 1e-3, "lower", geometry=name)


# the ways


@torch.inference_mode()
def _one_at_a_time(case: PruneCase, device: str) -> float:
    """A forward for every sample and mask, on some of the masks."""
    sweep = case.sweep()
    masks = sweep.masks[:: max(1, len(sweep.masks) // 8)]
    synchronise(device)
    start = time.perf_counter()
    for sample in case.samples:
        for mask in masks:
            _alone(case.view, sample, mask)
    synchronise(device)
    return (time.perf_counter() - start) / (len(masks) * len(case.samples))


@torch.inference_mode()
def _samples_batched(case: PruneCase, device: str) -> float:
    """The usual evaluation: padded batches of samples, all under one mask."""
    size = max(1, case.token_budget // 32)
    rows = [_row(case.samples[i % len(case.samples)]) for i in range(size)]
    batch = Batch.collate(sorted(rows, key=lambda row: len(row["input_ids"])), pad_id=0).to(case.view.device)
    mask = case.sweep().masks[len(case.samples)]
    synchronise(device)
    start = time.perf_counter()
    with heads_removed(case.view, _layers(case.view, mask, len(batch))):
        case.view.logits(case.view.hidden(batch), batch)
    synchronise(device)
    return (time.perf_counter() - start) / len(batch)


def _sweeps(sweeps: list[Sweep], case: PruneCase) -> float:
    """Sweeps one after another; planning them is part of it."""
    start = time.perf_counter()
    for sweep in sweeps:
        for sample in case.samples:
            sweep.margins(sample, case.token_budget)
    synchronise(case.view.device.type)
    return (time.perf_counter() - start) / sum(sweep.points.size * len(case.samples) for sweep in sweeps)


@torch.inference_mode()
def _alone(view: ModelView, sample: Batch, mask: Any) -> torch.Tensor:
    with heads_removed(view, _layers(view, mask, 1)):
        logits = view.logits(view.hidden(sample), sample)
    return logits[0, 0] - logits[0, 1]


def _layers(view: ModelView, mask: Any, rows: int) -> list[HeadsLeft]:
    """The heads that are left, layer by layer: the mask [L, H] for every row."""
    parents = torch.arange(rows, device=view.device)
    kept = torch.from_numpy(mask).to(view.device, view.dtype)
    return [HeadsLeft(parents, kept[layer].expand(rows, -1)) for layer in range(view.n_layers)]


def _row(sample: Batch) -> dict[str, Any]:
    fields = {"position": sample.position, "target_id": sample.target_ids, "foil_id": sample.foil_ids}
    numbers = {name: int(value[0]) for name, value in fields.items() if value is not None}
    return {"input_ids": sample.input_ids[0].tolist(), **numbers}


if __name__ == "__main__":
    main()
