"""Seconds of an answer after prompts without some sources, with what prompts begin with alike read once or not."""

from __future__ import annotations

import random
from functools import partial
from itertools import chain

from benchmarks.harness import Bench, Runs
from lrp_core import ModelView
from lrp_core.interventions.ablations import answers_after

SOURCES, TOKENS = 16, 48  # of a prompt, and of each source
ASKED, ANSWER = 32, 64  # tokens of the question and of the answer: the sources have eight times as many
PROMPTS, QUICK_PROMPTS = 64, 4
FASTER = 1.6  # plain seconds over those with shared beginnings; as sources go at random, 2 is the limit


def prompts_of(vocab: int, count: int) -> tuple[list[list[int]], list[int]]:
    """Prompts of random tokens, each with a random half of the sources and the same question, and the answer."""
    source = random.Random(0)

    def tokens(number: int) -> list[int]:
        return [source.randrange(vocab) for _ in range(number)]

    sources = [tokens(TOKENS) for _ in range(SOURCES)]
    question, answer = tokens(ASKED), tokens(ANSWER)
    prompts = []
    for _ in range(count):
        kept = [one for one in sources if source.random() < 0.5]
        prompts.append([*chain(*kept), *question])
    return prompts, answer


def compare_prefixes(bench: Bench, view: ModelView) -> None:
    """Seconds of plain forwards, in the same batches, over those of forwards that share what prompts begin with."""
    prompts, answer = prompts_of(view.vocab, QUICK_PROMPTS if bench.quick else PROMPTS)
    runs: Runs = {
        "plain forwards": partial(answers_after, view, prompts, answer, cache=False),
        "beginnings read once": partial(answers_after, view, prompts, answer),
    }
    facts = {"part": "ablated prompts", "prompts": len(prompts), "length": max(map(len, prompts)) + len(answer)}
    facts |= {"answer_tokens": len(answer), "layers": view.n_layers}
    seconds = bench.timed(runs, bench.chosen.repeats, facts, "method", "wall_s")
    name = f"{len(prompts)} prompts without random sources: plain forwards, seconds / with beginnings read once"
    bench.paired(name, seconds.values(), FASTER, "higher")
