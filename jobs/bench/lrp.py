"""`closelook bench lrp`: what gradient-family explanations cost, after Close Look's table 8, against what is promised.

Random weights of real geometries, with samples as long as those of sva, and of a vision transformer with images, under
composites of rules; with --config table 8 alone, on that config's models and the first of its prepared samples. Runs
without Ray, on a CPU or a GPU.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Sequence
from functools import partial

import torch

from jobs.bench.composites import composites
from jobs.bench.harness import Bench, Options, device_name, interleave, paired_ratio, parser, summary, synchronise
from jobs.bench.samples import alone, random_row, rows_like_sva, sva_like
from jobs.bench.table_8 import METHODS as TABLE_8
from jobs.bench.table_8 import once, table_8
from jobs.bench.work import Counting
from jobs.plan.geometries import GEOMETRIES
from lrp_core import METHODS, Batch, ModelView, Request, random_model
from lrp_core.loading import DTYPES
from lrp_core.memory import peak_memory
from lrp_core.methods.gradients import READINGS, explain_many

USUAL = ("bert-base", "gpt2", "Llama-3.2-1B", "vit-base-patch16-224")
#: On a CPU, models of more parameters get fewer samples by default and skip the parts that compare batchings.
_LARGE = 1_000_000_000
_IMAGES = 10  # each has as many tokens as a long text


def main(arguments: Sequence[str] | None = None) -> dict:
    """Runs every part on every geometry, or table 8 on a config's models; see `--help`. Returns the JSON."""
    chosen = _chosen(_options(), arguments)
    bench = Bench("lrp", device_name(chosen.device))
    if chosen.config is not None:
        from jobs.bench.configured import measure_config

        chosen.root = measure_config(bench, chosen)
        return bench.finish(chosen)
    for name in chosen.geometry or USUAL:
        geometry = GEOMETRIES[name].shrunk() if chosen.quick else GEOMETRIES[name]
        name = f"{name} shrunk" if chosen.quick else name
        view = random_model(geometry.config(), dtype=chosen.dtype, device=chosen.device)
        large = geometry.parameters > _LARGE and not chosen.device.startswith("cuda")
        samples = chosen.samples or (3 if chosen.quick else 10 if large else 40)
        if geometry.model_family.kind.images:
            composites(bench, name, view, min(samples, _IMAGES))
            continue
        batches = [batch.to(chosen.device) for batch in sva_like(view, samples)]
        table_8(bench, {"geometry": name}, view, batches)
        work(bench, name, view, batches[0])
        memory(bench, name, view, chosen.device, length=32 if chosen.quick else 512)
        if not large:
            sharing(bench, name, view, batches[: max(2, samples // 8)], chosen.device)
            batching(bench, name, view, 16 if chosen.quick else 64, chosen.device)
        if chosen.lxt is not None:
            from jobs.bench.peer import against_lxt

            against_lxt(bench, name, geometry, view, chosen.lxt, rows_like_sva(view, samples))
        del view
    return bench.finish(chosen)


def _options() -> Options:
    options = parser("lrp", __doc__ or "")
    usual = "default 40; large models on a CPU 10; quick 3; of a config 1000"
    options.add_argument("--samples", type=_positive, help=f"samples of batch size 1 ({usual})")
    usual = ", ".join(USUAL)
    options.add_argument("--geometry", action="append", choices=sorted(GEOMETRIES), help=f"repeat (default {usual})")
    options.add_argument("--dtype", default="float32", choices=list(DTYPES))
    options.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options.add_argument(
        "--config", help="table 8 on the models and the prepared samples of this config; adds to its root"
    )
    options.add_argument("--set", action="append", metavar="KEY=VALUE", help="override a key of the config; repeat")
    options.add_argument(
        "--lxt", metavar="PYTHON", help="also time lxt's efficient path, with this interpreter, which has it installed"
    )
    return options


def _chosen(options: Options, arguments: Sequence[str] | None) -> argparse.Namespace:
    chosen = options.parse_args(arguments)
    if chosen.device.startswith("cuda") and not torch.cuda.is_available():
        options.error(f"--device {chosen.device}: torch sees no GPU here")
    if chosen.config is None and chosen.set:
        options.error("--set overrides a config: say which by --config")
    if chosen.config is not None and (chosen.geometry or chosen.lxt):
        options.error("--config measures its own models: leave out --geometry and --lxt")
    return chosen


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no positive number")
    return int(text)


# what is measured


def work(bench: Bench, name: str, view: ModelView, batch: Batch) -> None:
    """Operations and bytes of the backward pass and aggregation of one sample: the floor under table 8's ratios."""
    for method in TABLE_8:
        counting = Counting()
        once(view, batch, method, counting)
        bench.row(part="work", geometry=name, method=method, length=batch.input_ids.shape[1], **vars(counting.work))


def sharing(bench: Bench, name: str, view: ModelView, batches: Sequence[Batch], device: str) -> None:
    """Five methods, target and foil, both embeddings: together, and one run per explanation."""
    requests = [
        Request(method, explanation, embedding)
        for method in READINGS
        if not READINGS[method].composite.softmax.backward  # whose pass is of its own
        for explanation in METHODS[method].explanations
        for embedding in METHODS[method].embeddings
    ]

    def together(batch: Batch) -> None:
        explain_many(view, batch, requests)

    def separately(batch: Batch) -> None:
        for request in requests:
            explain_many(view, batch, [request])

    together_s, separately_s = [], []
    for batch in batches:
        runs = {"together": partial(together, batch), "separately": partial(separately, batch)}
        seconds = interleave(runs, repeats=1, warmup=0, device=device)
        together_s += seconds["together"]
        separately_s += seconds["separately"]
    ratio = paired_ratio(together_s, separately_s)
    bench.row(part="sharing", geometry=name, explanations=len(requests), wall_s=summary(together_s))
    bench.ratio("all explanations together / apart", ratio.pop("median"), 0.5, "lower", geometry=name, **ratio)


def batching(bench: Bench, name: str, view: ModelView, size: int, device: str) -> None:
    """Samples per second of attnlrp in length-bucketed batches of `size`, against batch size 1."""
    rows = rows_like_sva(view, 4 * size)
    by_length = sorted(rows, key=lambda row: len(row["input_ids"]))
    buckets = [Batch.collate(by_length[i : i + size], 0) for i in range(0, len(rows), size)]
    single = [alone(row) for row in random.Random(0).sample(rows, size // 2)]

    def run(batches: Sequence[Batch]) -> float:
        synchronise(device)
        start = time.perf_counter()
        for batch in batches:
            explain_many(view, batch, [Request("attnlrp")])
        synchronise(device)
        return (time.perf_counter() - start) / sum(len(batch) for batch in batches)

    seconds = interleave({"one": lambda: run(single), "bucketed": lambda: run(buckets)}, repeats=3, device=device)
    ratio = paired_ratio(seconds["one"], seconds["bucketed"])
    target = 20.0 if device.startswith("cuda") else 2.5
    bench.row(part="batching", geometry=name, batch=size, samples_per_s=1 / summary(seconds["bucketed"])["median"])
    bench.ratio("bucketed / batch 1 throughput", ratio.pop("median"), target, "higher", geometry=name, **ratio)


def memory(bench: Bench, name: str, view: ModelView, device: str, length: int) -> None:
    """Most bytes held beyond weights and inputs while one sample of `length` tokens is explained."""
    batch = alone(random_row(view, length, random.Random(0))).to(device)
    peaks = {}
    for method in ("gradient_x_input", "lrp", "attnlrp"):
        with peak_memory(device) as peak:
            once(view, batch, method)
        peaks[method] = peak.peak_bytes
        bench.row(part="memory", geometry=name, method=method, length=length, peak_bytes=peaks[method])
    ratio = peaks["attnlrp"] / peaks["gradient_x_input"]
    bench.ratio("attnlrp peak bytes / plain", ratio, 1.1, "lower", geometry=name)


if __name__ == "__main__":
    main()
