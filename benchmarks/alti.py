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

from alti import METHODS, MemoryNeeds, explain_many, predict
from alti.layers import Layer, visiting
from alti.maps import pre_norm_map
from benchmarks.parts.alti_baselines import bare_products, materialising
from benchmarks.parts.harness import GIB, Bench, Runs, interleave, parser, peak_bytes
from benchmarks.parts.samples import geometry_of, random_sample
from jobs.bench.record import seconds_of, summary
from jobs.geometries import GEOMETRIES
from lrp_core import ModelView, Request
from lrp_core.device.memory import peak_memory
from lrp_core.families import family_of
from lrp_core.opening.loading import DTYPES
from lrp_core.opening.model import view_of
from lrp_core.records.explained import LINEAR

#: (samples, tokens) of the batches whose memory is compared with the planner's prediction.
SHAPES = ((1, 4), (64, 8), (8, 64), (1, 128), (1, 384))
QUICK_SHAPES = ((1, 16), (4, 8))
REQUESTS = [Request("alti_logit", explanation, "none") for explanation in LINEAR]


def main(arguments: Sequence[str] | None = None) -> dict:
    """Run the chosen parts; see `--help`. Returns the result as JSON."""
    options = parser("alti", __doc__)
    options.devices(dtypes=False)
    options.number("--repeats", 5, "of each timing", quick=1)
    options.add_argument("--part", action="append", choices=list(PARTS), help="repeat for several (default: all)")
    bench = options.begin(arguments)
    for name in bench.chosen.part or PARTS:
        PARTS[name](bench)
    return bench.finish()


# parts


def against_materialising(bench: Bench) -> None:
    """Time and memory of ALTI-Logit for a sample of gpt2, against code that holds every transformed vector at once."""
    length = 8 if bench.quick else 64
    view = _model(bench, "gpt2")
    batch = random_sample(view, length)
    runs: Runs = {
        "materialising": partial(materialising, view, batch),
        "ours": partial(explain_many, view, batch, REQUESTS),
    }
    facts = {"part": "materialising", "geometry": "gpt2", "length": length}
    seconds = bench.timed(runs, min(bench.chosen.repeats, 3), facts, column="run")
    bench.peaks(runs, view.device)
    bench.paired(f"gpt2, T={length}: materialising / ours", seconds.values(), 50, "higher")


def layers(bench: Bench) -> None:
    """Time and memory of one attention block with its map, at several lengths T; its cost grows as T^2 H D.

    At the longest T they are compared with targets: the time with that of its bare matrix products.
    """
    lengths = (16, 32) if bench.quick else (128, 256, 512, 1024)
    for name in ("gpt2", "gpt2-xl", "Llama-3.1-8B"):
        view = _model(bench, name, layers=2)
        costs = [_layer(bench, view, name, length, length == lengths[-1] and name != "gpt2") for length in lengths]
        print(f"{name}: a layer at T, and picoseconds per T^2 H D / 2: {'; '.join(costs)}")


def _layer(bench: Bench, view: ModelView, name: str, length: int, promised: bool) -> str:
    """Measure one layer of a model for a text of `length` tokens; returns the time in words.

    With `promised` time and memory are compared with targets.
    """
    layer, attention = _first_layer(view, length)
    chunk = MemoryNeeds.of(view).chunk(1, length)

    def ours() -> None:
        attention()
        pre_norm_map(layer, chunk)

    repeats = bench.chosen.repeats if promised else min(bench.chosen.repeats, 3)
    with torch.no_grad():
        seconds = interleave({"ours": ours, "floor": bare_products(layer, chunk)}, repeats)
        peak = peak_bytes(ours, view.device)
    operations = length**2 / 2 * view.n_heads * view.d_model
    for run, values in seconds.items():
        measured = {**summary(values), "ps_per_operation": min(values) / operations * 1e12, "peak_bytes": peak}
        bench.row(part="layer", geometry=name, length=length, run=run, **measured, unit="s")
    if promised:
        bench.paired(f"{name} layer, T={length}: ours / bare products", seconds.values(), 1.5)
        bench.ratio(f"{name} layer, T={length}: GiB beyond the weights", peak / GIB, 1.5, "lower")
    row = bench.rows[-2]
    return f"{length}: {1e3 * row['median']:.3g} ms, {row['ps_per_operation']:.3g}"


