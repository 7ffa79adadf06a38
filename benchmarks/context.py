"""`closelook bench context`: the cost of an explanation by the length of its text, as in AttnLRP (figure 8, table 2).

It measures seconds, peak bytes besides the weights, and dollars (from a price and the power of the device), for one
sample at batch size 1. Methods with many forward passes run them one after the other; a few are timed and the total is
extrapolated. Models have random weights and the shapes of real ones, or are your own; texts are random tokens. Runs
without Ray, on a CPU or a GPU.
"""

from __future__ import annotations

import argparse
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import combinations, pairwise

from benchmarks.parts.context_variants import (
    ATTNLRP,
    CHECKPOINT,
    FORWARD,
    KERNELS,
    PERTURBATION,
    Subject,
    bare,
    explain,
    lengths_that_fit,
    opened,
    variants_of,
)
from benchmarks.parts.harness import WALL, Bench, Curve, Runs, exponent_of, interleave, parser, peak_bytes, positive
from benchmarks.parts.samples import drawn, geometry_of, random_sample, title_of
from closelook.jobs.bench.record import summary
from closelook.jobs.geometries import GEOMETRIES
from closelook.lrp_core import METHODS, Batch, ModelView

LENGTHS = (32, 64, 128, 256, 512, 1024, 2048, 4096)
#: The longest text, and the shapes with their layers (None: all), by default on a CPU and on a GPU.
ON_CPU = (1024, (("gpt2", None), ("Llama-3.2-1B", 1)))
ON_GPU = (4096, (("gpt2", None), ("Llama-2-7b", None)))
WATTS, PRICE = 130.0, 0.16  # power of a device; dollars for a kilowatt hour (AttnLRP B.6)
KERNEL_LENGTH, KERNEL_TARGET = 1024, 1.1  # target: attnlrp's seconds over those of a bare forward and backward
CHECKPOINTED, CHECKPOINTED_LENGTH = "gpt2-medium", 512
CHECKPOINT_SECONDS, CHECKPOINT_BYTES = 1.5, 0.25  # targets: with checkpointing over without
BY_LAYERS_LENGTH = 128

#: AttnLRP's table 2: the exponents of compute in tokens and of memory in layers, relative to one forward pass.
TABLE_2 = {CHECKPOINT: (0.0, 0.5), PERTURBATION: (1.0, 0.0)}
_SHORT = 128  # texts of at most so many tokens are repeated more often
Curves = dict[str, dict[float, float]]  # by variant: the measured number by length or layers


def main(arguments: Sequence[str] | None = None) -> dict:
    """Run all parts on every chosen model; see `--help`. Returns the result as JSON."""
    results = _begin(arguments)
    asked = results.chosen.lengths
    for subject in _subjects(results.chosen):
        bench = results.about(**subject.columns)
        view = subject.open(KERNELS[0])
        lengths = lengths_that_fit(bench.title, view, asked)
        seconds, peaks = curves(bench, view, lengths)
        note_growth(bench, seconds, peaks)
        kernels(bench, subject, view, max([lengths[0], *(n for n in lengths if n <= KERNEL_LENGTH)]))
        del view
        if subject.geometry is not None and subject.geometry.layers >= 4:
            by_layers(bench, subject, min(BY_LAYERS_LENGTH, lengths[-1]))
    checkpointing(results.about(geometry=CHECKPOINTED), min(CHECKPOINTED_LENGTH, asked[-1]))
    return results.finish()


def _begin(arguments: Sequence[str] | None) -> Bench:
    """Parse the options, fill in default lengths, and begin the benchmark."""
    options = parser("context", __doc__)
    families = {name: geometry.model_family for name, geometry in GEOMETRIES.items()}
    texts = [name for name, family in families.items() if family.decoder is None and not family.kind.images]
    usual = "repeat; default gpt2 and Llama-2-7b, on a CPU gpt2 and one layer of Llama-3.2-1B"
    options.add_argument("--geometry", action="append", choices=sorted(texts), help=usual)
    options.add_argument("--model", action="append", default=[], help="a folder or a hub id instead; repeat")
    options.add_argument("--layers", type=positive, help="of each geometry; default all")
    longest = f"default {', '.join(map(str, LENGTHS))}; on a CPU to {ON_CPU[0]}"
    options.add_argument("--lengths", type=_lengths, help=f"tokens, separated by commas ({longest})")
    usual = f"default 3; on a CPU 1 beyond {_SHORT} tokens, 2 of ratios; quick 1"
    options.add_argument("--repeats", type=positive, help=usual)
    options.add_argument("--watts", type=float, default=WATTS, help=f"power of the device (default {WATTS:g})")
    options.add_argument("--price", type=float, default=PRICE, help=f"dollars a kilowatt hour (default {PRICE:g})")
    options.devices()
    bench = options.begin(arguments)
    chosen = bench.chosen
    most = ON_GPU[0] if chosen.on_gpu else ON_CPU[0]
    usual_lengths = [length for length in LENGTHS if length <= (64 if chosen.quick else most)]
    chosen.lengths = chosen.lengths or usual_lengths
    return bench


