"""`closelook bench heads`: the cost of the methods of the NormXLogit paper, and its table 4 on this machine.

Each method is timed against a bare computation: a forward pass with the head at the readout position, or matrix
products alone. Models have random weights and the shapes of real ones; one sample of random tokens. Runs without Ray.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import product

import torch
from torch import Tensor

from benchmarks.parts.harness import GIB, WALL, Bench, Runs, interleave, parser, peak_bytes
from benchmarks.parts.samples import logits_at, model_of, random_sample
from closelook.jobs.bench.record import summary
from closelook.jobs.config import RunConfig
from closelook.jobs.config.methods import configured, defined_options
from closelook.jobs.geometries import GEOMETRIES
from closelook.jobs.methods import METHODS
from closelook.lrp_core import Batch, ModelView
from closelook.lrp_core.methods.record import Method
from closelook.lrp_core.parts.block import BlockView
from closelook.lrp_core.parts.layers import LinearLayer
from closelook.lrp_core.records.types import Request, UserError

READING, BY_LAYER = 1.10, 1.3  # targets: NormXLogit's seconds over a bare forward's, without and with `layers`
READ_LENGTH = 128
PRODUCTS = 1.5  # target: DecompX's seconds over those of its matrix products
DECOMPOSED = (128, 512)  # tokens
DECOMPOSED_BYTES = 4 * GIB  # target: peak bytes besides the weights
MAPS = 1.5  # target: GlobEnc's seconds over ALTI's
#: The methods of the paper's table 4 (seconds for one sample by length) and table 5 (samples that fit into memory).
TABLE_4 = ("gradient_l1", "gradient_x_input", "integrated_gradients", "decompx", "normxlogit")
GEOMETRY_4 = "bert-base"
LENGTHS = (40, 120, 360, 512)
MEMORY_GIB = 48


def main(arguments: Sequence[str] | None = None) -> dict:
    """Run the chosen parts; see `--help`. Returns the result as JSON."""
    bench = _begin(arguments)
    for part in bench.chosen.parts:
        PARTS[part](bench)
    return bench.finish()


def _begin(arguments: Sequence[str] | None) -> Bench:
    """Parse and check the options, and begin the benchmark."""
    options = parser("heads", __doc__)
    options.layers()
    options.number("--repeats", 9, "of cheap methods, at most 3 of others", quick=2)
    options.add_argument("--config", help="in table 4, the methods of this run, with its options; default the paper's")
    options.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override a key of the config")
    options.devices()
    options.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS), help="what is measured; default all")
    bench = options.begin(arguments)
    chosen = bench.chosen
    chosen.few = min(chosen.repeats, 3)
    if chosen.set and not chosen.config:
        options.error("--set changes a key of a config: also give --config")
    chosen.methods = {name: METHODS[name] for name in TABLE_4}
    if chosen.config:
        chosen.methods = _of_run(chosen.config, chosen.set)
    return bench


def _of_run(config: str, overrides: Sequence[str]) -> dict[str, Method]:
    """The methods of a config that apply to table 4's shape; of options with several values, the first."""
    run, family = RunConfig.load(config, overrides=overrides), GEOMETRIES[GEOMETRY_4].model_family
    known, chosen = configured(run), dict[str, Method]()
    for entry in run.every_method():
        tried = defined_options(known[entry.name], entry, family.capabilities)
        if tried:
            chosen[entry.name] = known[entry.name].configured(**tried[0])
    return chosen


# parts


def readings(bench: Bench) -> None:
    """Time NormXLogit against a forward pass, for an encoder and a causal model, each as language model and classifier.

    It explains target and foil; of a classifier they are its two labels.
    """
    record = METHODS["normxlogit"]
    requests = [Request(record.name, explanation, "none") for explanation in ("target", "contrastive")]
    for name, labels in product(("bert-base", "gpt2"), ((), ("no", "yes"))):
        view, batch = _model_and_sample(bench, name, READ_LENGTH, labels)
        ours = partial(record.compute, view, batch, requests)
        runs: Runs = {"normxlogit": ours, "by layer": partial(ours, layers=True), "bare": partial(bare, view, batch)}
        facts = {"part": "reading", "geometry": name, "labels": len(labels)}
        last, every, forward = bench.timed(runs, bench.chosen.repeats, **facts)[WALL]
        about = bench.about(geometry=f"{name}, {len(labels)} labels" if labels else name)
        about.paired("normxlogit, seconds / forward", (last, forward), READING)
        about.paired("normxlogit of every layer, seconds / forward", (every, forward), BY_LAYER)


def decompositions(bench: Bench) -> None:
    """Time DecompX against its matrix products: values, their mixture, output projection and MLP of every vector."""
    bench = bench.about(geometry="bert-base")
    for length in _lengths(bench, DECOMPOSED):
        view, batch = _model_and_sample(bench, bench.title, length)
        runs: Runs = {
            "decompx": partial(_explain, METHODS["decompx"], view, batch),
            "bare": partial(products, view, length),
        }
        facts = {"part": "decompx", "length": length}
        seconds = bench.timed(runs, bench.chosen.few, **facts)
        peak, _ = bench.peaks(runs, view.device, **facts)
        bench.paired(f"decompx, T={length}: seconds / products", seconds[WALL], PRODUCTS)
        bench.ratio(f"decompx, T={length}: peak bytes / 4 GiB", peak / DECOMPOSED_BYTES, 1.0, "lower")


