"""`closelook bench context`: what an explanation costs by the length of its text, after AttnLRP's figure 8 and table 2.

Seconds, peak bytes beyond the weights, and cost by a stated price and power, of one sample at batch size 1. What takes
many forwards runs them one after the other; of these a few are timed, and the whole is told from them. Random weights
of real geometries and random tokens, or a model of your own. Runs without Ray, on a CPU or a GPU.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import combinations
from typing import Any

import torch

from jobs.bench.context_ways import (
    ATTNLRP,
    CHECKPOINT,
    FORWARD,
    KERNELS,
    PERTURBATION,
    Subject,
    Way,
    bare,
    drawn,
    explain,
    opened,
    sample,
    silent,
    ways_of,
)
from jobs.bench.growth import Curve, crossings, power_law
from jobs.bench.harness import Bench, device_name, interleave, paired_ratio, parser, summary
from jobs.plan.geometries import GEOMETRIES
from lrp_core import METHODS, Batch, ModelView
from lrp_core.loading import DTYPES
from lrp_core.memory import is_out_of_memory, peak_memory

LENGTHS = (32, 64, 128, 256, 512, 1024, 2048, 4096)
#: The longest, and the geometries with their layers (None: all), on a CPU and on a GPU.
ON_CPU = (1024, (("gpt2", None), ("Llama-3.2-1B", 1)))
ON_GPU = (4096, (("gpt2", None), ("Llama-2-7b", None)))
WATTS, PRICE = 130.0, 0.16  # of a device; dollars a kilowatt hour (AttnLRP B.6)
KERNEL_LENGTH, KERNEL_TARGET = 1024, 1.1  # attnlrp's seconds, of a bare forward and backward
CHECKPOINTED, CHECKPOINTED_LENGTH = "gpt2-medium", 512
CHECKPOINT_SECONDS, CHECKPOINT_BYTES = 1.5, 0.25  # of attnlrp without
BY_LAYERS_LENGTH = 128

#: Table 2: exponents of compute in the number of tokens, and of memory in that of layers, each of one forward's.
TABLE_2 = {CHECKPOINT: (0.0, 0.5), PERTURBATION: (1.0, 0.0)}
_MIB = 2**20
_SHORT = 128  # tokens


def main(arguments: Sequence[str] | None = None) -> dict:
    """Runs every part on every model; see `--help`. Returns the JSON."""
    chosen = _options(arguments)
    bench = Bench("context", device_name(chosen.device))
    for subject in _subjects(chosen):
        view = subject.open(KERNELS[0])
        lengths = subject.lengths(view, chosen.lengths)
        seconds, peaks = curves(bench, subject, view, lengths, chosen)
        told(bench, subject, seconds, peaks)
        kernels(bench, subject, view, max([lengths[0], *(n for n in lengths if n <= KERNEL_LENGTH)]), chosen)
        del view
        if subject.geometry is not None and subject.geometry.layers >= 4:
            by_layers(bench, subject, min(BY_LAYERS_LENGTH, lengths[-1]), chosen)
    checkpointing(bench, chosen)
    return bench.finish(chosen)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    options = parser("context", __doc__ or "")
    fit = [name for name, geometry in GEOMETRIES.items() if geometry.model_family.decoder is None]
    fit = [name for name in fit if not GEOMETRIES[name].model_family.kind.images]
    said = "repeat; default gpt2 and Llama-2-7b, on a CPU gpt2 and one layer of Llama-3.2-1B"
    options.add_argument("--geometry", action="append", choices=sorted(fit), help=said)
    options.add_argument("--model", action="append", default=[], help="a folder or a hub id instead; repeat")
    options.add_argument("--layers", type=int, help="of each geometry; default all")
    longest = f"default {', '.join(map(str, LENGTHS))}; on a CPU to {ON_CPU[0]}"
    options.add_argument("--lengths", type=_lengths, help=f"tokens, separated by commas ({longest})")
    options.add_argument(
        "--repeats", type=int, help=f"default 3; on a CPU 1 beyond {_SHORT} tokens, 2 of ratios; quick 1"
    )
    options.add_argument("--watts", type=float, default=WATTS, help=f"power of the device (default {WATTS:g})")
    options.add_argument("--price", type=float, default=PRICE, help=f"dollars a kilowatt hour (default {PRICE:g})")
    options.add_argument("--dtype", default="float32", choices=list(DTYPES))
    options.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    chosen = options.parse_args(arguments)
    if chosen.device.startswith("cuda") and not torch.cuda.is_available():
        options.error(f"--device {chosen.device}: torch sees no GPU here")
    chosen.on_gpu = chosen.device.startswith("cuda")
    most, chosen.usual = ON_GPU if chosen.on_gpu else ON_CPU
    chosen.lengths = chosen.lengths or [length for length in LENGTHS if length <= (64 if chosen.quick else most)]
    return chosen


def _lengths(text: str) -> list[int]:
    lengths = sorted({int(part) for part in text.split(",") if part.strip().isdigit()})
    if not lengths or lengths[0] < 2 or len(lengths) != len(text.split(",")):
        raise argparse.ArgumentTypeError(f"{text!r} are no different numbers of tokens, from 2")
    return lengths


def _subjects(chosen: argparse.Namespace) -> Iterator[Subject]:
    for model_id in chosen.model:
        yield Subject({"model": model_id}, partial(opened, model_id, chosen.dtype, chosen.device))
    asked = [(name, chosen.layers) for name in chosen.geometry or ()]
    usual = () if chosen.model else [(name, chosen.layers or layers) for name, layers in chosen.usual]
    for name, layers in asked or usual:
        geometry = GEOMETRIES[name].shrunk() if chosen.quick else GEOMETRIES[name]
        cut = replace(geometry, layers=min(geometry.layers, layers or geometry.layers))
        some = f", {cut.layers} of {geometry.layers} layers" if cut.layers < geometry.layers else ""
        yield Subject({"geometry": f"{name}{some}"}, partial(drawn, cut, chosen.dtype, chosen.device), cut)


# what is measured


def curves(
    bench: Bench, subject: Subject, view: ModelView, lengths: Sequence[int], chosen: argparse.Namespace
) -> tuple[dict[str, Curve], dict[str, Curve]]:
    """Seconds and peak bytes of every way at every length, until memory ends."""
    seconds: dict[str, dict[float, float]] = {}
    peaks: dict[str, dict[float, float]] = {}
    for length in lengths:
        batch = sample(view, length)
        repeats = chosen.repeats or (1 if chosen.quick or (length > _SHORT and not chosen.on_gpu) else 3)
        warmup = int(chosen.on_gpu or length <= _SHORT)  # what is short has made ready what is long
        ways = _that_fit(bench, subject, ways_of(view, batch), length, peaks, chosen.device)
        taken = interleave({name: silent(way.run) for name, way in ways.items()}, repeats, warmup, chosen.device)
        for name, own in taken.items():
            whole_s = summary([ways[name].whole * value for value in own])
            seconds.setdefault(name, {})[length] = whole_s["median"]
            _row(bench, subject, view, name, length, whole_s, int(peaks[name][length]), ways[name].whole != 1, chosen)
        if length == lengths[0]:
            _whole(bench, subject, view, batch, seconds)
    return dict(seconds), dict(peaks)


def _row(
    bench: Bench,
    subject: Subject,
    view: ModelView,
    name: str,
    length: int,
    whole_s: Mapping[str, Any],
    peak_bytes: int,
    extrapolated: bool,
    chosen: argparse.Namespace,
) -> None:
    dollars = whole_s["median"] / 3600 * chosen.watts / 1000 * chosen.price
    facts = {"method": name, "length": length, "layers": view.n_layers, "dtype": chosen.dtype}
    stated = {"watts": f"{chosen.watts:g}", "price_per_kwh": f"{chosen.price:g}", "extrapolated": extrapolated}
    measured = {"wall_s": whole_s, "peak_bytes": peak_bytes, "cost_usd": dollars}
    bench.row(part="curve", **subject.columns, **facts, **stated, **measured)
    said = f"{'~' if extrapolated else ' '}{whole_s['median']:9.4f} s  {peak_bytes / _MIB:9.1f} MiB  {dollars:.2e} $"
    print(f"{subject.name}, T={length:4}: {name:24}{said}", flush=True)


def _that_fit(
    bench: Bench,
    subject: Subject,
    ways: Mapping[str, Way],
    length: int,
    peaks: dict[str, dict[float, float]],
    device: str,
) -> dict[str, Way]:
    """The `ways` that fit in memory; their peak bytes enter `peaks`."""
    fit = {}
    for name, way in ways.items():
        try:
            with peak_memory(device) as peak:
                way.measured()
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            bench.row(part="curve", **subject.columns, method=name, length=length, state="out of memory")
            print(f"{subject.name}, T={length:4}: {name:24} out of memory", flush=True)
            continue
        finally:
            if device.startswith("cuda"):
                torch.cuda.empty_cache()
        peaks.setdefault(name, {})[length] = peak.peak_bytes
        fit[name] = way
    return fit


def _whole(
    bench: Bench, subject: Subject, view: ModelView, batch: Batch, seconds: Mapping[str, Mapping[float, float]]
) -> None:
    """Also the whole of what was told from a part, as one over the other."""
    length, parts = batch.input_ids.shape[1], ways_of(view, batch)
    whole = {n: silent(way.run) for n, way in ways_of(view, batch, whole=True).items() if parts[n].whole != 1}
    for name, own in interleave(whole, 1, 0, str(view.device)).items():
        ratio = seconds[name][length] / own[0]
        bench.row(part="told from a part / whole", **subject.columns, method=name, length=length, ratio=ratio)
        print(f"{subject.name}, T={length:4}: {name} is told from a part as {ratio:.2f} of the whole", flush=True)


def told(bench: Bench, subject: Subject, seconds: Mapping[str, Curve], peaks: Mapping[str, Curve]) -> None:
    """Exponents of every way in the number of tokens, table 2's beside them, and where seconds cross."""
    forward = seconds[FORWARD]
    for name, own in seconds.items():
        relative = {length: own[length] / forward[length] for length in own}
        laws = {"seconds": power_law(own), "bytes": power_law(peaks[name]), "of_forward": power_law(relative)}
        exponents = {f"{what}_exponent": law[1] for what, law in laws.items() if law is not None}
        paper = {"table_2_of_forward_exponent": TABLE_2[name][0]} if name in TABLE_2 else {}
        if exponents:
            bench.row(part="exponents in tokens", **subject.columns, method=name, **exponents, **paper)
            known = (exponents | paper).items()
            said = ", ".join(f"{what.removesuffix('_exponent')} {value:.2f}" for what, value in known)
            print(f"{subject.name}: {name} grows with tokens as {said}")
    for first, second in combinations((name for name in seconds if name != FORWARD), 2):
        for one in crossings(seconds[first], seconds[second]):
            facts = {"method": first, "other": second, "above_behind": first if one.above else second}
            bench.row(part="crossing", **subject.columns, **facts, extrapolated=one.extrapolated, tokens=one.at)
            beyond = ", beyond what was measured" if one.extrapolated else ""
            print(f"{subject.name}: {first} and {second} take as long at {one.at:.0f} tokens{beyond}")


