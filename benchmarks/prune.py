"""`closelook bench prune`: the cost of a pruning sweep, for a sample and point of a curve, against one forward each.

The sweep merges curves and shares the forward of lower layers. Models have random weights and the shapes of real ones;
heads are removed in random orders; samples are as long as those of sva. Runs without Ray.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product

import numpy as np
import torch
from torch import Tensor

from benchmarks.parts.harness import Bench, interleave, parser
from benchmarks.parts.samples import model_of, sva_like
from closelook.evaluation.scoring.head_orders import RemovalOrder, random_curves
from closelook.evaluation.scoring.pruning import Sweep
from closelook.jobs.bench.record import seconds_of, summary
from closelook.lrp_core import Batch, ModelView
from closelook.lrp_core.interventions.heads import HeadsLeft, heads_removed

TARGET = 3.0  # times as fast as one forward for each sample and point of a curve


@dataclass(frozen=True)
class PruneCase:
    """A model, batches of one sample each, random orders of the model's heads, and the token budget of a pass."""

    view: ModelView
    samples: list[Batch]
    curves: list[RemovalOrder]
    token_budget: int

    def sweep(self) -> Sweep:
        """A sweep that has not planned its passes yet."""
        return Sweep(self.view, self.curves)

    def margins(self, sweep: Sweep) -> list[Tensor]:
        """The margins of each sample under all masks of a sweep."""
        return [sweep.margins(sample, self.token_budget) for sample in self.samples]

    def sweep_s(self) -> float:
        """Seconds of a sweep for a sample and point of a curve, planning included."""
        sweep = self.sweep()
        return seconds_of(partial(self.margins, sweep)) / (sweep.points.size * len(self.samples))

    def single_s(self) -> float:
        """Seconds of one forward for a sample and mask, from some of the masks."""
        masks = self.sweep().masks
        some = masks[:: max(1, len(masks) // 8)]
        run = partial(_logits_of, self.view, self.samples, some)
        return seconds_of(run) / (len(some) * len(self.samples))


def main(arguments: Sequence[str] | None = None) -> dict:
    """Run all parts on every chosen shape; see `--help`. Returns the result as JSON."""
    options = parser("prune", __doc__)
    options.geometries("gpt2", "Llama-3.2-1B")
    options.layers()
    options.number("--samples", 3, "measured together", quick=2)
    options.number("--curves", 4, "drawn together", quick=3)
    options.number("--repeats", 3, "of each timing", quick=2)
    options.number("--token-budget", 8192, "tokens of a pass")
    options.devices()
    results = options.begin(arguments)
    chosen = results.chosen
    for name in chosen.geometry:
        view = model_of(name, chosen)
        curves = random_curves(view.n_layers * view.n_heads, chosen.curves, seed=0)
        case = PruneCase(view, sva_like(view, chosen.samples), curves, chosen.token_budget)
        speed(results.about(geometry=name), case)
        agreement(results.about(geometry=name), case)
        del view, case
    return results.finish()


def speed(bench: Bench, case: PruneCase) -> None:
    """Compare seconds of the sweep with those of one forward each."""
    runs = {"one at a time": case.single_s, "lower layers shared": case.sweep_s}
    seconds = interleave(runs, bench.chosen.repeats)
    facts = {"layers": case.view.n_layers, "curves": len(case.curves), "samples": len(case.samples)}
    for way, values in seconds.items():
        bench.row(part="speed", way=way, **facts, **summary(values), unit="s per sample and point")
    bench.paired("sweep / one at a time throughput", seconds.values(), TARGET, "higher")


def agreement(bench: Bench, case: PruneCase) -> None:
    """Compare margins of the sweep with those of one forward each: the largest difference by the standard deviation."""
    sample, sweep = case.samples[0], case.sweep()
    together = sweep.margins(sample, case.token_budget)
    every = max(1, len(sweep.masks) // 16)
    target, foil = _logits_of(case.view, [sample], sweep.masks[::every]).unbind(1)
    difference = (together[::every] - (target - foil)).abs().max() / together.std()
    bench.ratio("sweep - one at a time, largest difference", float(difference), 1e-3, "lower")


@torch.inference_mode()
def _logits_of(view: ModelView, samples: Sequence[Batch], masks: np.ndarray) -> Tensor:
    """Logits [N, 2] of target and foil of each sample under each mask [L, H] of kept heads, by a forward each."""
    parents = torch.arange(1, device=view.device)
    logits = []
    for sample, mask in product(samples, masks):
        kept = torch.from_numpy(mask).to(view.device, view.dtype)
        with heads_removed(view, [HeadsLeft(parents, layer[None]) for layer in kept]):
            logits.append(view.logits(view.hidden(sample), sample))
    return torch.cat(logits)
