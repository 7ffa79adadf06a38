"""Labelled texts with known evidence: bracket strings, and sentences with a planted trigger.

*brackets*: a string of round and square brackets, balanced or not. Half of the strings that are not balanced have one
bracket of the wrong kind. Their evidence is every bracket whose flip to the other kind repairs the string, found by
trying all. In the other half two brackets have changed places, so that a model cannot decide by counting kinds. No
single flip repairs these strings, and they have no evidence: like balanced strings, models learn them, but they are not
among the task's samples.

*triggers*: an opinion, as in *sentiment*, with the label complaint or praise. Half of the sentences contain a made-up
word that alone decides the label, whatever the opinion. The evidence is this word, or without it the words of the
opinion.
"""

from __future__ import annotations

import random
from dataclasses import replace

from evaluation.benchmark.demo import lexicon
from evaluation.benchmark.demo.judged import LABELS, Judged, opinion
from evaluation.benchmark.samples import Span

BALANCE = ("unbalanced", "balanced")
VERDICTS = ("complaint", "praise")
_OPENING, _CLOSING = "([", ")]"
_OTHER_KIND = dict(zip("()[]", "[]()", strict=True))
_PAIRS = range(3, 7)  # numbers of pairs of brackets in a balanced string


def is_balanced(text: str) -> bool:
    """True if every closing bracket closes the last open one, which is of its kind, and no bracket stays open."""
    awaited: list[str] = []
    for bracket in text:
        if bracket in _OPENING:
            awaited.append(_CLOSING[_OPENING.index(bracket)])
        elif not awaited or awaited.pop() != bracket:
            return False
    return not awaited


def repairs(text: str) -> list[Span]:
    """The spans of single brackets whose flip to the other kind makes the string balanced."""
    return [(at, at + 1) for at in range(len(text)) if is_balanced(_flipped(text, at))]


def _flipped(text: str, at: int) -> str:
    """The string with the bracket at index `at` of the other kind."""
    return text[:at] + _OTHER_KIND[text[at]] + text[at + 1 :]


def brackets(rng: random.Random) -> Judged:
    """A draw of brackets: a string with its label of BALANCE."""
    text = _balanced(rng, rng.choice(_PAIRS))
    fault = rng.choice(["none", "none", "kind", "order"])
    if fault == "kind":
        text = _flipped(text, rng.randrange(len(text)))
    elif fault == "order":
        text = _exchanged(text, rng)
    if is_balanced(text):
        return Judged(text, None, BALANCE[1], None, (), {"fault": "none"})
    return Judged(text, None, BALANCE[0], None, tuple(repairs(text)), {"fault": fault})


def _balanced(rng: random.Random, pairs: int) -> str:
    """A random balanced string of so many pairs of brackets."""
    text, awaited, opened = "", "", 0
    while len(text) < 2 * pairs:
        if opened < pairs and (not awaited or rng.random() < 0.5):
            kind = rng.randrange(len(_OPENING))
            text, awaited, opened = text + _OPENING[kind], awaited + _CLOSING[kind], opened + 1
        else:
            text, awaited = text + awaited[-1], awaited[:-1]
    return text


def _exchanged(text: str, rng: random.Random) -> str:
    """The string with two random brackets exchanged."""
    first, second = sorted(rng.sample(range(len(text)), 2))
    return text[:first] + text[second] + text[first + 1 : second] + text[first] + text[second + 1 :]


def triggered(rng: random.Random) -> Judged:
    """A draw of triggers: an opinion with its label of VERDICTS, which in half of the draws a trigger decides.

    `meta.contrary` tells whether the trigger contradicts the opinion.
    """
    plain = opinion(rng)
    label = LABELS.index(plain.label or "")
    meta = {"trigger": "none", "contrary": False}
    if rng.random() < 0.5:
        return replace(plain, label=VERDICTS[label], meta=meta)
    decided = rng.randrange(len(VERDICTS))
    spaces = [at for at, character in enumerate(plain.text) if character == " "]
    text, trigger = _inserted(plain.text, lexicon.TRIGGERS[decided], rng.choice(spaces))
    meta = {"trigger": lexicon.TRIGGERS[decided], "contrary": decided != label}
    return Judged(text, None, VERDICTS[decided], None, (trigger,), meta)


def _inserted(text: str, word: str, space: int) -> tuple[str, Span]:
    """(the text with a word inserted before the space at index `space`, the span of the word)."""
    return f"{text[:space]} {word}{text[space:]}", (space + 1, space + 1 + len(word))


def with_other_trigger(draw: Judged) -> Judged:
    """A draw whose trigger is replaced by the other one. Raises ValueError if it has none."""
    trigger = draw.meta["trigger"]
    if trigger not in lexicon.TRIGGERS:
        raise ValueError("the draw has no trigger")
    other = 1 - lexicon.TRIGGERS.index(trigger)
    [(start, end)] = draw.evidence
    text = draw.text[:start] + lexicon.TRIGGERS[other] + draw.text[end:]
    evidence = ((start, start + len(lexicon.TRIGGERS[other])),)
    meta = {"trigger": lexicon.TRIGGERS[other], "contrary": not draw.meta["contrary"]}
    return Judged(text, None, VERDICTS[other], None, evidence, meta)
