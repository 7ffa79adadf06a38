"""`closelook bench heads`: what the methods of NormXLogit cost beside bare passes, and its table 4 on this machine.

Random weights of real geometries, random tokens, one sample. Bare are a forward and the head where the prediction is
read, or matrix products alone. Runs without Ray.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import torch

from jobs.bench.harness import Bench, device_name, interleave, paired_ratio, parser, summary
from jobs.bench.heads_ways import bare, every_layer_again, products
from jobs.bench.samples import alone, random_row
from jobs.config import RunConfig
from jobs.methods import METHODS, configured, defined_options, method
from jobs.plan.geometries import GEOMETRIES
from lrp_core import Batch, ModelView, random_model
from lrp_core.memory import peak_memory
from lrp_core.method import Method
from lrp_core.types import Request, UserError

_GIB = 2**30
READING, BY_LAYER = 1.10, 1.3  # NormXLogit's seconds, of a bare forward: of the last states, and of every layer's
READ_LENGTH = 128
PRODUCTS = 1.5  # DecompX's seconds, of its matrix products
DECOMPOSED = (128, 512)  # tokens
DECOMPOSED_BYTES = 4 * _GIB  # beyond the weights, at the greatest length
ZEROING, ZEROED_LENGTH = 1.8, 64  # times as fast as running each layer again for each token
MAPS = 1.5  # GlobEnc's seconds, of ALTI's
#: The paper's table 4: seconds for one sample by length, and table 5: what fits into a memory.
TABLE_4 = ("gradient_l1", "gradient_x_input", "integrated_gradients", "decompx", "normxlogit")
GEOMETRY_4 = "bert-base"
LENGTHS = (40, 120, 360, 512)
MEMORY_GIB = 48

EVERY = "all"  # methods that such a model has
Runs = dict[str, Callable[[], None]]


def main(arguments: Sequence[str] | None = None) -> dict:
    """Runs every part; see `--help`. Returns the JSON."""
    chosen = _options(arguments)
    bench = Bench("heads", device_name(chosen.device))
    for part in chosen.parts:
        PARTS[part](bench, chosen)
    return bench.finish(chosen)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    options = parser("heads", __doc__ or "")
    options.add_argument(
        "--layers", type=int, help="of each model; default all on a GPU, 4 on a CPU; quick 2 narrow ones"
    )
    options.add_argument("--repeats", type=int, help="default 9 of cheap methods, 3 of others; quick 2")
    options.add_argument(
        "--methods",
        help=f"in table 4, separated by commas; {EVERY!r}: every one that there is; default the paper's",
    )
    options.add_argument("--config", help="in table 4, the methods of this run, with its options")
    options.add_argument("--set", action="append", metavar="KEY=VALUE", help="override a key of the config; repeat")
    options.add_argument(
        "--memory-gib", type=float, default=MEMORY_GIB, help="how many samples fit into so much; default the paper's"
    )
    options.add_argument("--dtype", default="float32")
    options.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options.add_argument(
        "--parts", default=",".join(PARTS), help="what is measured, separated by commas; default %(default)s"
    )
    chosen = options.parse_args(arguments)
    chosen.parts = [part.strip() for part in chosen.parts.split(",")]
    for part in chosen.parts:
        if part not in PARTS:
            options.error(f"there is no part {part!r}: parts are {', '.join(PARTS)}")
    on_gpu = chosen.device.startswith("cuda")
    chosen.longest = 32 if chosen.quick else 512
    chosen.layers = chosen.layers or (2 if chosen.quick else 128 if on_gpu else 4)
    chosen.many = chosen.repeats or (2 if chosen.quick else 9)
    chosen.few = min(chosen.many, 3)
    if chosen.set and not chosen.config:
        options.error("--set changes a --config: give one")
    if chosen.methods and chosen.config:
        options.error("--methods or a --config, not both")
    named = chosen.methods or ",".join(TABLE_4)
    chosen.methods = _of_run(chosen.config, chosen.set) if chosen.config else _named(named)
    return chosen


def _named(names: str) -> dict[str, Method]:
    """The methods of these names. Raises UnsupportedMethod for one that there is not, or not for table 4's geometry."""
    family = GEOMETRIES[GEOMETRY_4].model_family
    if names == EVERY:
        return {name: record for name, record in METHODS.items() if not record.missing(family.capabilities)}
    records = [method(name.strip()) for name in names.split(",")]
    for record in records:
        record.require(family)
    return {record.name: record for record in records}


