"""`closelook bench heads`: the cost of the methods of the NormXLogit paper, and its table 4 on this machine.

Each method is timed against a bare computation: a forward pass with the head at the readout position, or matrix
products alone. Models have random weights and the shapes of real ones; one sample of random tokens. Runs without Ray.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import product

from benchmarks.parts.harness import GIB, Bench, Runs, interleave, parser, peak_bytes
from benchmarks.parts.heads_baselines import bare, every_layer_again, products
from benchmarks.parts.samples import model_of, random_sample
from jobs.bench.record import summary
from jobs.config import RunConfig
from jobs.config.methods import configured, defined_options
from jobs.geometries import GEOMETRIES
from jobs.methods import METHODS, applicable, method
from lrp_core import Batch, ModelView
from lrp_core.methods.record import Method
from lrp_core.records.types import Request, UserError

READING, BY_LAYER = 1.10, 1.3  # targets: NormXLogit's seconds over a bare forward's, without and with `layers`
READ_LENGTH = 128
PRODUCTS = 1.5  # target: DecompX's seconds over those of its matrix products
DECOMPOSED = (128, 512)  # tokens
DECOMPOSED_BYTES = 4 * GIB  # target: peak bytes besides the weights
ZEROING, ZEROED_LENGTH = 1.8, 64  # target: times as fast as running each layer again for each token
MAPS = 1.5  # target: GlobEnc's seconds over ALTI's
#: The methods of the paper's table 4 (seconds for one sample by length) and table 5 (samples that fit into memory).
TABLE_4 = ("gradient_l1", "gradient_x_input", "integrated_gradients", "decompx", "normxlogit")
GEOMETRY_4 = "bert-base"
LENGTHS = (40, 120, 360, 512)
MEMORY_GIB = 48

EVERY = "all"  # the value of --methods for all methods that apply to the shape


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
    options.add_argument(
        "--methods",
        help=f"in table 4, separated by commas; {EVERY!r}: every one that there is; default the paper's",
    )
    options.add_argument("--config", help="in table 4, the methods of this run, with its options")
    options.add_argument("--set", action="append", metavar="KEY=VALUE", help="override a key of the config; repeat")
    options.add_argument(
        "--memory-gib", type=float, default=MEMORY_GIB, help="how many samples fit into so much; default the paper's"
    )
    options.devices()
    options.add_argument(
        "--parts", default=",".join(PARTS), help="what is measured, separated by commas; default %(default)s"
    )
    bench = options.begin(arguments)
    chosen = bench.chosen
    chosen.parts = [part.strip() for part in chosen.parts.split(",")]
    for part in chosen.parts:
        if part not in PARTS:
            options.error(f"there is no part {part!r}: parts are {', '.join(PARTS)}")
    chosen.few = min(chosen.repeats, 3)
    if chosen.set and not chosen.config:
        options.error("--set changes a key of a config: also give --config")
    if chosen.methods and chosen.config:
        options.error("give --methods or --config, not both")
    if chosen.config:
        chosen.methods = _of_run(chosen.config, chosen.set or ())
    else:
        chosen.methods = _named(chosen.methods or ",".join(TABLE_4))
    return bench


def _named(names: str) -> dict[str, Method]:
    """The methods of these names, separated by commas, or all that apply to table 4's shape.

    Raises UnsupportedMethod for unknown names and for methods that do not apply to the shape.
    """
    family = GEOMETRIES[GEOMETRY_4].model_family
    if names == EVERY:
        return {record.name: record for record in applicable(family.capabilities)}
    records = [method(name.strip()) for name in names.split(",")]
    for record in records:
        record.require(family)
    return {record.name: record for record in records}


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
        last, every, forward = bench.timed(runs, bench.chosen.repeats, facts).values()
        about = bench.about(geometry=f"{name}, {len(labels)} labels" if labels else name)
        about.paired("normxlogit, seconds / forward", (last, forward), READING)
        about.paired("normxlogit of every layer, seconds / forward", (every, forward), BY_LAYER)
        _tell(f"NormXLogit of {name}, {len(labels) or 'no'} labels")


def decompositions(bench: Bench) -> None:
    """Time DecompX against its matrix products: values, their mixture, output projection and MLP of every vector."""
    bench = bench.about(geometry="bert-base")
    for length in _lengths(bench, DECOMPOSED):
        view, batch = _model_and_sample(bench, bench.title, length)
        run = partial(_explain, METHODS["decompx"], view, batch)
        facts = {"part": "decompx", "length": length}
        runs: Runs = {"decompx": run, "bare": partial(products, view, length)}
        seconds = bench.timed(runs, bench.chosen.few, facts)
        peak = peak_bytes(run, view.device)
        bench.row(**facts, peak_bytes=peak)
        bench.paired(f"decompx, T={length}: seconds / products", seconds.values(), PRODUCTS)
        bench.ratio(f"decompx, T={length}: peak bytes / 4 GiB", peak / DECOMPOSED_BYTES, 1.0, "lower")
        _tell(f"DecompX at T={length}")


def zeroings(bench: Bench) -> None:
    """Time Value Zeroing against running each layer once for each token, for an encoder and a causal model."""
    for name in ("bert-base", "gpt2"):
        view, batch = _model_and_sample(bench, name, ZEROED_LENGTH)
        runs: Runs = {
            "value_zeroing": partial(_explain, METHODS["value_zeroing"], view, batch),
            "one by one": partial(every_layer_again, view, batch),
        }
        about = bench.about(geometry=name)
        ours, one_by_one = about.timed(runs, bench.chosen.few, {"part": "value_zeroing"}).values()
        title = "value_zeroing, times as fast as layer and token one by one"
        about.paired(title, (one_by_one, ours), ZEROING, "higher")
        _tell(f"Value Zeroing of {name}")


def maps(bench: Bench) -> None:
    """Time GlobEnc against ALTI: both compute a map of every block and multiply the maps."""
    bench = bench.about(geometry="bert-base")
    view, batch = _model_and_sample(bench, bench.title, READ_LENGTH)
    runs = {name: partial(_explain, METHODS[name], view, batch) for name in ("globenc", "alti")}
    seconds = bench.timed(runs, bench.chosen.repeats, {"part": "maps"})
    bench.paired("globenc, seconds / alti", seconds.values(), MAPS)
    _tell("GlobEnc")


def table_4(bench: Bench) -> None:
    """Measure seconds and peak bytes for one sample at batch size 1, and how many samples would fit into the memory."""
    chosen, bench = bench.chosen, bench.about(geometry=GEOMETRY_4)
    memory = f"{chosen.memory_gib:g} GiB"
    for length in _lengths(bench, LENGTHS):
        view, batch = _model_and_sample(bench, GEOMETRY_4, length)
        runs = _possible({name: partial(_explain, record, view, batch) for name, record in chosen.methods.items()})
        room = max(0, int(chosen.memory_gib * GIB) - sum(parameter.nbytes for parameter in view.model.parameters()))
        facts = {"part": "table 4", "length": length, "layers": view.n_layers, "dtype": chosen.dtype, "memory": memory}
        for name, taken in interleave(runs, chosen.few).items():
            peak = peak_bytes(runs[name], view.device)
            fit, spread = room // peak, summary(taken)
            bench.row(**facts, method=name, fit=fit, peak_bytes=peak, **spread, unit="s")
            shown = f"{name} {spread['median']:.4f} s, {peak / GIB:.3f} GiB, {fit} fit in {memory}"
            print(f"{GEOMETRY_4}, T={length}: {shown}", flush=True)


PARTS: Mapping[str, Callable[[Bench], None]] = {
    "reading": readings,
    "decompx": decompositions,
    "value_zeroing": zeroings,
    "maps": maps,
    "table_4": table_4,
}


def _tell(part: str) -> None:
    """Print that a part was measured, since many minutes pass before the final table is printed."""
    print(f"measured: {part}", flush=True)


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
