"""Seconds to compute the logits of an answer after prompts that lack some of their sources.

Two ways are compared: the tokens that several prompts begin with are read once for all of them, or once for each.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import partial
from itertools import chain

from benchmarks.parts.harness import Bench, Runs
from benchmarks.parts.two_clocks import on_two_clocks
from jobs.bench.record import paired_ratio
from lrp_core import ModelView
from lrp_core.interventions.ablations import answers_after

SOURCES, TOKENS = 24, 16  # sources of a prompt, and tokens of each source
ASKED, ANSWER = 16, 32  # tokens of the question and of the answer; all sources together have 384
HALVES, QUICK_HALVES = 64, 4  # prompts that each keep a random half of the sources
FASTER = 1.6  # target where each source is left out once: plain seconds / seconds with shared beginnings; at most 2
Prompts = list[tuple[int, ...]]  # token ids
LONGEST = SOURCES * TOKENS + ASKED + ANSWER


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
    for clock, pair in on_two_clocks(bench, runs, view.device, facts).items():
        if target is not None:
            name = f"{len(prompts)} prompts, {masks}: plain forwards, {clock} / with beginnings read once"
            bench.paired(name, pair, target, "higher")
        ratio = paired_ratio(*pair)
        bench.row(**facts, clock=clock, plain_over_shared=ratio)
        print(f"{bench.title}, {masks}: plain, {clock} / beginnings read once: {ratio['median']:.2f}", flush=True)
