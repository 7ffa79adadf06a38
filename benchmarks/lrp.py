"""`closelook bench lrp`: the cost of gradient-based methods, as in Close Look's table 8, with targets.

Models have random weights and the shapes of real ones. Language models explain samples as long as those of sva; a
vision transformer explains images under composites of rules. Counted, too, is the work of a backward pass: operations,
and the bytes that they read and write. It is the same on every machine, so if two methods do the same work in different
times, the machine makes the difference, or the cost of starting an operation. Runs without Ray, on a CPU or a GPU.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from benchmarks.parts.harness import Bench, Runs, interleave, parser, positive
from benchmarks.parts.samples import alone, drawn, geometry_of, random_sample, rows_like_sva, sva_like
from closelook.jobs.bench.record import seconds_of, summary, synchronise
from closelook.jobs.bench.table_8 import METHODS as TABLE_8
from closelook.jobs.bench.table_8 import once, table_8
from closelook.lrp_core import METHODS, Batch, ModelView, Request
from closelook.lrp_core.methods.gradients import READINGS, explain_many
from closelook.lrp_core.records.explained import CONTRASTIVE
from closelook.lrp_core.rules import ATTNLRP, Composite, changed
from closelook.lrp_core.rules.composite import EPSILON, OF_ATTNLRP, VIT
from closelook.lrp_core.rules.scope import rules_on
from closelook.lrp_core.verification.samples import random_rows

#: On a CPU, models of more parameters get fewer samples by default, and the parts that compare batchings are skipped.
_LARGE = 1_000_000_000
#: By composite, how many times as long as the plain gradient's backward pass its own may take.
TARGETS = {EPSILON: 1.05, VIT: 2.5}
_IMAGES = 10  # the most images; each has as many tokens as a long text


def main(arguments: Sequence[str] | None = None) -> dict:
    """Run all parts on every chosen shape; see `--help`. Returns the result as JSON."""
    options = parser("lrp", __doc__)
    usual = "default 40; large models on a CPU 10; quick 3"
    options.add_argument("--samples", type=positive, help=f"samples of batch size 1 ({usual})")
    options.geometries("bert-base", "gpt2", "Llama-3.2-1B", "vit-base-patch16-224")
    options.devices()
    bench = options.begin(arguments)
    for name in bench.chosen.geometry:
        _measure(bench, name)
    return bench.finish()


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


def work(bench: Bench, view: ModelView, batch: Batch) -> None:
    """Count operations and bytes of the backward pass and aggregation of one sample, which bound table 8's ratios."""
    for method in TABLE_8:
        counting = Counting()
        once(view, batch, method, counting)
        bench.row(part="work", method=method, length=batch.input_ids.shape[1], **vars(counting.work))


def memory(bench: Bench, view: ModelView, length: int) -> None:
    """Measure the peak of bytes, besides weights and inputs, while a sample of `length` tokens is explained."""
    batch = random_sample(view, length)
    runs: Runs = {name: partial(once, view, batch, name) for name in ("gradient_x_input", "lrp", "attnlrp")}
    plain, _, attnlrp = bench.peaks(runs, view.device, part="memory", length=length)
    bench.ratio("attnlrp peak bytes / plain", attnlrp / plain, 1.1, "lower")


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


@dataclass
class Counted:
    """Counts of work. `product_bytes` are the bytes of matrix products, which every rule needs."""

    operations: float = 0.0
    moved_bytes: int = 0
    product_bytes: int = 0


class Counting(TorchDispatchMode):
    """Counts what is computed inside the `with`. Views of a tensor, such as transposes, count as no work."""

    def __init__(self) -> None:
        super().__init__()
        self.work = Counted()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func.is_view or func is torch.ops.aten.detach.default:
            return result
        leaves = [leaf for leaf in tree_iter((args, kwargs, result)) if isinstance(leaf, Tensor)]
        size = sum(leaf.numel() * leaf.element_size() for leaf in leaves)
        self.work.operations += 1
        self.work.moved_bytes += size
        if func.overloadpacket in (torch.ops.aten.mm, torch.ops.aten.bmm, torch.ops.aten.addmm):
            self.work.product_bytes += size
        return result


def composites(bench: Bench, view: ModelView, count: int) -> None:
    """Measures milliseconds of a backward pass to the pixels of one image: plain, and under two composites of attnlrp.

    They take turns on each of `count` images. On a CPU, processor seconds are measured, because other processes of a
    busy machine disturb them less than they disturb clock time.
    """
    rules: dict[str, Composite | None] = {"plain": None}
    rules |= {name: changed(ATTNLRP, OF_ATTNLRP.read(name)) for name in TARGETS}
    seconds: dict[str, list[float]] = {name: [] for name in rules}
    for index, row in enumerate(random_rows(view, range(count))):
        batch = alone(row).to(view.device)
        runs = {name: partial(backward, view, batch, rule) for name, rule in rules.items()}
        for name, taken in interleave(runs, repeats=1, warmup=index == 0).items():
            seconds[name] += taken
    clock = "wall" if view.device.type == "cuda" else "cpu"
    for name, taken in seconds.items():
        milliseconds = [1e3 * second for second in taken]
        bench.row(part="composites", composite=name, **{f"{clock}_backward_ms": summary(milliseconds)})
    for name, target in TARGETS.items():
        bench.paired(f"composite {name}: backward / plain", (seconds[name], seconds["plain"]), target)


def backward(view: ModelView, batch: Batch, composite: Composite | None) -> float:
    """Seconds of one backward pass from the logit difference to tokens and pixels.

    A `composite` of None means the stock model without any rule.
    """
    clock = time.perf_counter if view.device.type == "cuda" else time.process_time
    with torch.enable_grad(), nullcontext() if composite is None else rules_on(view, [composite]):
        traced = view.traced(batch)
        assert traced.pixels is not None
        explained = CONTRASTIVE.of(view.logits(view.hidden(batch, traced.token), batch))
        synchronise()
        start = clock()
        torch.autograd.grad(explained.sum(), (traced.token, traced.pixels))
        synchronise()
        return clock() - start