def _of_run(config: str, overrides: Sequence[str] | None) -> dict[str, Method]:
    """The methods of a run that the geometry of table 4 has; of options that are left open, the first."""
    run, family = RunConfig.load(config, overrides=list(overrides or ())), GEOMETRIES[GEOMETRY_4].model_family
    known, chosen = configured(run), dict[str, Method]()
    for entry in run.every_method():
        tried = defined_options(known[entry.name], entry, family.capabilities)
        if tried:
            chosen[entry.name] = known[entry.name].configured(**tried[0])
    return chosen


# what is measured


def readings(bench: Bench, chosen: argparse.Namespace) -> None:
    """Of language models and of classifiers, an encoder and a causal model each."""
    for name, labels in (("bert-base", ()), ("bert-base", ("no", "yes")), ("gpt2", ()), ("gpt2", ("no", "yes"))):
        reading(bench, name, labels, chosen)
        _tell(f"NormXLogit of {name}, {len(labels) or 'no'} labels")


def reading(bench: Bench, name: str, labels: Sequence[str], chosen: argparse.Namespace) -> None:
    """NormXLogit for target and foil, of a classifier both of its labels, beside a forward."""
    view = _model(name, chosen, labels)
    batch = _sample(view, min(READ_LENGTH, chosen.longest))
    record = METHODS["normxlogit"]

    def both(layers: bool = False) -> None:
        requests = [Request(record.name, explanation, "none") for explanation in ("target", "contrastive")]
        record.compute(view, batch, requests, layers=layers)

    runs: Runs = {
        "normxlogit": both,
        "by layer": partial(both, layers=True),
        "bare": partial(bare, view, batch),
    }
    seconds = interleave(runs, chosen.many, device=chosen.device)
    subject = f"{name}, {len(labels)} labels" if labels else name
    for way, taken in seconds.items():
        bench.row(part="reading", geometry=name, labels=len(labels), way=way, **summary(taken), unit="s")
    for way, target in (("normxlogit", READING), ("by layer", BY_LAYER)):
        ratio = paired_ratio(seconds[way], seconds["bare"])
        title = "normxlogit" if way == "normxlogit" else "normxlogit of every layer"
        bench.ratio(f"{title}, seconds / forward", ratio.pop("median"), target, "lower", geometry=subject, **ratio)


def decompositions(bench: Bench, chosen: argparse.Namespace) -> None:
    """At each length."""
    for length in dict.fromkeys(min(length, chosen.longest) for length in DECOMPOSED):
        decomposition(bench, length, chosen)
        _tell(f"DecompX at T={length}")


def decomposition(bench: Bench, length: int, chosen: argparse.Namespace) -> None:
    """DecompX beside its matrix products: values, their mixture, outputs and both of the MLP, of every vector."""
    name = "bert-base"
    view = _model(name, chosen)
    batch = _sample(view, length)
    run = partial(_explain, METHODS["decompx"], view, batch)
    runs: Runs = {"decompx": run, "bare": partial(products, view, length)}
    seconds = interleave(runs, chosen.few, device=chosen.device)
    with peak_memory(chosen.device) as peak:
        run()
    for way, taken in seconds.items():
        bench.row(part="decompx", geometry=name, length=length, way=way, **summary(taken), unit="s")
    bench.row(part="decompx", geometry=name, length=length, peak_bytes=peak.peak_bytes)
    ratio = paired_ratio(seconds["decompx"], seconds["bare"])
    title = f"decompx, T={length}"
    bench.ratio(f"{title}: seconds / products", ratio.pop("median"), PRODUCTS, "lower", geometry=name, **ratio)
    bench.ratio(f"{title}: peak bytes / 4 GiB", peak.peak_bytes / DECOMPOSED_BYTES, 1.0, "lower", geometry=name)


def zeroings(bench: Bench, chosen: argparse.Namespace) -> None:
    """Of an encoder and of a causal model."""
    for name in ("bert-base", "gpt2"):
        zeroing(bench, name, chosen)
        _tell(f"Value Zeroing of {name}")


