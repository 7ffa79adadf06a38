"""`closelook bench alti`: what ALTI-Logit costs in time and memory, against what is promised.

Random weights of real geometries. Runs without Ray, on a CPU or a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
import transformers

from alti import METHODS, MemoryNeeds, explain_many, predict
from alti.layers import Layer, visiting
from alti.maps import pre_norm_map
from jobs.bench.alti_baselines import bare_products, materialising
from jobs.bench.harness import Bench, device_name, interleave, paired_ratio, parser, summary
from jobs.plan.geometries import GEOMETRIES, Geometry
from lrp_core import Batch, ModelView, Request
from lrp_core.explained import LINEAR
from lrp_core.families import family_of
from lrp_core.loading import DTYPES
from lrp_core.memory import peak_memory

REQUESTS = [Request("alti_logit", explanation, "none") for explanation in LINEAR]
_GIB = 2**30


def main(arguments: Sequence[str] | None = None) -> dict:
    """Runs every part; see `--help`. Returns the JSON."""
    options = parser("alti", __doc__ or "")
    options.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options.add_argument("--repeats", type=int, help="of each timing (default 5; quick 1)")
    options.add_argument("--part", action="append", choices=list(PARTS), help="repeat for several (default: all)")
    chosen = options.parse_args(arguments)
    bench = Bench("alti", device_name(chosen.device))
    repeats = chosen.repeats or (1 if chosen.quick else 5)
    for name in chosen.part or PARTS:
        PARTS[name](bench, chosen.device, repeats, chosen.quick)
    return bench.finish(chosen)


# what is measured


def against_materialising(bench: Bench, device: str, repeats: int, quick: bool) -> None:
    """The whole of gpt2 on one sample, against every transformed vector at once."""
    length = 8 if quick else 64
    view = _model("gpt2", device, quick=quick)
    batch = _batch(view, length)
    runs: dict[str, Callable[[], Any]] = {
        "materialising": lambda: materialising(view, batch),
        "ours": lambda: explain_many(view, batch, REQUESTS),
    }
    seconds = interleave({name: _untimed(run) for name, run in runs.items()}, min(repeats, 3), device=device)
    for name, run in runs.items():
        with peak_memory(device) as peak:
            run()
        row = summary(seconds[name]) | {"peak_bytes": peak.peak_bytes}
        bench.row(part="materialising", geometry="gpt2", length=length, run=name, **row, unit="s")
    ratio = paired_ratio(seconds["materialising"], seconds["ours"])
    bench.ratio(f"gpt2, T={length}: materialising / ours", ratio.pop("median"), 50, "higher", **ratio)


def layers(bench: Bench, device: str, repeats: int, quick: bool) -> None:
    """One attention block with its map, against its bare matrix products, at several lengths: cost is T^2 H D."""
    for name in ("gpt2", "gpt2-xl", "Llama-3.1-8B"):
        lengths = (16, 32) if quick else (128, 256, 512, 1024)
        view = _model(name, device, quick=quick, layers=2)
        for length in lengths:
            promised = length == lengths[-1] and name != "gpt2"
            _layer(bench, view, name, length, repeats if promised else min(repeats, 3), device, promised)
        ours = [row for row in bench.rows if (row["part"], row["geometry"], row.get("run")) == ("layer", name, "ours")]
        costs = [f"{row['length']}: {1e3 * row['median']:.3g} ms, {row['ps_per_operation']:.3g}" for row in ours]
        print(f"{name}: a layer at T, and picoseconds per T^2 H D / 2: {'; '.join(costs)}")


def whole_model(bench: Bench, device: str, repeats: int, quick: bool) -> None:
    """Both explanations of one long sample, forward included: the cells that Close Look had to leave empty."""
    length = 32 if quick else 1024
    cells = [("gpt2-xl", "float32")] + [("Llama-3.1-8B", "bfloat16")] * device.startswith("cuda")
    for name, dtype in cells:
        view = _model(name, device, dtype, quick=quick)
        batch = _batch(view, length)
        results: list[Any] = []

        def run(view: ModelView = view, batch: Batch = batch, results: list[Any] = results) -> None:
            results[:] = [explain_many(view, batch, REQUESTS, byte_budget=8 * _GIB)]

        (seconds,) = interleave({name: run}, repeats=1, warmup=0, device=device).values()
        with peak_memory(device) as peak:
            run()
        (plan,) = results[0][REQUESTS[0]].plans
        memory = {"peak_bytes": peak.peak_bytes, "predicted_bytes": plan.bytes}
        row = {"geometry": name, "dtype": dtype, "length": length, "seconds": seconds[0]} | memory
        bench.row(part="whole model", **row)
        bench.ratio(f"{name} {dtype}, T={length}: seconds", seconds[0], 60, "lower")
        bench.ratio(f"{name} {dtype}, T={length}: GiB beyond the weights", peak.peak_bytes / _GIB, 8, "lower")


def planner(bench: Bench, device: str, repeats: int, quick: bool) -> None:
    """Predicted bytes against the measured peak, and predictions for models that need a GPU."""
    errors = []
    for name in ("gpt2", "gpt2-xl", "Llama-3.2-1B", "bert-base"):
        for dtype in ("float32", "bfloat16"):
            view = _model(name, device, dtype, quick=quick, layers=2)
            method = next(m for m in METHODS.values() if not m.missing(view.family.capabilities))
            for samples, length in ((1, 16), (4, 8)) if quick else ((1, 4), (64, 8), (8, 64), (1, 128), (1, 384)):
                with peak_memory(device) as peak:
                    result: Any = method(view, _batch(view, length, samples), byte_budget=2**50)
                (plan,) = result.plans
                sizes = {"samples": samples, "length": length, "predicted_bytes": plan.bytes}
                bench.row(part="planner", geometry=name, dtype=dtype, **sizes, peak_bytes=peak.peak_bytes)
                errors.append(abs(plan.bytes / peak.peak_bytes - 1))
    bench.ratio("planner: worst error of predicted bytes", max(errors), 0.2, "lower")
    for name, dtype in (("gpt2-xl", "float32"), ("Llama-3.2-3B", "bfloat16"), ("Llama-3.1-8B", "bfloat16")):
        needs = replace(MemoryNeeds.of(_model(name, "meta", dtype)), device="cuda", fused=True)
        for length in (256, 1024, 4096):
            need = predict(needs, 1, length, needs.chunk(1, length))
            weights = GEOMETRIES[name].parameters * DTYPES[dtype].itemsize
            row = {"geometry": name, "dtype": dtype, "length": length, "predicted_bytes": need}
            bench.row(part="prediction for a GPU", **row, weight_bytes=weights)


PARTS: dict[str, Callable[[Bench, str, int, bool], None]] = {
    "materialising": against_materialising,
    "layers": layers,
    "whole-model": whole_model,
    "planner": planner,
}


def _layer(bench: Bench, view: ModelView, name: str, length: int, repeats: int, device: str, promised: bool) -> None:
    layer, attention = _first_layer(view, length)
    chunk = MemoryNeeds.of(view).chunk(1, length)

    def ours() -> None:
        attention()
        pre_norm_map(layer, chunk)

    with torch.no_grad():
        seconds = interleave({"ours": ours, "floor": bare_products(layer, chunk)}, repeats, device=device)
        with peak_memory(device) as peak:
            ours()
    operations = length**2 / 2 * view.n_heads * view.d_model
    for run, values in seconds.items():
        row = summary(values) | {"ps_per_operation": min(values) / operations * 1e12}
        bench.row(part="layer", geometry=name, length=length, run=run, **row, unit="s", peak_bytes=peak.peak_bytes)
    if promised:
        ratio = paired_ratio(seconds["ours"], seconds["floor"])
        bench.ratio(f"{name} layer, T={length}: ours / bare products", ratio.pop("median"), 1.5, "lower", **ratio)
        bench.ratio(f"{name} layer, T={length}: GiB beyond the weights", peak.peak_bytes / _GIB, 1.5, "lower")


def _first_layer(view: ModelView, length: int) -> tuple[Layer, Callable[[], None]]:
    """The first attention block in the middle of a forward, and a function that runs its norm and attention again."""
    block = view.blocks[0]
    layers: list[Layer] = []
    calls: list[tuple[Any, dict[str, Any]]] = []
    hook = block.attention.register_forward_pre_hook(lambda _, *call: calls.append(call), with_kwargs=True)
    with torch.no_grad(), visiting(view, layers.append):
        view.hidden(_batch(view, length))
    hook.remove()
    args, options = calls[0]
    norm = block.attention_norm
    assert norm is not None

    def attention() -> None:
        norm.module(layers[0].residual)
        block.attention(*args, **options)

    return layers[0], attention


# what it is measured on


def _model(
    name: str, device: str, dtype: str = "float32", *, quick: bool = False, layers: int | None = None
) -> ModelView:
    """Random weights made on the device; few `layers`, with hardly any vocabulary, where one layer is measured."""
    geometry: Geometry = GEOMETRIES[name].shrunk() if quick else GEOMETRIES[name]
    config = (geometry if layers is None else replace(geometry, layers=layers, vocabulary=128)).config()
    auto = getattr(transformers, family_of(config).kind.auto)
    with torch.device(device):
        return ModelView.of(auto.from_config(config, dtype=DTYPES[dtype], attn_implementation="sdpa"))


def _batch(view: ModelView, length: int, samples: int = 1) -> Batch:
    draw = torch.Generator().manual_seed(0)
    ids = torch.randint(view.vocab, (samples, length), generator=draw)
    target, foil = torch.randint(view.vocab, (2, samples), generator=draw)
    return Batch(ids, torch.ones_like(ids), torch.full((samples,), length - 1), target, foil).to(view.device)


def _untimed(run: Callable[[], Any]) -> Callable[[], None]:
    """The harness takes what a run returns for its seconds."""

    def silent() -> None:
        run()

    return silent


if __name__ == "__main__":
    main()
