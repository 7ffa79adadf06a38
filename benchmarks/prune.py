"""`closelook bench prune`: the cost of a pruning sweep, and what merging curves and sharing layers saves.

It also projects the hours of all curves of the paper. Models have random weights and the shapes of real ones; heads are
removed in random orders; samples are as long as those of sva. Runs without Ray.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from benchmarks.parts.harness import Bench, interleave, parser
from benchmarks.parts.samples import LENGTHS, alone, model_of, rows_like_sva
from evaluation.scoring.head_orders import RemovalOrder, random_curves
from evaluation.scoring.pruning import Sweep
from jobs.bench.record import paired_ratio, seconds_of, summary
from jobs.geometries import GEOMETRIES
from lrp_core import Batch, ModelView
from lrp_core.interventions.heads import HeadsLeft, heads_removed

TARGET = 3.0  # times as fast as one forward for each sample and point of a curve
CURVES = 6 * 3 * 2 + 10  # the paper's: six methods, three poolings and two orders; ten random orders
SAMPLES = 1000  # the paper's, of sva


@dataclass(frozen=True)
class PruneCase:
    """A model, samples as view rows and as batches of one, random orders of its heads, and a pass's token budget."""

    view: ModelView
    rows: list[dict[str, Any]]
    samples: list[Batch]
    curves: list[RemovalOrder]
    token_budget: int

    def sweep(self, curves: slice = slice(None), shared: bool = True) -> Sweep:
        """A sweep over some of the curves; with `shared`, rows share the forward of lower layers."""
        return Sweep(self.view, self.curves[curves], shared=shared)


def main(arguments: Sequence[str] | None = None) -> dict:
    """Run all parts on every chosen shape; see `--help`. Returns the result as JSON."""
    options = parser("prune", __doc__)
    options.add_argument("--geometry", action="append", choices=sorted(GEOMETRIES), help="repeat for several")
    options.layers()
    options.number("--samples", 3, "measured together", quick=2)
    options.number("--curves", 4, "drawn together", quick=3)
    options.number("--repeats", 3, "of each timing", quick=2)
    options.number("--token-budget", 8192, "tokens of a pass")
    options.devices()
    results = options.begin(arguments)
    chosen = results.chosen
    for name in chosen.geometry or ["gpt2", "Llama-3.2-1B"]:
        view = model_of(name, chosen)
        curves = random_curves(view.n_layers * view.n_heads, chosen.curves, seed=0)
        rows = rows_like_sva(view, chosen.samples)
        samples = [alone(row).to(view.device) for row in rows]
        case = PruneCase(view, rows, samples, curves, chosen.token_budget)
        bench = results.about(geometry=name)
        speed(bench, case)
        agreement(bench, case)
        del view, case
    return results.finish()


# parts


def speed(bench: Bench, case: PruneCase) -> None:
    """Time a sweep in five ways, in seconds for a sample and point of a curve: one forward each, and four that batch.

    The last way is compared with the first by a target; what each further step gains is printed.
    """

    def steps_batched() -> float:
        return _sweeps([case.sweep(slice(index, index + 1), shared=False) for index in range(2)], case)

    def curves_merged(shared: bool) -> float:
        return _sweeps([case.sweep(shared=shared)], case)

    runs: dict[str, Callable[[], float]] = {
        "one at a time": partial(_one_at_a_time, case),
        "samples batched, one mask": partial(_samples_batched, case),
        "steps batched, one curve": steps_batched,
    }
    runs |= {"curves merged": partial(curves_merged, False), "lower layers shared": partial(curves_merged, True)}
    seconds = interleave(runs, bench.chosen.repeats)
    facts = {"layers": case.view.n_layers, "curves": len(case.curves), "samples": len(case.samples)}
    for way, values in seconds.items():
        bench.row(part="speed", way=way, **facts, **summary(values), unit="s per sample and point")
    single, batched, steps, merged, shared = seconds.values()
    bench.paired("sweep / one at a time throughput", (single, shared), TARGET, "higher")
    for gain, before, after in (
        ("steps of a curve in a batch, over samples", batched, steps),
        ("merging curves", steps, merged),
        ("sharing lower layers", merged, shared),
    ):
        gained = paired_ratio(before, after)
        bench.row(part="gain", of=gain, **gained, unit="ratio")
        print(f"{bench.title}: gain of {gain}: {gained['median']:.2f} ({gained['q1']:.2f} to {gained['q3']:.2f})")
    _project(bench, case, summary(shared)["median"], summary(single)["median"])


