"""`closelook bench answers`: the cost of explaining a long answer, and a token of a long text.

Half of a text is a prompt and half its answer. The relevance of the whole answer by attnlrp takes one forward and one
backward pass: it is timed against a bare forward and backward of the same sum of logits, as is the relevance for the
token after a text of 1,024 tokens. Peak bytes besides the weights are measured by the length of the text, with blocks
that are kept and with blocks that run again (checkpointing). Models have random weights and the shapes of real ones,
texts are random tokens. Runs without Ray, on a CPU or a GPU.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from statistics import linear_regression

import torch

from benchmarks.harness import Bench, Options, Runs, peak_bytes
from benchmarks.models import drawn, forward_and_backward, geometry_of, random_sample, title_of
from closelook.lrp_core import METHODS, Batch, ModelView
from closelook.lrp_core.records.types import span_row

LENGTHS, QUICK = (1024, 2048, 4096, 8192), (32, 64)  # tokens of prompt and answer
BESIDE_BARE = 1.15  # target: seconds of a span's relevance over those of a bare forward and backward
LINEAR = 1.1  # target: the exponent with which peak bytes grow with tokens, with checkpointing


def main(arguments: Sequence[str] | None = None) -> dict:
    """Run the chosen parts on every chosen shape; see `--help`. Returns the result as JSON."""
    options = Options("answers", __doc__, PARTS)
    options.geometries("gpt2", "Llama-3.2-1B")
    options.number("--layers", 4, "of each model, at most", quick=2, on_gpu=128)
    options.number("--longest", LENGTHS[-1], "tokens of prompt and answer", quick=QUICK[-1])
    options.number("--repeats", 3, "of what is timed", quick=1, on_gpu=10)
    options.devices()
    results = options.begin(arguments)
    chosen = results.chosen
    chosen.lengths = [length for length in (QUICK if results.quick else LENGTHS) if length <= chosen.longest]
    for name in chosen.geometry:
        geometry = replace(geometry_of(name, results.quick, chosen.layers), max_length=chosen.lengths[-1])
        view = drawn(geometry, chosen)
        for part in chosen.parts:
            PARTS[part](results.about(geometry=title_of(geometry, results.quick)), view)
    return results.finish()


def answered(view: ModelView, length: int) -> Batch:
    """A batch of one text of random tokens, a prompt and an answer of the same length, which is its span.

    The last token of the answer is predicted and not part of the input.
    """
    source = random.Random(0)
    prompt = [source.randrange(view.vocab) for _ in range(length - length // 2)]
    answer = [source.randrange(view.vocab) for _ in range(length // 2)]
    row = span_row({"input_ids": [*prompt, *answer[:-1]]}, len(prompt) - 1, answer)
    return Batch.collate([row], pad_id=0).to(view.device)


def speed(bench: Bench, view: ModelView) -> None:
    """Time the relevance for an answer and for a token against a bare forward and backward."""
    length = bench.chosen.lengths[0]
    batches = {f"T={length}": random_sample(view, length)}
    if 2 * length <= view.max_length:
        batches[f"answer of {length} tokens"] = answered(view, 2 * length)
    for name, batch in batches.items():
        runs: Runs = {"attnlrp": partial(explain, view, batch), "bare": partial(forward_and_backward, view, batch)}
        seconds = bench.timed(runs, bench.chosen.repeats, part="speed", what=name, layers=view.n_layers)
        bench.paired(f"{name}: attnlrp, seconds / bare forward and backward", seconds, BESIDE_BARE)


def growth(bench: Bench, view: ModelView) -> None:
    """Measure the peak bytes of an answer's relevance by the length of the text, and how they grow."""
    peaks: dict[bool, dict[int, int]] = {False: {}, True: {}}
    for length, checkpoint in product(bench.chosen.lengths, peaks):
        facts = {"part": "growth", "checkpoint": checkpoint, "length": length, "layers": view.n_layers}
        peak = peak_bytes(partial(explain, view, answered(view, length), checkpoint=checkpoint), view.device)
        bench.row(**facts, peak_bytes=peak)
        peaks[checkpoint][length] = peak
    lengths, logs = (list(map(math.log, numbers)) for numbers in (peaks[True], peaks[True].values()))
    if len(lengths) > 1:
        exponent = linear_regression(lengths, logs).slope
        bench.ratio("peak bytes with checkpointing, exponent in tokens", exponent, LINEAR, "lower")


def explain(view: ModelView, batch: Batch, **settings: bool) -> torch.Tensor:
    """The relevance [1, T] of tokens for the target's logit by attnlrp."""
    return METHODS["attnlrp"](view, batch, explanation="target", embedding="partial", **settings).tokens


PARTS = {"speed": speed, "growth": growth}
