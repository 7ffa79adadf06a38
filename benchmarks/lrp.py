"""`closelook bench lrp`: the cost of gradient-based methods and of NormXLogit, with targets.

Models have random weights and the shapes of real ones. `table_8` is Close Look's, on samples as long as those of sva;
`table_4` is NormXLogit's tables 4 and 5. The other parts compare peak memory, explanations that share passes, and
NormXLogit with bare passes of the model. A vision transformer explains images under
composites of rules. Runs without Ray, on a CPU or a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import torch

from benchmarks.harness import GIB, Bench, Options, Runs, interleave, peak_bytes, positive
from benchmarks.models import alone, drawn, forward, geometry_of, random_sample, sva_like, title_of
from closelook.jobs.bench.record import seconds_of, summary
from closelook.jobs.bench.table_8 import once
from closelook.jobs.bench.table_8 import table_8 as measure_table_8
from closelook.jobs.methods import METHODS
from closelook.lrp_core import Batch, ModelView, Request
from closelook.lrp_core.methods.gradients import READINGS, explain_many, forward_pass
from closelook.lrp_core.records.explained import CONTRASTIVE
from closelook.lrp_core.rules import ATTNLRP, Composite, changed
from closelook.lrp_core.rules.composite import EPSILON, OF_ATTNLRP, VIT
from closelook.lrp_core.verification.samples import random_rows

_LARGE = (
    1_000_000_000  # parameters: larger models get fewer samples on a CPU, where parts with many passes are left out
)
#: By composite, how many times as long as the plain gradient's backward pass its own may take.
TARGETS = {EPSILON: 1.05, VIT: 2.5}
TABLE_4 = ("gradient_l1", "gradient_x_input", "integrated_gradients", "decompx", "normxlogit")
LENGTHS_4 = (40, 120, 360, 512)  # tokens
MEMORY_GIB = 48


def main(arguments: Sequence[str] | None = None) -> dict:
    """Run the chosen parts on every chosen shape; see `--help`. Returns the result as JSON."""
    options = Options("lrp", __doc__, PARTS)
    usual = "default 40; large models on a CPU 10; quick 3"
    options.add_argument("--samples", type=positive, help=f"samples of batch size 1 ({usual})")
    options.geometries("bert-base", "gpt2", "Llama-3.2-1B", "vit-base-patch16-224")
    options.number("--repeats", 5, "of what is not timed sample by sample", quick=1)
    options.devices()
    bench = options.begin(arguments)
    for name in bench.chosen.geometry:
        _measure(bench, name)
    return bench.finish()


def _measure(bench: Bench, name: str) -> None:
    """Run the chosen parts on one shape."""
    chosen = bench.chosen
    geometry = geometry_of(name, bench.quick)
    large = geometry.parameters > _LARGE and not chosen.on_gpu
    chosen.count = chosen.samples or (3 if bench.quick else 10 if large else 40)
    possible = IMAGE_PARTS if geometry.model_family.kind.images else TEXT_PARTS
    view = drawn(geometry, chosen)
    about = bench.about(geometry=title_of(geometry, bench.quick))
    for part, measure in possible.items():
        if part in chosen.parts and not (large and part in MANY_PASSES):
            measure(about, view)


def table_8(bench: Bench, view: ModelView) -> None:
    """Measure table 8 of Close Look."""
    measure_table_8(bench, view, sva_like(view, bench.chosen.count))


def memory(bench: Bench, view: ModelView) -> None:
    """Measure the peak of bytes, besides weights and inputs, while one long sample is explained."""
    length = 32 if bench.quick else 512
    batch = random_sample(view, length)
    runs: Runs = {name: partial(once, view, batch, name) for name in ("gradient_x_input", "lrp", "attnlrp")}
    plain, _, attnlrp = bench.peaks(runs, view.device, part="memory", length=length)
    bench.ratio("attnlrp peak bytes / plain", attnlrp / plain, 1.1, "lower")


def sharing(bench: Bench, view: ModelView) -> None:
    """Time all explanations by all gradient methods in one call, against one call for each explanation."""
    methods = [METHODS[name] for name, reading in READINGS.items() if not reading.composite.softmax.backward]
    requests = [
        Request(method.name, explanation, embedding)
        for method in methods  # without methods with a rule for the softmax, which have a pass of their own
        for explanation in method.explanations
        for embedding in method.embeddings
    ]
    (batch,) = sva_like(view, 1)

    def separately() -> None:
        for request in requests:
            explain_many(view, batch, [request])

    runs: Runs = {"together": partial(explain_many, view, batch, requests), "separately": separately}
    seconds = bench.timed(runs, bench.chosen.repeats, part="sharing", explanations=len(requests))
    bench.paired("all explanations together / apart", seconds, 0.5)


def normxlogit(bench: Bench, view: ModelView) -> None:
    """Time NormXLogit of target and foil against a forward pass."""
    batch = random_sample(view, 32 if bench.quick else 128)
    requests = [Request("normxlogit", explanation, "none") for explanation in ("target", "contrastive")]
    ours = partial(METHODS["normxlogit"].compute, view, batch, requests)
    runs: Runs = {"normxlogit": ours, "forward": partial(forward, view, batch)}
    seconds = bench.timed(runs, bench.chosen.repeats, part="normxlogit")
    bench.paired("normxlogit, seconds / forward", seconds, 1.1)


def table_4(bench: Bench, view: ModelView) -> None:
    """Measure NormXLogit's tables 4 and 5 on BERT's shape: seconds and peak bytes of one sample, and how many fit."""
    if not bench.title.startswith("bert-base"):
        return
    view = drawn(geometry_of("bert-base", bench.quick, None if bench.chosen.on_gpu else 4), bench.chosen)
    bench = bench.about(geometry="bert-base")
    room = MEMORY_GIB * GIB - sum(parameter.nbytes for parameter in view.model.parameters())
    facts = {"part": "table 4", "layers": view.n_layers, "dtype": bench.chosen.dtype, "memory": f"{MEMORY_GIB} GiB"}
    for length in LENGTHS_4[:1] if bench.quick else LENGTHS_4:
        length = min(length, 32) if bench.quick else length
        batch = random_sample(view, length)
        runs: Runs = {name: partial(METHODS[name].compute, view, batch, [_request(name)]) for name in TABLE_4}
        for name, taken in interleave(runs, min(3, bench.chosen.repeats)).items():
            peak = peak_bytes(runs[name], view.device)
            bench.row(
                **facts, length=length, method=name, fit=room // peak, peak_bytes=peak, **summary(taken), unit="s"
            )


def _request(name: str) -> Request:
    """A request for relevance for the target by a method, of partial embeddings if it has the choice."""
    method = METHODS[name]
    explanation = "target" if "target" in method.explanations else "none"
    return method.bound(Request(name, explanation, method.embeddings[-1]))


def composites(bench: Bench, view: ModelView) -> None:
    """Time a backward pass to the pixels of one image: plain, and under two composites of attnlrp."""
    (row,) = random_rows(view, (0,))
    batch = alone(row).to(view.device)
    runs = {"plain": partial(_backward_s, view, batch, None)}
    for name in TARGETS:
        runs[name] = partial(_backward_s, view, batch, changed(ATTNLRP, OF_ATTNLRP.read(name)))
    plain, *others = bench.timed(runs, bench.chosen.repeats, part="composites")
    for (name, target), seconds in zip(TARGETS.items(), others, strict=True):
        bench.paired(f"composite {name}: backward / plain", (seconds, plain), target)


def _backward_s(view: ModelView, batch: Batch, composite: Composite | None) -> float:
    """Seconds of a backward pass from the logit difference to tokens and pixels; without rules for None."""
    with torch.enable_grad():
        if composite is None:
            assert batch.pixel_values is not None
            pixels = batch.pixel_values.to(view.dtype).requires_grad_()
            explained = CONTRASTIVE.of(view.logits(replace(batch, pixel_values=pixels))).sum()
            return seconds_of(partial(torch.autograd.grad, explained, pixels))
        forward = forward_pass(view, batch, batch, [CONTRASTIVE.name], [composite])
        return seconds_of(partial(forward.gradients, forward.output[CONTRASTIVE.name], composite, keep=False))


#: A new part is a function of the benchmark and a model, and one line here.
TEXT_PARTS: Mapping[str, Callable[[Bench, ModelView], None]] = {
    "table_8": table_8,
    "memory": memory,
    "sharing": sharing,
    "normxlogit": normxlogit,
    "table_4": table_4,
}
MANY_PASSES = ("sharing",)
IMAGE_PARTS: Mapping[str, Callable[[Bench, ModelView], None]] = {"composites": composites}
PARTS = (*TEXT_PARTS, *IMAGE_PARTS)