def _first_layer(view: ModelView, length: int) -> tuple[Layer, Callable[[], None]]:
    """The first block's Layer, from a forward pass, and a function that runs its norm and attention again."""
    block = view.blocks[0]
    visited: list[Layer] = []
    calls: list[tuple[Any, dict[str, Any]]] = []
    hook = block.attention.register_forward_pre_hook(lambda _, *call: calls.append(call), with_kwargs=True)
    with torch.no_grad(), visiting(view, visited.append):
        view.hidden(random_sample(view, length))
    hook.remove()
    args, options = calls[0]
    norm = block.attention_norm
    assert norm is not None

    def attention() -> None:
        norm.module(visited[0].residual)
        block.attention(*args, **options)

    return visited[0], attention


def whole_model(bench: Bench) -> None:
    """Time and memory of both explanations of one long sample, of models that Close Look could not run."""
    length = 32 if bench.quick else 1024
    for name, dtype in [("gpt2-xl", "float32")] + [("Llama-3.1-8B", "bfloat16")] * bench.chosen.on_gpu:
        view = _model(bench, name, dtype)
        batch = random_sample(view, length)
        run: Callable[[], Any] = partial(explain_many, view, batch, REQUESTS, byte_budget=8 * GIB)
        seconds = seconds_of(run)
        with peak_memory(view.device) as peak:
            (plan,) = run()[REQUESTS[0]].plans
        facts = {"geometry": name, "dtype": dtype, "length": length, "seconds": seconds}
        bench.row(part="whole model", **facts, peak_bytes=peak.peak_bytes, predicted_bytes=plan.bytes)
        bench.ratio(f"{name} {dtype}, T={length}: seconds", seconds, 60, "lower")
        bench.ratio(f"{name} {dtype}, T={length}: GiB beyond the weights", peak.peak_bytes / GIB, 8, "lower")


def planner(bench: Bench) -> None:
    """Compare the planner's predicted bytes with the measured peak, and predict them for models that need a GPU."""
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
    for name, dtype in (("gpt2-xl", "float32"), ("Llama-3.2-3B", "bfloat16"), ("Llama-3.1-8B", "bfloat16")):
        needs = replace(MemoryNeeds.of(_weights(GEOMETRIES[name].config(), "meta", dtype)), device="cuda", fused=True)
        weights = GEOMETRIES[name].parameters * DTYPES[dtype].itemsize
        for length in (256, 1024, 4096):
            need = predict(needs, 1, length, needs.chunk(1, length))
            facts = {"geometry": name, "dtype": dtype, "length": length}
            bench.row(part="prediction for a GPU", **facts, predicted_bytes=need, weight_bytes=weights)


PARTS: dict[str, Callable[[Bench], None]] = {
    "materialising": against_materialising,
    "layers": layers,
    "whole-model": whole_model,
    "planner": planner,
}


# models and samples


def _model(bench: Bench, name: str, dtype: str = "float32", layers: int | None = None) -> ModelView:
    """A model with random weights and the shape `name`; with `layers`, cut to so many layers and a small vocabulary."""
    geometry = geometry_of(name, bench.quick, layers)
    if layers is not None:
        geometry = replace(geometry, vocabulary=128)
    return _weights(geometry.config(), bench.chosen.device, dtype)


def _weights(config: Any, device: str, dtype: str) -> ModelView:
    """A model of `config` with random weights, made on the device in their dtype, since large ones do not fit twice."""
    auto = getattr(transformers, family_of(config).kind.auto)
    with torch.device(device):
        return view_of(auto.from_config(config, dtype=DTYPES[dtype], attn_implementation="sdpa"))