def _project(bench: Bench, case: PruneCase, shared_s: float, single_s: float) -> None:
    """Project the hours of all curves of the paper on sva, from the measured sweep.

    Time is assumed to be proportional to work: layers times rows. Random orders take the place of ranked ones.
    """
    geometry = GEOMETRIES[bench.title]
    shape = {"n_layers": geometry.layers, "n_shared_layers": geometry.layers - 1, "n_heads": geometry.heads}
    view: Any = SimpleNamespace(**shape, device=torch.device("cpu"), dtype=torch.float32)  # all that planning reads
    whole = Sweep(view, random_curves(geometry.layers * geometry.heads, CURVES, seed=0))
    measured = case.sweep()
    points = whole.points.size
    measured_tokens = sum(len(row["input_ids"]) for row in case.rows) / len(case.rows)
    hours_per_s = SAMPLES * sum(LENGTHS["causal"]) / len(LENGTHS["causal"]) / measured_tokens / 3600
    share = _layer_rows(whole, case) / _layer_rows(measured, case)
    shared_h = shared_s * measured.points.size * share * hours_per_s
    single_h = single_s * points * geometry.layers / case.view.n_layers * hours_per_s
    facts = {"curves": CURVES, "samples": SAMPLES, "points": points}
    bench.row(part="projection", **facts, sweep_h=shared_h, one_at_a_time_h=single_h)
    print(f"{bench.title}: {CURVES} curves x {SAMPLES} sva samples: {shared_h:.2f} h, {single_h:.1f} h one at a time")


def _layer_rows(sweep: Sweep, case: PruneCase) -> int:
    """The work of a sweep for one sample: the number of rows, summed over layers."""
    passes = sweep.passes(case.samples[0], case.token_budget)
    return sum(len(layer.parents) for layers in passes for layer in layers)


def agreement(bench: Bench, case: PruneCase) -> None:
    """Compare margins of the sweep with those of one forward each: the largest difference by the standard deviation."""
    sample, sweep = case.samples[0], case.sweep()
    together = sweep.margins(sample, case.token_budget)
    every = max(1, len(sweep.masks) // 16)
    single = torch.stack([_single(case.view, sample, mask) for mask in sweep.masks[::every]])
    difference = (together[::every] - single).abs().max() / together.std()
    bench.ratio("sweep - one at a time, largest difference", float(difference), 1e-3, "lower")


# ways to run masks, which return the seconds for a sample and mask


def _one_at_a_time(case: PruneCase) -> float:
    """One forward for each sample and mask, for some of the masks."""
    sweep = case.sweep()
    masks = sweep.masks[:: max(1, len(sweep.masks) // 8)]

    def run() -> None:
        for sample in case.samples:
            for mask in masks:
                _single(case.view, sample, mask)

    return seconds_of(run) / (len(masks) * len(case.samples))


def _samples_batched(case: PruneCase) -> float:
    """A padded batch of samples under one mask, as evaluation usually does it."""
    rows = [case.rows[index % len(case.rows)] for index in range(max(1, case.token_budget // 32))]
    rows.sort(key=lambda row: len(row["input_ids"]))
    batch = Batch.collate(rows, pad_id=0).to(case.view.device)
    mask = case.sweep().masks[len(case.samples)]
    return seconds_of(partial(_masked, case.view, batch, mask)) / len(rows)


def _sweeps(sweeps: list[Sweep], case: PruneCase) -> float:
    """All samples under each sweep in turn, planning included."""

    def run() -> None:
        for sweep in sweeps:
            for sample in case.samples:
                sweep.margins(sample, case.token_budget)

    return seconds_of(run) / (sum(sweep.points.size for sweep in sweeps) * len(case.samples))


def _single(view: ModelView, sample: Batch, mask: Any) -> Tensor:
    """The margin (target's logit minus foil's) of a sample under a mask of heads."""
    logits = _masked(view, sample, mask)
    return logits[0, 0] - logits[0, 1]


@torch.inference_mode()
def _masked(view: ModelView, batch: Batch, mask: Any) -> Tensor:
    """Logits [B, 2] of target and foil with only the heads of the mask [L, H] kept, the same for all rows."""
    rows = len(batch)
    parents = torch.arange(rows, device=view.device)
    kept = torch.from_numpy(mask).to(view.device, view.dtype)
    heads = [HeadsLeft(parents, layer.expand(rows, -1)) for layer in kept]
    with heads_removed(view, heads):
        return view.logits(view.hidden(batch), batch)