def kernels(bench: Bench, subject: Subject, view: ModelView, length: int, chosen: argparse.Namespace) -> None:
    """attnlrp beside a bare forward and backward, of each kernel of attention."""
    if METHODS[ATTNLRP].missing(view.family.capabilities):
        return
    for kernel in KERNELS[-1:] if view.family.eager_only else KERNELS:
        own = view if kernel == KERNELS[0] else subject.open(kernel)
        batch = sample(own, length)
        runs = {ATTNLRP: silent(partial(explain, ATTNLRP, own, batch)), "bare": silent(partial(bare, own, batch))}
        seconds = interleave(runs, _repeats_of_ratios(chosen), 1, chosen.device)
        for way, taken in seconds.items():
            facts = {"method": way, "kernel": kernel, "length": length, "layers": own.n_layers}
            bench.row(part="kernel", **subject.columns, **facts, wall_s=summary(taken))
        ratio = paired_ratio(seconds[ATTNLRP], seconds["bare"])
        title = f"T={length}: attnlrp, seconds / forward and backward, {kernel}"
        bench.ratio(title, ratio.pop("median"), KERNEL_TARGET, "lower", **subject.columns, **ratio)


def by_layers(bench: Bench, subject: Subject, length: int, chosen: argparse.Namespace) -> None:
    """How the peak bytes, of one forward's, grow with layers; table 2's exponent beside them."""
    assert subject.geometry is not None
    layers = subject.geometry.layers
    peaks: dict[str, dict[float, float]] = {}
    for count in (layers // 4, layers // 2, layers):
        view = drawn(replace(subject.geometry, layers=count), chosen.dtype, chosen.device)
        ways = ways_of(view, sample(view, length))
        for name in (FORWARD, *TABLE_2):
            with peak_memory(chosen.device) as peak:
                ways[name].measured()
            peaks.setdefault(name, {})[count] = peak.peak_bytes
            facts = {"method": name, "length": length, "layers": count}
            bench.row(part="memory by layers", **subject.columns, **facts, peak_bytes=peak.peak_bytes)
        del view
    for name, (_, exponent) in TABLE_2.items():
        law = power_law({count: own / peaks[FORWARD][count] for count, own in peaks[name].items()})
        assert law is not None
        facts = {"of_forward_exponent": law[1], "table_2_of_forward_exponent": exponent}
        bench.row(part="exponents in layers", **subject.columns, method=name, length=length, **facts)
        print(f"{subject.name}: bytes of {name} grow with layers as {law[1]:.2f} (table 2: {exponent:g})")


def checkpointing(bench: Bench, chosen: argparse.Namespace) -> None:
    """attnlrp with blocks run again, beside attnlrp that keeps what they hold."""
    name, length = CHECKPOINTED, min(CHECKPOINTED_LENGTH, chosen.lengths[-1])
    geometry = GEOMETRIES[name].shrunk() if chosen.quick else GEOMETRIES[name]
    view = drawn(geometry, chosen.dtype, chosen.device)
    batch = sample(view, length)
    ways: dict[str, Callable[[], object]] = {
        ATTNLRP: partial(explain, ATTNLRP, view, batch),
        CHECKPOINT: partial(explain, ATTNLRP, view, batch, checkpoint=True),
    }
    runs = {way: silent(run) for way, run in ways.items()}
    seconds = interleave(runs, _repeats_of_ratios(chosen), 1, chosen.device)
    peaks = {}
    for way, run in ways.items():
        with peak_memory(chosen.device) as peak:
            run()
        peaks[way] = peak.peak_bytes
        facts = {"method": way, "length": length, "layers": view.n_layers, "peak_bytes": peak.peak_bytes}
        bench.row(part="checkpointing", geometry=name, **facts, wall_s=summary(seconds[way]))
    ratio = paired_ratio(seconds[CHECKPOINT], seconds[ATTNLRP])
    columns = {"better": "lower", "geometry": name}
    bench.ratio(
        f"T={length}: checkpointing, seconds / without", ratio.pop("median"), CHECKPOINT_SECONDS, **columns, **ratio
    )
    share = peaks[CHECKPOINT] / peaks[ATTNLRP]
    bench.ratio(f"T={length}: checkpointing, peak bytes / without", share, CHECKPOINT_BYTES, **columns)


def _repeats_of_ratios(chosen: argparse.Namespace) -> int:
    return chosen.repeats or (1 if chosen.quick else 5 if chosen.on_gpu else 2)


if __name__ == "__main__":
    main()
