"""`closelook bench answers`: what it costs to explain a long answer, all of its tokens together or each by itself.

Half of the tokens are a prompt and half its answer. The relevance of the whole answer by attnlrp takes one forward and
one backward: it is timed beside a bare forward and backward of the same sum of logits, by the clock and, on a CPU, by
the seconds of the processor. Peak bytes beyond the weights
grow with the length of the text, with blocks that are kept and with blocks that are run again (checkpointing). An
answer after prompts without random sources is timed with what they begin with alike read once, and with plain forwards.
Random weights of real geometries and random tokens; runs without Ray, on a CPU or a GPU.
"""

from __future__ import annotations

import random
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import torch

from benchmarks.harness import Bench, Runs, parser, peak_bytes
from benchmarks.parts.ablated_prompts import ANSWER, ASKED, SOURCES, TOKENS, compare_prefixes
from benchmarks.parts.context_variants import ATTNLRP, CHECKPOINT, bare, explain
from benchmarks.parts.growth import power_law
from benchmarks.parts.samples import drawn, geometry_of
from jobs.geometries import GEOMETRIES
from lrp_core import Batch, ModelView
from lrp_core.device.memory import is_out_of_memory
from lrp_core.records.types import span_row

LENGTHS = (1024, 2048, 4096, 8192)  # tokens of prompt and answer
COMPARED = 2048  # tokens: about 1,000 of an answer behind 1,000 of a prompt
QUICK = (32, 64)
SUBJECTS = ("gpt2", "Llama-3.2-1B")
BESIDE_BARE = 1.15  # seconds of a span's relevance, of a bare forward and backward
LINEAR = 1.1  # the exponent of peak bytes in tokens, with checkpointing
ROWS = 4  # tokens of an answer that are explained by themselves
BARE = "bare forward and backward"
_MIB = 2**20


def main(arguments: Sequence[str] | None = None) -> dict:
    """Runs every part on every geometry; see `--help`. Returns the JSON."""
    options = parser("answers", __doc__)
    options.add_argument("--geometry", action="append", choices=sorted(GEOMETRIES), help="default gpt2, Llama-3.2-1B")
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
        compare(bench, view, COMPARED if COMPARED in lengths else lengths[-1])
        grow(bench, view, lengths)
        if view.max_length >= SOURCES * TOKENS + ASKED + ANSWER:
            compare_prefixes(bench, view)
        del view
    return results.finish()


def answered(view: ModelView, length: int, weights: Sequence[float] | None = None) -> Batch:
    """Random tokens: a prompt and, as long, its answer, of which all tokens but the last are read."""
    source = random.Random(0)
    prompt = [source.randrange(view.vocab) for _ in range(length - length // 2)]
    answer = [source.randrange(view.vocab) for _ in range(length // 2)]
    row = span_row({"input_ids": [*prompt, *answer[:-1]]}, len(prompt) - 1, answer, weights)
    return Batch.collate([row], pad_id=0).to(view.device)


def compare(bench: Bench, view: ModelView, length: int) -> None:
    """Seconds of an answer's relevance, and of some of its tokens in turn, beside a bare forward and backward."""
    batch = answered(view, length)
    of_processor: dict[str, list[float]] = {ATTNLRP: [], BARE: []}
    passes: Runs = {ATTNLRP: partial(explain, ATTNLRP, view, batch), BARE: partial(bare, view, batch)}
    runs: Runs = {name: partial(on_two_clocks, run, of_processor[name]) for name, run in passes.items()}
    facts = {"part": "span", "length": length, "answer_tokens": length // 2, "layers": view.n_layers}
    seconds = bench.timed(runs, bench.chosen.repeats, facts, "method", "wall_s")
    subject = f"answer of {length // 2} tokens: attnlrp"
    bench.paired(f"{subject}, seconds / {BARE}", seconds.values(), BESIDE_BARE)
    if view.device.type == "cpu":
        repeats = [taken[-bench.chosen.repeats :] for taken in of_processor.values()]  # without the warm-up
        bench.paired(f"{subject}, processor seconds / {BARE}", repeats, BESIDE_BARE)
    rows = single_rows(batch)
    together = partial(explain, ATTNLRP, view, rows, texts=1)
    one_by_one: Runs = {"attnlrp, a forward for all": together, "attnlrp, each alone": partial(alone, view, rows)}
    facts |= {"part": "rows", "rows": len(rows)}
    taken = bench.timed(one_by_one, 1, facts, "method", "wall_s")
    for name, of_name in taken.items():
        print(f"{bench.title}, T={length}: {len(rows)} tokens by themselves, {name}: {min(of_name):.2f} s", flush=True)


def on_two_clocks(run: Callable[[], object], of_processor: list[float]) -> None:
    """One call. Adds the seconds of its threads, which a busy machine disturbs less than the clock."""
    start = time.process_time()
    run()
    of_processor.append(time.process_time() - start)


def single_rows(batch: Batch) -> Batch:
    """Some tokens of the answer, each by itself, of one text."""
    assert batch.span_positions is not None
    assert batch.span_ids is not None
    count = min(ROWS, batch.span_ids.shape[1])
    chosen = torch.linspace(0, batch.span_ids.shape[1] - 1, count, device=batch.span_ids.device).long()
    plain = replace(batch, span_positions=None, span_ids=None, span_weights=None)
    tiled = plain.mapped(lambda value: value.expand(count, *value.shape[1:]))
    return replace(tiled, position=batch.span_positions[0, chosen], target_ids=batch.span_ids[0, chosen])


def alone(view: ModelView, rows: Batch) -> None:
    """Each row by a forward and a backward of its own."""
    for part in rows.parts(1):
        explain(ATTNLRP, view, part)


def grow(bench: Bench, view: ModelView, lengths: Sequence[int]) -> None:
    """Peak bytes and seconds of an answer's relevance by the length of the text, until memory ends."""
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