def _lengths(text: str) -> list[int]:
    """The sorted numbers of an option such as "32,64". Raises ArgumentTypeError for anything else."""
    parts = text.split(",")
    lengths = sorted({int(part) for part in parts if part.strip().isdigit()})
    if not lengths or lengths[0] < 2 or len(lengths) != len(parts):
        raise argparse.ArgumentTypeError(f"{text!r}: give different numbers of tokens, 2 or more, separated by commas")
    return lengths


def _subjects(chosen: argparse.Namespace) -> Iterator[Subject]:
    """Yield the models that the options ask for: --model, then --geometry or the default shapes."""
    for model_id in chosen.model:
        yield Subject({"model": model_id}, partial(opened, model_id, chosen.dtype, chosen.device))
    asked = [(name, None) for name in chosen.geometry or ()]
    usual = () if chosen.model else (ON_GPU if chosen.on_gpu else ON_CPU)[1]
    for name, layers in asked or usual:
        cut = geometry_of(name, chosen.quick, chosen.layers or layers)
        yield Subject({"geometry": title_of(name, cut, chosen.quick)}, partial(drawn, cut, chosen), cut)


# measurements


def curves(bench: Bench, view: ModelView, lengths: Sequence[int]) -> tuple[Curves, Curves]:
    """Measure seconds and peak bytes of every variant at every length, as far as it fits in memory."""
    chosen = bench.chosen
    seconds: Curves = defaultdict(dict)
    peaks: Curves = defaultdict(dict)
    for length in lengths:
        batch = random_sample(view, length)
        variants = variants_of(view, batch)
        for name, variant in variants.items():
            peak = bench.peak_that_fits(variant.measured, view.device, part="curve", method=name, length=length)
            if peak is not None:
                peaks[name][length] = peak
        runs = {name: variant.run for name, variant in variants.items() if length in peaks[name]}
        short = chosen.on_gpu or length <= _SHORT  # long texts on a CPU need no warm-up after the short ones
        repeats = chosen.repeats or (3 if short and not bench.quick else 1)
        for name, taken in interleave(runs, repeats, warmup=int(short)).items():
            ratio = variants[name].full_cost_ratio
            full_s = summary([ratio * value for value in taken])
            seconds[name][length] = median_s = full_s["median"]
            dollars = median_s / 3600 * chosen.watts / 1000 * chosen.price
            facts = {"method": name, "length": length, "layers": view.n_layers, "dtype": chosen.dtype}
            facts |= {"watts": f"{chosen.watts:g}", "price_per_kwh": f"{chosen.price:g}", "extrapolated": ratio != 1}
            measured = {"wall_s": full_s, "peak_bytes": int(peaks[name][length]), "cost_usd": dollars}
            bench.row(part="curve", **facts, **measured)
        if length == lengths[0]:
            _compare_with_full(bench, view, batch, seconds)
    return seconds, peaks


def _compare_with_full(bench: Bench, view: ModelView, batch: Batch, seconds: Curves) -> None:
    """Time the full computation of variants whose time was extrapolated, and note estimate over measurement."""
    length = batch.input_ids.shape[1]
    full = variants_of(view, batch, full=True)
    runs = {name: full[name].run for name, variant in variants_of(view, batch).items() if variant.full_cost_ratio != 1}
    for name, taken in interleave(runs, 1, warmup=0).items():
        ratio = seconds[name][length] / taken[0]
        bench.row(part="told from a part / whole", method=name, length=length, ratio=ratio)


