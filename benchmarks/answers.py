"""`closelook bench answers`: the cost of explaining a long answer.

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
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, product

from benchmarks.parts.context_variants import ATTNLRP, CHECKPOINT, bare, explain
from benchmarks.parts.harness import Bench, Runs, exponent_of, parser
from benchmarks.parts.samples import drawn, geometry_of, title_of
from closelook.jobs.bench.record import paired_ratio
from closelook.lrp_core import Batch, ModelView
from closelook.lrp_core.interventions.ablations import answers_after
from closelook.lrp_core.records.types import span_row

LENGTHS = (1024, 2048, 4096, 8192)  # tokens of prompt and answer
COMPARED = 2048  # tokens: a prompt of about 1,000 and an answer of about 1,000
QUICK = (32, 64)
BESIDE_BARE = 1.15  # target: seconds of a span's relevance over those of a bare forward and backward
LINEAR = 1.1  # target: the exponent with which peak bytes grow with tokens, with checkpointing
BARE = "bare forward and backward"
PARTS = SPAN, GROWTH, PROMPTS = "span", "growth", "prompts"

SOURCES, TOKENS = 24, 16  # sources of a prompt, and tokens of each source
ASKED, ANSWER = 16, 32  # tokens of the question and of the answer; all sources together have 384
HALVES, QUICK_HALVES = 64, 4  # prompts that each keep a random half of the sources
FASTER = 1.6  # target where each source is left out once: plain seconds / seconds with shared beginnings; at most 2
LONGEST = SOURCES * TOKENS + ASKED + ANSWER
Prompts = list[tuple[int, ...]]  # token ids


def main(arguments: Sequence[str] | None = None) -> dict:
    """Run all parts on every chosen shape; see `--help`. Returns the result as JSON."""
    options = parser("answers", __doc__)
    options.geometries("gpt2", "Llama-3.2-1B")
    options.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, help="what is measured; default all")
    options.layers()
    options.number("--longest", LENGTHS[-1], "tokens of prompt and answer", quick=QUICK[-1])
    options.number("--repeats", 3, "of what is timed", quick=1, on_gpu=10)
    options.devices()
    results = options.begin(arguments)
    chosen = results.chosen
    lengths = [length for length in (QUICK if results.quick else LENGTHS) if length <= chosen.longest]
    for name in chosen.geometry:
        geometry = replace(geometry_of(name, results.quick, chosen.layers), max_length=lengths[-1])
        bench = results.about(geometry=title_of(name, geometry, results.quick))
        view = drawn(geometry, chosen)
        if SPAN in chosen.parts:
            compare(bench, view, COMPARED if COMPARED in lengths else lengths[-1])
        if GROWTH in chosen.parts:
            grow(bench, view, lengths)
        if PROMPTS in chosen.parts and view.max_length >= LONGEST:
            compare_prefixes(bench, view)
        del view
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


def compare(bench: Bench, view: ModelView, length: int) -> None:
    """Time the relevance of an answer against a bare forward and backward."""
    batch = answered(view, length)
    runs: Runs = {ATTNLRP: partial(explain, ATTNLRP, view, batch), BARE: partial(bare, view, batch)}
    facts = {"part": "span", "length": length, "answer_tokens": length // 2, "layers": view.n_layers}
    for clock, pair in bench.timed(runs, bench.chosen.repeats, **facts).items():
        bench.paired(f"answer of {length // 2} tokens: attnlrp, {clock} / {BARE}", pair, BESIDE_BARE)


def grow(bench: Bench, view: ModelView, lengths: Sequence[int]) -> None:
    """Measure the peak bytes of an answer's relevance by the length of the text, and how they grow."""
    peaks: dict[str, dict[float, float]] = {ATTNLRP: {}, CHECKPOINT: {}}
    for length, name in product(lengths, peaks):
        run = partial(explain, ATTNLRP, view, answered(view, length), checkpoint=name == CHECKPOINT)
        facts = {"part": "growth", "method": name, "length": length, "layers": view.n_layers}
        peak = bench.peak_that_fits(run, view.device, **facts)
        if peak is not None:
            peaks[name][length] = peak
            bench.row(**facts, peak_bytes=peak)
    for name, curve in peaks.items():
        exponent = exponent_of(curve)
        if exponent is None:
            continue
        bench.row(part="exponents in tokens", method=name, bytes_exponent=exponent)
        if name == CHECKPOINT:
            bench.ratio("peak bytes with checkpointing, exponent in tokens", exponent, LINEAR, "lower")


# prompts that lack some of their sources


def compare_prefixes(bench: Bench, view: ModelView) -> None:
    """Measures how much faster answers are computed if the tokens that prompts begin with are read once.

    The result is the seconds of plain forwards divided by those of forwards that share beginnings. Plain forwards read
    batches of the same size, whose prompts have similar lengths. How much prompts share depends on which sources they
    lack: the target holds where each prompt lacks one source; prompts with random halves share less.
    """
    source = random.Random(0)
    answer = _tokens(source, view.vocab, ANSWER)
    halves = QUICK_HALVES if bench.quick else HALVES
    random_masks = [[source.random() < 0.5 for _ in range(SOURCES)] for _ in range(halves)]
    each_left_out = [[at != gone for at in range(SOURCES)] for gone in range(SOURCES)]
    _compare(bench, view, "each source left out", prompts_of(source, view.vocab, each_left_out), answer, FASTER)
    _compare(bench, view, "random halves", prompts_of(source, view.vocab, random_masks), answer)


def prompts_of(source: random.Random, vocab: int, masks: Sequence[Sequence[bool]]) -> Prompts:
    """Prompts of random tokens, one for each mask: the sources where the mask is True, then the question.

    All prompts draw on the same SOURCES sources and end with the same question.
    """
    sources = [_tokens(source, vocab, TOKENS) for _ in range(SOURCES)]
    question = _tokens(source, vocab, ASKED)
    prompts = []
    for mask in masks:
        kept = [tokens for tokens, stays in zip(sources, mask, strict=True) if stays]
        prompts.append((*chain(*kept), *question))
    return prompts


def _tokens(source: random.Random, vocab: int, count: int) -> list[int]:
    """`count` random token ids."""
    return [source.randrange(vocab) for _ in range(count)]


def _compare(
    bench: Bench,
    view: ModelView,
    masks: str,
    prompts: Prompts,
    answer: Sequence[int],
    target: float | None = None,
) -> None:
    """Times both ways on these prompts, and adds their rows; with a `target`, also the ratio of their seconds."""
    runs: Runs = {
        "plain forwards": partial(answers_after, view, prompts, answer, cache=False),
        "beginnings read once": partial(answers_after, view, prompts, answer),
    }
    facts = {"part": "ablated prompts", "masks": masks, "prompts": len(prompts), "answer_tokens": ANSWER}
    facts |= {"layers": view.n_layers}
    for clock, pair in bench.timed(runs, bench.chosen.repeats, **facts).items():
        if target is not None:
            name = f"{len(prompts)} prompts, {masks}: plain forwards, {clock} / with beginnings read once"
            bench.paired(name, pair, target, "higher")
        ratio = paired_ratio(*pair)
        bench.row(**facts, clock=clock, plain_over_shared=ratio)
