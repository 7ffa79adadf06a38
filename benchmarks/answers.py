"""`closelook bench answers`: the cost of explaining a long answer, as a whole or token by token.

Half of a text is a prompt and half its answer. The relevance of the whole answer by attnlrp takes one forward and one
backward pass: it is timed against a bare forward and backward of the same sum of logits, in wall seconds and, on a CPU,
in processor seconds. Peak bytes besides the weights are measured by the length of the text, with blocks that are kept
and with blocks that run again (checkpointing). The logits of an answer after prompts that lack one source each, or a
random half of them, are timed with the common beginning of prompts read once, and with plain forwards of similar
lengths. Models have random weights and the shapes of real ones, texts are random tokens. Runs without Ray, on a CPU or
a GPU.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch

from benchmarks.parts.ablated_prompts import LONGEST, compare_prefixes
from benchmarks.parts.context_variants import ATTNLRP, CHECKPOINT, bare, explain
from benchmarks.parts.growth import power_law
from benchmarks.parts.harness import Bench, Runs, parser, peak_bytes
from benchmarks.parts.samples import drawn, geometry_of
from benchmarks.parts.two_clocks import on_two_clocks
from jobs.geometries import GEOMETRIES
from lrp_core import Batch, ModelView
from lrp_core.device.memory import is_out_of_memory
from lrp_core.records.types import span_row

LENGTHS = (1024, 2048, 4096, 8192)  # tokens of prompt and answer
COMPARED = 2048  # tokens: a prompt of about 1,000 and an answer of about 1,000
QUICK = (32, 64)
SUBJECTS = ("gpt2", "Llama-3.2-1B")
BESIDE_BARE = 1.15  # target: seconds of a span's relevance over those of a bare forward and backward
LINEAR = 1.1  # target: the exponent with which peak bytes grow with tokens, with checkpointing
ROWS = 4  # tokens of an answer that are explained one by one
BARE = "bare forward and backward"
PARTS = SPAN, GROWTH, PROMPTS = "span", "growth", "prompts"
_MIB = 2**20


def main(arguments: Sequence[str] | None = None) -> dict:
    """Run all parts on every chosen shape; see `--help`. Returns the result as JSON."""
    options = parser("answers", __doc__)
    options.add_argument("--geometry", action="append", choices=sorted(GEOMETRIES), help="default gpt2, Llama-3.2-1B")
    options.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, help="what is measured; default all")
    options.layers()
    options.number("--longest", LENGTHS[-1], "tokens of prompt and answer", quick=QUICK[-1])
    options.number("--repeats", 3, "of what is timed", quick=1, on_gpu=10)
    options.devices()
    results = options.begin(arguments)
    for name in results.chosen.geometry or SUBJECTS:
        lengths = [length for length in (QUICK if results.quick else LENGTHS) if length <= results.chosen.longest]
        geometry = replace(geometry_of(name, results.quick, results.chosen.layers), max_length=lengths[-1])
        whole = geometry_of(name, results.quick)
        some = f", {geometry.layers} of {whole.layers} layers" if geometry.layers < whole.layers else ""
        bench = results.about(geometry=f"{name}{some}")
        view = drawn(geometry, bench.chosen)
        if SPAN in bench.chosen.parts:
            compare(bench, view, COMPARED if COMPARED in lengths else lengths[-1])
        if GROWTH in bench.chosen.parts:
            grow(bench, view, lengths)
        if PROMPTS in bench.chosen.parts and view.max_length >= LONGEST:
            compare_prefixes(bench, view)
        del view
    return results.finish()


def answered(view: ModelView, length: int, weights: Sequence[float] | None = None) -> Batch:
    """A batch of one text of random tokens, a prompt and an answer of the same length, which is its span.

    The last token of the answer is predicted and not part of the input.
    """
    source = random.Random(0)
    prompt = [source.randrange(view.vocab) for _ in range(length - length // 2)]
    answer = [source.randrange(view.vocab) for _ in range(length // 2)]
    row = span_row({"input_ids": [*prompt, *answer[:-1]]}, len(prompt) - 1, answer, weights)
    return Batch.collate([row], pad_id=0).to(view.device)


def compare(bench: Bench, view: ModelView, length: int) -> None:
    """Time the relevance of an answer against a bare forward and backward, and that of some tokens one by one."""
    batch = answered(view, length)
    runs: Runs = {ATTNLRP: partial(explain, ATTNLRP, view, batch), BARE: partial(bare, view, batch)}
    facts = {"part": "span", "length": length, "answer_tokens": length // 2, "layers": view.n_layers}
    for clock, pair in on_two_clocks(bench, runs, view.device, facts).items():
        bench.paired(f"answer of {length // 2} tokens: attnlrp, {clock} / {BARE}", pair, BESIDE_BARE)
    rows = single_rows(batch)
    together = partial(explain, ATTNLRP, view, rows, texts=1)
    one_by_one: Runs = {"attnlrp, a forward for all": together, "attnlrp, each alone": partial(alone, view, rows)}
    facts |= {"part": "rows", "rows": len(rows)}
    taken = bench.timed(one_by_one, 1, facts, "method", "wall_s")
    for name, of_name in taken.items():
        print(f"{bench.title}, T={length}: {len(rows)} tokens by themselves, {name}: {min(of_name):.2f} s", flush=True)


def single_rows(batch: Batch) -> Batch:
    """A batch with a row for each of some tokens of the answer, all with the same text."""
    assert batch.span_positions is not None
    assert batch.span_ids is not None
    count = min(ROWS, batch.span_ids.shape[1])
    chosen = torch.linspace(0, batch.span_ids.shape[1] - 1, count, device=batch.span_ids.device).long()
    plain = replace(batch, span_positions=None, span_ids=None, span_weights=None)
    tiled = plain.mapped(lambda value: value.expand(count, *value.shape[1:]))
    return replace(tiled, position=batch.span_positions[0, chosen], target_ids=batch.span_ids[0, chosen])


def alone(view: ModelView, rows: Batch) -> None:
    """Explain each row by a forward and a backward of its own."""
    for part in rows.parts(1):
        explain(ATTNLRP, view, part)


def grow(bench: Bench, view: ModelView, lengths: Sequence[int]) -> None:
    """Measure the peak bytes of an answer's relevance by the length of the text, and how they grow."""
    peaks: dict[str, dict[float, float]] = defaultdict(dict)
    for length in lengths:
        batch = answered(view, length)
        runs = {ATTNLRP: {}, CHECKPOINT: {"checkpoint": True}}
        for name, settings in runs.items():
            run = partial(explain, ATTNLRP, view, batch, **settings)
            facts = {"part": "growth", "method": name, "length": length, "layers": view.n_layers}
            try:
                peak = peak_bytes(run, view.device)
            except Exception as error:
                if not is_out_of_memory(error):
                    raise
                bench.row(**facts, state="out of memory")
                print(f"{bench.title}, T={length}: {name} out of memory", flush=True)
                continue
            peaks[name][length] = peak
            bench.row(**facts, peak_bytes=peak)
            print(f"{bench.title}, T={length:5}: {name:24} {peak / _MIB:9.1f} MiB", flush=True)
    for name, curve in peaks.items():
        law = power_law(curve)
        if law is None:
            continue
        bench.row(part="exponents in tokens", method=name, bytes_exponent=law[1])
        if name == CHECKPOINT:
            bench.ratio("peak bytes with checkpointing, exponent in tokens", law[1], LINEAR, "lower")