def note_growth(bench: Bench, seconds: Mapping[str, Curve], peaks: Mapping[str, Curve]) -> None:
    """Note the exponents with which variants grow with tokens, those of table 2, and where seconds cross."""
    forward = seconds[FORWARD]
    for name, curve in seconds.items():
        relative = {length: value / forward[length] for length, value in curve.items()}
        exponents = {}
        for measure, grows in (("seconds", curve), ("bytes", peaks[name]), ("of_forward", relative)):
            exponent = exponent_of(grows)
            if exponent is not None:
                exponents[f"{measure}_exponent"] = exponent
        if not exponents:
            continue
        if name in TABLE_2:
            exponents["table_2_of_forward_exponent"] = TABLE_2[name][0]
        bench.row(part="exponents in tokens", method=name, **exponents)
    for first, second in combinations((name for name in seconds if name != FORWARD), 2):
        for tokens, is_above in crossings(seconds[first], seconds[second]):
            dearer = first if is_above else second
            bench.row(part="crossing", method=first, other=second, above_behind=dearer, tokens=tokens)


def crossings(first: Curve, second: Curve) -> list[tuple[float, bool]]:
    """The points where two curves cross, each with whether the first curve is the higher one behind it.

    Between measured points, curves are straight lines in the logarithms.
    """
    measured = sorted(first.keys() & second.keys())
    points = [(math.log(x), math.log(first[x] / second[x])) for x in measured]
    crossed = []
    for (x, gap), (next_x, next_gap) in pairwise(points):
        if (gap > 0) != (next_gap > 0):
            share = gap / (gap - next_gap)
            crossed.append((math.exp(x + share * (next_x - x)), next_gap > 0))
    return crossed


def kernels(bench: Bench, subject: Subject, view: ModelView, length: int) -> None:
    """Time attnlrp against a bare forward and backward, with each attention kernel."""
    if METHODS[ATTNLRP].missing(view.family.capabilities):
        return
    for kernel in KERNELS[-1:] if view.family.eager_only else KERNELS:
        kernel_view = view if kernel == KERNELS[0] else subject.open(kernel)
        batch = random_sample(kernel_view, length)
        runs = {ATTNLRP: partial(explain, ATTNLRP, kernel_view, batch), "bare": partial(bare, kernel_view, batch)}
        facts = {"part": "kernel", "kernel": kernel, "length": length, "layers": view.n_layers}
        seconds = bench.timed(runs, _repeats_of_ratios(bench), **facts)
        title = f"T={length}: attnlrp, seconds / forward and backward, {kernel}"
        bench.paired(title, seconds[WALL], KERNEL_TARGET)


def by_layers(bench: Bench, subject: Subject, length: int) -> None:
    """Measure how peak bytes, relative to one forward's, grow with layers, and note table 2's exponent."""
    assert subject.geometry is not None
    layers = subject.geometry.layers
    peaks: Curves = defaultdict(dict)
    for count in (layers // 4, layers // 2, layers):
        view = drawn(replace(subject.geometry, layers=count), bench.chosen)
        variants = variants_of(view, random_sample(view, length))
        for name in (FORWARD, *TABLE_2):
            peak = peak_bytes(variants[name].measured, view.device)
            peaks[name][count] = peak
            bench.row(part="memory by layers", method=name, length=length, layers=count, peak_bytes=peak)
        del view, variants
    for name, (_, expected) in TABLE_2.items():
        exponent = exponent_of({count: peak / peaks[FORWARD][count] for count, peak in peaks[name].items()})
        facts = {"of_forward_exponent": exponent, "table_2_of_forward_exponent": expected}
        bench.row(part="exponents in layers", method=name, length=length, **facts)


def checkpointing(bench: Bench, length: int) -> None:
    """Compare time and memory of attnlrp with and without checkpointing."""
    view = drawn(geometry_of(CHECKPOINTED, bench.quick), bench.chosen)
    run = partial(explain, ATTNLRP, view, random_sample(view, length))
    runs: Runs = {CHECKPOINT: partial(run, checkpoint=True), ATTNLRP: run}
    facts = {"part": "checkpointing", "length": length, "layers": view.n_layers}
    seconds = bench.timed(runs, _repeats_of_ratios(bench), **facts)
    again, kept = bench.peaks(runs, view.device, **facts)
    title = f"T={length}: checkpointing"
    bench.paired(f"{title}, seconds / without", seconds[WALL], CHECKPOINT_SECONDS)
    bench.ratio(f"{title}, peak bytes / without", again / kept, CHECKPOINT_BYTES, "lower")


def _repeats_of_ratios(bench: Bench) -> int:
    """The number of repetitions of runs that are compared by ratios."""
    usual = 5 if bench.chosen.on_gpu else 2
    return bench.chosen.repeats or (1 if bench.quick else usual)