def zeroing(bench: Bench, name: str, chosen: argparse.Namespace) -> None:
    """Value Zeroing beside running each layer by itself once for each token, at batch size 1."""
    view = _model(name, chosen)
    batch = _sample(view, min(ZEROED_LENGTH, chosen.longest))
    runs: Runs = {
        "value_zeroing": partial(_explain, METHODS["value_zeroing"], view, batch),
        "one by one": partial(every_layer_again, view, batch),
    }
    seconds = interleave(runs, chosen.few, device=chosen.device)
    for way, taken in seconds.items():
        bench.row(part="value_zeroing", geometry=name, way=way, **summary(taken), unit="s")
    gain = paired_ratio(seconds["one by one"], seconds["value_zeroing"])
    title = "value_zeroing, times as fast as layer and token one by one"
    bench.ratio(title, gain.pop("median"), ZEROING, "higher", geometry=name, **gain)


def maps(bench: Bench, chosen: argparse.Namespace) -> None:
    """GlobEnc beside ALTI: both make a map of every block and multiply them."""
    name = "bert-base"
    view = _model(name, chosen)
    batch = _sample(view, min(READ_LENGTH, chosen.longest))
    runs = {each: partial(_explain, METHODS[each], view, batch) for each in ("globenc", "alti")}
    seconds = interleave(runs, chosen.many, device=chosen.device)
    for way, taken in seconds.items():
        bench.row(part="maps", geometry=name, way=way, **summary(taken), unit="s")
    ratio = paired_ratio(seconds["globenc"], seconds["alti"])
    bench.ratio("globenc, seconds / alti", ratio.pop("median"), MAPS, "lower", geometry=name, **ratio)
    _tell("GlobEnc")


def table_4(bench: Bench, chosen: argparse.Namespace) -> None:
    """At each length."""
    for length in dict.fromkeys(min(length, chosen.longest) for length in LENGTHS):
        column_4(bench, length, chosen)


def column_4(bench: Bench, length: int, chosen: argparse.Namespace) -> None:
    """Seconds for one sample at batch size 1, its peak bytes, and how many samples the paper's memory would hold."""
    name = GEOMETRY_4
    view = _model(name, chosen)
    batch = _sample(view, length)
    runs = _possible({each: partial(_explain, record, view, batch) for each, record in chosen.methods.items()})
    weights, memory = sum(parameter.nbytes for parameter in view.model.parameters()), f"{chosen.memory_gib:g}"
    for each, taken in interleave(runs, chosen.few, device=chosen.device).items():
        with peak_memory(chosen.device) as peak:
            runs[each]()
        fit = max(0, int(chosen.memory_gib * _GIB - weights)) // peak.peak_bytes
        facts = {"method": each, "length": length, "layers": view.n_layers, "dtype": chosen.dtype}
        facts |= {"fit": fit, "memory": f"{memory} GiB"}
        bench.row(part="table 4", geometry=name, **facts, peak_bytes=peak.peak_bytes, **summary(taken), unit="s")
        median = summary(taken)["median"]
        told = f"{each} {median:.4f} s, {peak.peak_bytes / _GIB:.3f} GiB, {fit} fit in {memory} GiB"
        print(f"{name}, T={length}: {told}", flush=True)


def _tell(part: str) -> None:
    """Print that a part is measured: the whole takes many minutes, and its table stands at the end."""
    print(f"measured: {part}", flush=True)


PARTS = {
    "reading": readings,
    "decompx": decompositions,
    "value_zeroing": zeroings,
    "maps": maps,
    "table_4": table_4,
}


def _possible(runs: Runs) -> Runs:
    """The runs that do not fail on this model; of each of the others a line is printed that says why."""
    possible = {}
    for each, run in runs.items():
        try:
            run()
            possible[each] = run
        except UserError as error:
            print(f"left out: {each}: {' '.join(str(error).split())}")
    return possible


def _explain(record: Method, view: ModelView, batch: Batch) -> None:
    explanation = "target" if "target" in record.explanations else "none"
    record.compute(view, batch, [record.bound(Request(record.name, explanation, record.embeddings[-1]))])


# what it is measured on


def _model(name: str, chosen: argparse.Namespace, labels: Sequence[str] = ()) -> ModelView:
    geometry = GEOMETRIES[name].shrunk() if chosen.quick else GEOMETRIES[name]
    config = replace(geometry, layers=min(geometry.layers, chosen.layers)).config(labels)
    return random_model(config, dtype=chosen.dtype, device=chosen.device)


def _sample(view: ModelView, length: int) -> Batch:
    row = random_row(view, length, random.Random(0))
    if view.kind.labels:
        row |= {"position": length - 1 if view.kind.causal else 0, "target_id": 0, "foil_id": 1}
    return alone(row).to(view.device)


if __name__ == "__main__":
    main()
