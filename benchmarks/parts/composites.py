"""Cost of a composite of rules: a backward pass of a vision transformer under it, compared with the plain gradient's.

The plain pass and those under two composites take turns on every image. On a CPU, processor seconds are measured,
because other processes of a busy machine disturb them less than they disturb clock time.
"""

from __future__ import annotations

import random
import time
from contextlib import nullcontext
from functools import partial

import torch

from benchmarks.parts.harness import Bench, interleave
from benchmarks.parts.samples import alone
from jobs.bench.record import summary, synchronise
from lrp_core import Batch, ModelView
from lrp_core.records.explained import CONTRASTIVE
from lrp_core.rules import ATTNLRP, Composite, changed
from lrp_core.rules.composite import EPSILON, OF_ATTNLRP, VIT
from lrp_core.rules.scope import rules_on

#: By composite, how many times as long as the plain gradient's backward pass its own may take.
TARGETS = {EPSILON: 1.05, VIT: 2.5}


def composites(bench: Bench, view: ModelView, count: int) -> None:
    """Measures milliseconds of a backward pass to the pixels of one image: plain, and under two composites of attnlrp.

    `count` images are measured.
    """
    rules: dict[str, Composite | None] = {"plain": None}
    rules |= {name: changed(ATTNLRP, OF_ATTNLRP.read(name)) for name in TARGETS}
    seconds: dict[str, list[float]] = {name: [] for name in rules}
    source = random.Random(0)
    for index in range(count):
        batch = random_image(view, source)
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


def random_image(view: ModelView, source: random.Random) -> Batch:
    """A batch of one image of random pixels, with a random target and foil, on the model's device."""
    generator = torch.Generator().manual_seed(source.randrange(2**31))
    pixels = torch.randn(view.image_shape, generator=generator)  # type: ignore[attr-defined]
    target, foil = source.sample(range(view.config.num_labels), 2)
    row = {"input_ids": [0] * view.max_length, "position": 0, "target_id": target, "foil_id": foil}
    return alone(row | {"pixel_values": pixels.numpy()}).to(view.device)
