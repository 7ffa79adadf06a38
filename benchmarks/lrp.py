"""`closelook bench lrp`: the cost of gradient-based methods, as in Close Look's table 8, with targets.

Models have random weights and the shapes of real ones. Language models explain samples as long as those of sva; a
vision transformer explains images under composites of rules. With --config only table 8 is measured, on the config's
models and the first of its prepared samples. Runs without Ray, on a CPU or a GPU.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import partial

from benchmarks.parts.composites import composites
from benchmarks.parts.harness import Bench, Options, Runs, interleave, parser, peak_bytes, positive
from benchmarks.parts.samples import alone, drawn, geometry_of, random_sample, rows_like_sva, sva_like
from benchmarks.parts.work import Counting
from jobs.bench.record import seconds_of, summary
from jobs.bench.table_8 import METHODS as TABLE_8
from jobs.bench.table_8 import once, table_8
from jobs.geometries import GEOMETRIES
from lrp_core import METHODS, Batch, ModelView, Request
from lrp_core.methods.gradients import READINGS, explain_many

USUAL = ("bert-base", "gpt2", "Llama-3.2-1B", "vit-base-patch16-224")
#: On a CPU, models of more parameters get fewer samples by default, and the parts that compare batchings are skipped.
_LARGE = 1_000_000_000
_IMAGES = 10  # the most images; each has as many tokens as a long text


def main(arguments: Sequence[str] | None = None) -> dict:
    """Run all parts on every chosen shape, or table 8 on a config's models; see `--help`. Returns the JSON."""
    bench = _begin(arguments)
    chosen = bench.chosen
    if chosen.config is not None:
        from benchmarks.parts.configured import measure_config

        chosen.root = measure_config(bench)
        return bench.finish()
    for name in chosen.geometry or USUAL:
        _measure(bench, name)
    return bench.finish()


def _begin(arguments: Sequence[str] | None) -> Bench:
    """Parse and check the options, and begin the benchmark."""
    options: Options = parser("lrp", __doc__)
    usual = "default 40; large models on a CPU 10; quick 3; of a config 1000"
    options.add_argument("--samples", type=positive, help=f"samples of batch size 1 ({usual})")
    usual = ", ".join(USUAL)
    options.add_argument("--geometry", action="append", choices=sorted(GEOMETRIES), help=f"repeat (default {usual})")
    options.devices()
    options.add_argument(
        "--config", help="table 8 on the models and the prepared samples of this config; adds to its root"
    )
    options.add_argument("--set", action="append", metavar="KEY=VALUE", help="override a key of the config; repeat")
    options.add_argument(
        "--lxt", metavar="PYTHON", help="also time lxt's efficient path, with this interpreter, which has it installed"
    )
    bench = options.begin(arguments)
    chosen = bench.chosen
    if chosen.config is None and chosen.set:
        options.error("--set overrides a config: also give --config")
    if chosen.config is not None and (chosen.geometry or chosen.lxt):
        options.error("--config measures its own models: leave out --geometry and --lxt")
    return bench


def _measure(bench: Bench, name: str) -> None:
    """Run all parts on one shape."""
    chosen, quick = bench.chosen, bench.quick
    geometry = geometry_of(name, quick)
    bench = bench.about(geometry=f"{name} shrunk" if quick else name)
    view = drawn(geometry, chosen)
    large = geometry.parameters > _LARGE and not chosen.on_gpu
    usual = 10 if large else 40
    samples = chosen.samples or (3 if quick else usual)
    if geometry.model_family.kind.images:
        composites(bench, view, min(samples, _IMAGES))
        return
    batches = sva_like(view, samples)
    table_8(bench, view, batches)
    work(bench, view, batches[0])
    memory(bench, view, length=32 if quick else 512)
    if not large:
        sharing(bench, view, batches[: max(2, samples // 8)])
        batching(bench, view, size=16 if quick else 64)
    if chosen.lxt is not None:
        from benchmarks.parts.peers.peer import against_lxt

        against_lxt(bench, geometry, view, chosen.lxt, rows_like_sva(view, samples))


def work(bench: Bench, view: ModelView, batch: Batch) -> None:
    """Count operations and bytes of the backward pass and aggregation of one sample, which bound table 8's ratios."""
    for method in TABLE_8:
        counting = Counting()
        once(view, batch, method, counting)
        bench.row(part="work", method=method, length=batch.input_ids.shape[1], **vars(counting.work))


def memory(bench: Bench, view: ModelView, length: int) -> None:
    """Measure the peak of bytes, besides weights and inputs, while a sample of `length` tokens is explained."""
    batch = random_sample(view, length)
    peaks = {}
    for method in ("gradient_x_input", "lrp", "attnlrp"):
        peaks[method] = peak_bytes(partial(once, view, batch, method), view.device)
        bench.row(part="memory", method=method, length=length, peak_bytes=peaks[method])
    ratio = peaks["attnlrp"] / peaks["gradient_x_input"]
    bench.ratio("attnlrp peak bytes / plain", ratio, 1.1, "lower")


def sharing(bench: Bench, view: ModelView, batches: Sequence[Batch]) -> None:
    """Time all explanations by all gradient methods in one call, against one call for each explanation."""
    methods = [METHODS[name] for name, reading in READINGS.items() if not reading.composite.softmax.backward]
    requests = [
        Request(method.name, explanation, embedding)
        for method in methods  # without methods with a rule for the softmax, which have a pass of their own
        for explanation in method.explanations
        for embedding in method.embeddings
    ]

    def separately(batch: Batch) -> None:
        for request in requests:
            explain_many(view, batch, [request])

    together_s, separately_s = [], []
    for batch in batches:
        runs: Runs = {
            "together": partial(explain_many, view, batch, requests),
            "separately": partial(separately, batch),
        }
        seconds = interleave(runs, repeats=1, warmup=0)
        together_s += seconds["together"]
        separately_s += seconds["separately"]
    bench.row(part="sharing", explanations=len(requests), wall_s=summary(together_s))
    bench.paired("all explanations together / apart", (together_s, separately_s), 0.5)


def batching(bench: Bench, view: ModelView, size: int) -> None:
    """Measure the samples a second of attnlrp in batches of `size` samples of similar length, against batch size 1."""
    rows = rows_like_sva(view, 4 * size)
    by_length = sorted(rows, key=lambda row: len(row["input_ids"]))
    buckets = [Batch.collate(by_length[start : start + size], 0) for start in range(0, len(rows), size)]
    single = [alone(row) for row in random.Random(0).sample(rows, size // 2)]

    def explain(batches: Sequence[Batch]) -> None:
        for batch in batches:
            explain_many(view, batch, [Request("attnlrp")])

    def per_sample_s(batches: Sequence[Batch]) -> float:
        return seconds_of(partial(explain, batches)) / sum(map(len, batches))

    runs = {"one": partial(per_sample_s, single), "bucketed": partial(per_sample_s, buckets)}
    seconds = interleave(runs, repeats=3)
    median_s = summary(seconds["bucketed"])["median"]
    bench.row(part="batching", batch=size, samples_per_s=1 / median_s)
    target = 20.0 if bench.chosen.on_gpu else 2.5
    bench.paired("bucketed / batch 1 throughput", seconds.values(), target, "higher")