def maps(bench: Bench) -> None:
    """Time GlobEnc against ALTI: both compute a map of every block and multiply the maps."""
    bench = bench.about(geometry="bert-base")
    view, batch = _model_and_sample(bench, bench.title, READ_LENGTH)
    runs = {name: partial(_explain, METHODS[name], view, batch) for name in ("globenc", "alti")}
    seconds = bench.timed(runs, bench.chosen.repeats, part="maps")
    bench.paired("globenc, seconds / alti", seconds[WALL], MAPS)


def table_4(bench: Bench) -> None:
    """Measure seconds and peak bytes for one sample at batch size 1, and how many samples would fit into the memory."""
    chosen, bench = bench.chosen, bench.about(geometry=GEOMETRY_4)
    for length in _lengths(bench, LENGTHS):
        view, batch = _model_and_sample(bench, GEOMETRY_4, length)
        runs = _possible({name: partial(_explain, record, view, batch) for name, record in chosen.methods.items()})
        room = MEMORY_GIB * GIB - sum(parameter.nbytes for parameter in view.model.parameters())
        memory = f"{MEMORY_GIB} GiB"
        facts = {"part": "table 4", "length": length, "layers": view.n_layers, "dtype": chosen.dtype, "memory": memory}
        for name, taken in interleave(runs, chosen.few).items():
            peak = peak_bytes(runs[name], view.device)
            bench.row(**facts, method=name, fit=room // peak, peak_bytes=peak, **summary(taken), unit="s")


PARTS: Mapping[str, Callable[[Bench], None]] = {
    "reading": readings,
    "decompx": decompositions,
    "maps": maps,
    "table_4": table_4,
}


def _possible(runs: Runs) -> Runs:
    """The runs that do not raise UserError on this model; for the others the reason is printed."""
    possible = {}
    for name, run in runs.items():
        try:
            run()
            possible[name] = run
        except UserError as error:
            print(f"left out: {name}: {' '.join(str(error).split())}")
    return possible


def _explain(record: Method, view: ModelView, batch: Batch) -> None:
    """Compute relevance for the target by a method, of partial embeddings if it has the choice."""
    explanation = "target" if "target" in record.explanations else "none"
    record.compute(view, batch, [record.bound(Request(record.name, explanation, record.embeddings[-1]))])


def _lengths(bench: Bench, lengths: Sequence[int]) -> list[int]:
    """The lengths; at most 32 tokens with --quick."""
    return list(dict.fromkeys(min(length, 32) if bench.quick else length for length in lengths))


def _model_and_sample(bench: Bench, name: str, length: int, labels: Sequence[str] = ()) -> tuple[ModelView, Batch]:
    """A model with random weights, and one sample of random tokens; at most 32 with --quick."""
    view = model_of(name, bench.chosen, labels)
    return view, random_sample(view, *_lengths(bench, [length]))


# what methods are compared with: bare forward passes and matrix products alone


@torch.inference_mode()
def bare(view: ModelView, batch: Batch) -> None:
    """Runs the backbone, and the head at the position where each sample predicts."""
    logits_at(view, int(batch.position[0]), input_ids=batch.input_ids, attention_mask=batch.attention_mask)


@torch.inference_mode()
def products(view: ModelView, length: int) -> None:
    """Computes the matrix products that the vectors of one sample need, on random numbers.

    The last layer needs one destination only; before the first layer, there are no vectors of earlier layers.
    """
    drawn = partial(torch.randn, dtype=view.dtype, device=view.device)
    value, output = drawn(view.d_model, view.head_dim), drawn(view.head_dim, view.d_model)
    weights, vectors = drawn(length, length), drawn(length, length, view.d_model)
    for index, block in enumerate(view.blocks):
        rows = 1 if index == view.n_layers - 1 else length
        for _ in range(view.n_heads):
            if index:
                values = vectors @ value  # [Tj, Tk, K]
                mixed = (weights[:rows] @ values.flatten(1)).view(-1, view.head_dim)
                torch.mm(mixed, output)
            else:
                torch.mm(vectors[0], value)
        _feed_forward(vectors[:rows], view, block)


def _feed_forward(vectors: Tensor, view: ModelView, block: BlockView) -> None:
    """Multiplies vectors [Ti, Tj, D] by both matrices of the block's feed-forward network."""
    layers = [LinearLayer(module, "linear", view.family.transposed) for module in (block.up, block.down)]
    up, down = (layer.parameters()[0] for layer in layers)
    for some in vectors.split(max(1, 2**24 // (vectors.shape[1] * up.shape[0]))):
        torch.matmul(torch.matmul(some, up.T), down.T)
