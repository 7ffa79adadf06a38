"""`closelook bench alti`: time and memory of ALTI-Logit, with targets.

Models have random weights and the shapes of real ones. Runs without Ray, on a CPU or a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import transformers

from benchmarks.harness import GIB, Bench, Options, Runs
from benchmarks.models import forward, geometry_of, random_sample
from closelook.alti import METHODS, explain_many
from closelook.jobs.bench.record import summary
from closelook.jobs.methods import METHODS as EVERY_METHOD
from closelook.lrp_core import ModelView, Request
from closelook.lrp_core.device.memory import peak_memory
from closelook.lrp_core.families import family_of
from closelook.lrp_core.opening.loading import DTYPES
from closelook.lrp_core.opening.model import view_of
from closelook.lrp_core.records.explained import LINEAR

#: (samples, tokens) of the batches whose memory is compared with the planner's prediction.
SHAPES = ((1, 4), (64, 8), (8, 64), (1, 128), (1, 384))
QUICK_SHAPES = ((1, 16), (4, 8))
REQUESTS = [Request("alti_logit", explanation, "none") for explanation in LINEAR]


def main(arguments: Sequence[str] | None = None) -> dict:
    """Run the chosen parts; see `--help`. Returns the result as JSON."""
    options = Options("alti", __doc__, PARTS)
    options.devices(dtypes=False)
    options.number("--repeats", 3, "of each timing", quick=1)
    bench = options.begin(arguments)
    for name in bench.chosen.parts:
        PARTS[name](bench)
    return bench.finish()


def whole_model(bench: Bench) -> None:
    """Time and memory of both explanations of one long sample, of models that Close Look could not run."""
    length = 32 if bench.quick else 1024
    for name, dtype in [("gpt2-xl", "float32")] + [("Llama-3.1-8B", "bfloat16")] * bench.chosen.on_gpu:
        view = _model(bench, name, dtype)
        batch = random_sample(view, length)
        run: Callable[[], Any] = partial(explain_many, view, batch, REQUESTS, byte_budget=8 * GIB)
        facts = {"part": "whole model", "geometry": name, "dtype": dtype, "length": length}
        runs: Runs = {"alti_logit": run, "forward": partial(forward, view, batch)}
        seconds, _ = bench.timed(runs, bench.chosen.repeats, **facts)
        with peak_memory(view.device) as peak:
            (plan,) = run()[REQUESTS[0]].plans
        bench.row(**facts, peak_bytes=peak.peak_bytes, predicted_bytes=plan.bytes)
        bench.ratio(f"{name} {dtype}, T={length}: seconds", summary(seconds)["median"], 60, "lower")
        bench.ratio(f"{name} {dtype}, T={length}: GiB beyond the weights", peak.peak_bytes / GIB, 8, "lower")


def planner(bench: Bench) -> None:
    """Compare the planner's predicted bytes with the measured peak."""
    shapes = QUICK_SHAPES if bench.quick else SHAPES
    errors = []
    for name in ("gpt2", "gpt2-xl", "Llama-3.2-1B", "bert-base"):
        for dtype in ("float32", "bfloat16"):
            view = _model(bench, name, dtype, layers=2)
            method: Any = next(m for m in METHODS.values() if not m.missing(view.family.capabilities))
            for samples, length in shapes:
                with peak_memory(view.device) as peak:
                    (plan,) = method(view, random_sample(view, length, samples), byte_budget=2**50).plans
                facts = {"geometry": name, "dtype": dtype, "samples": samples, "length": length}
                bench.row(part="planner", **facts, predicted_bytes=plan.bytes, peak_bytes=peak.peak_bytes)
                errors.append(abs(plan.bytes / peak.peak_bytes - 1))
    bench.ratio("planner: worst error of predicted bytes", max(errors), 0.2, "lower")


def globenc(bench: Bench) -> None:
    """Time GlobEnc against ALTI: both compute a map of every block and multiply the maps."""
    view = _model(bench, "bert-base", layers=4)
    batch = random_sample(view, 32 if bench.quick else 128)
    asked = {"explanation": "none", "embedding": "none"}
    runs = {name: partial(EVERY_METHOD[name], view, batch, **asked) for name in ("globenc", "alti")}
    bench.paired("globenc, seconds / alti", bench.timed(runs, bench.chosen.repeats, part="globenc"), 1.5)


PARTS: dict[str, Callable[[Bench], None]] = {"whole_model": whole_model, "planner": planner, "globenc": globenc}


def _model(bench: Bench, name: str, dtype: str = "float32", layers: int | None = None) -> ModelView:
    """A model with random weights and the shape `name`; with `layers`, cut to so many layers and a small vocabulary.

    It is made on the device in its dtype, since large models do not fit twice.
    """
    geometry = geometry_of(name, bench.quick, layers)
    if layers is not None:
        geometry = replace(geometry, vocabulary=128)
    config = geometry.config()
    auto = getattr(transformers, family_of(config).kind.auto)
    with torch.device(bench.chosen.device):
        return view_of(auto.from_config(config, dtype=DTYPES[dtype], attn_implementation="sdpa"))
