"""`closelook bench alti`: time and memory of ALTI-Logit, with targets.

Models have random weights and the shapes of real ones. Runs without Ray, on a CPU or a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import transformers
from torch import Tensor

from benchmarks.parts.harness import GIB, WALL, Bench, Runs, parser, peak_bytes
from benchmarks.parts.samples import geometry_of, random_sample
from closelook.alti import METHODS, MemoryNeeds, explain_many
from closelook.alti.layers import Layer, visiting
from closelook.alti.maps import pre_norm_map
from closelook.alti.threads import run_all, without_python
from closelook.alti.transformed import Chunk, extents, slices, value_output
from closelook.jobs.bench.record import seconds_of
from closelook.lrp_core import ModelView, Request
from closelook.lrp_core.device.memory import peak_memory
from closelook.lrp_core.families import family_of
from closelook.lrp_core.opening.loading import DTYPES
from closelook.lrp_core.opening.model import view_of
from closelook.lrp_core.records.explained import LINEAR

#: (samples, tokens) of the batches whose memory is compared with the planner's prediction.
SHAPES = ((1, 4), (64, 8), (8, 64), (1, 128), (1, 384))
QUICK_SHAPES = ((1, 16), (4, 8))
_PRODUCT_BYTES = 2**22  # of a product's output: smaller products are slower
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


def layers(bench: Bench) -> None:
    """Time and memory of one attention block with its map, compared with the time of its bare matrix products."""
    length = 32 if bench.quick else 1024
    for name in ("gpt2-xl", "Llama-3.1-8B"):
        view = _model(bench, name, layers=2)
        layer, attention = _first_layer(view, length)
        chunk = MemoryNeeds.of(view).chunk(1, length)
        ours = partial(_with_map, attention, layer, chunk)
        with torch.no_grad():
            facts = {"part": "layer", "geometry": name, "length": length}
            runs: Runs = {"ours": ours, "floor": bare_products(layer, chunk)}
            seconds = bench.timed(runs, bench.chosen.repeats, **facts)
            peak = peak_bytes(ours, view.device)
        bench.paired(f"{name} layer, T={length}: ours / bare products", seconds[WALL], 1.5)
        bench.ratio(f"{name} layer, T={length}: GiB beyond the weights", peak / GIB, 1.5, "lower")


def _with_map(attention: Callable[[], None], layer: Layer, chunk: Chunk) -> None:
    """Run a layer's attention, and compute its map."""
    attention()
    pre_norm_map(layer, chunk)


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


PARTS: dict[str, Callable[[Bench], None]] = {
    "layers": layers,
    "whole-model": whole_model,
    "planner": planner,
}


# models and samples


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


# the matrix products that a layer is compared with


def bare_products(layer: Layer, chunk: Chunk) -> Callable[[], None]:
    """A function that computes the matrix products of one sample's attention block and of its map, and nothing else.

    It uses as many threads as `chunk` has workers, blocks of the size that is fastest for products alone, and the same
    output buffers again and again.
    """
    heads, key_heads, head_dim = layer.query.shape[1], layer.key.shape[1], layer.query.shape[-1]
    x = layer.residual[0]
    length, width = x.shape
    query, values, weights = layer.query[0], layer.values()[0], layer.weights()[0]  # weights [H, Tj, Ti]
    keys = layer.key[0].repeat_interleave(heads // key_heads, 0)
    output, _ = layer.block.output_weights()
    context = x.new_empty(length, heads * head_dim).normal_()
    projections = [x.new_empty(width, n * head_dim).normal_() for n in (heads, key_heads, key_heads)]
    held = extents(1, length, chunk)[1]
    rows = max(1, _PRODUCT_BYTES // (4 * width))
    buffers = [(x.new_empty(min(rows, length), width), x.new_empty(held * heads * width)) for _ in range(chunk.workers)]

    def transformed(groups: Iterator[slice], vectors: Tensor, products: Tensor) -> None:
        for group in groups:
            some = value_output(values[None, :, group], output, products)[0]
            _causal_products(weights[:, group], some, vectors, group.start, rows)

    def run() -> None:
        for projection in projections:
            torch.mm(x, projection)
        torch.bmm(keys, query.transpose(1, 2))
        torch.bmm(weights.transpose(1, 2), values)
        torch.mm(context, output.flatten(0, 1))
        groups = iter(list(slices(length, held)))  # for all workers
        run_all([partial(transformed, groups, *pair) for pair in buffers])

    return run


@without_python
def _causal_products(weights: Tensor, products: Tensor, buffer: Tensor, first: int, rows: int) -> None:
    """Multiplies weights [H, Tj, Ti] by products [Tj, H, D], for each source j and the destinations i that see it."""
    for j in range(weights.size(1)):
        for i in range(first + j, weights.size(2), rows):
            some = weights[:, j, i : i + rows].t()
            torch.mm(some, products[j], out=buffer[: some.size(0)])
