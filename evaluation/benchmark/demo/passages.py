"""Answers that come from some of several passages, for the task `sources`; the generator knows which.

A prompt has a passage for each of several persons: what they did, where and when. The question asks about one or two of
them. The answer has a sentence for each, with the facts of the passage, in other words if the passage has another form.
The evidence is the passages about these persons.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from closelook.evaluation.benchmark.demo import lexicon
from closelook.evaluation.benchmark.demo.split import Split, distinct
from closelook.evaluation.benchmark.samples import Row, Span, sample

SOURCES = "sources"
PASSAGES = 11  # most passages in a prompt
_FEWEST_OF_SAMPLES = 9  # fewest passages in a test sample: 2^9 sets are too many to run all of them (ENUMERATED)
_TWO_ASKED = 0.5  # share of questions for two persons
_CONTEXT = "Context:"


@dataclass(frozen=True)
class Fact:
    """A deed, with its agent, action, location and time."""

    person: str
    past: str
    location: str
    when: str

    def passage(self, form: int) -> str:
        """The passage of the fact, in one of the FORMS (0, 1 or 2)."""
        if form == 0:
            return f"{self.person} {self.past} {self.when} in {self.location}."
        if form == 1:
            return f"{self.person} was in {self.location} {self.when} and {self.past}."
        return self.sentence

    @property
    def sentence(self) -> str:
        """The sentence of the fact in answers."""
        return f"{self.person} {self.past} in {self.location} {self.when}."


FORMS = 3


@dataclass(frozen=True)
class Reading:
    """Passages, a question for some of their persons, and the answer."""

    facts: tuple[Fact, ...]
    forms: tuple[int, ...]
    asked: tuple[int, ...]  # indices of the facts that the question asks for

    @property
    def passages(self) -> list[str]:
        """The texts of the passages."""
        return [fact.passage(form) for fact, form in zip(self.facts, self.forms, strict=True)]

    @property
    def prompt(self) -> str:
        """The prompt: all passages, then the question."""
        persons = " and ".join(self.facts[at].person for at in self.asked)
        return f"{_CONTEXT} {' '.join(self.passages)} Question: What did {persons} do? Answer:"

    @property
    def answer(self) -> str:
        """The answer with the space before it."""
        return "".join(f" {self.facts[at].sentence}" for at in self.asked)

    @property
    def spans(self) -> list[Span]:
        """The spans [start, end) of the passages in the prompt."""
        return _spans(len(_CONTEXT), self.passages)

    @property
    def parts(self) -> list[Span]:
        """The spans [start, end) of the sentences in the answer."""
        return _spans(0, (self.facts[at].sentence for at in self.asked))

    key = prompt  # by which draws are split

    @property
    def content(self) -> Reading:
        """The draw itself, by which draws are told apart."""
        return self

    def row(self) -> Row:
        """The generic sample; its evidence is the passages that the question asks for."""
        spans = self.spans
        meta = {"sources": spans, "answer_parts": self.parts, "asked": len(self.asked)}
        evidence = [spans[at] for at in sorted(self.asked)]
        return sample("demo", self.prompt, len(self.prompt), self.answer, evidence=evidence, meta=meta)


def _spans(start: int, texts: Iterable[str]) -> list[Span]:
    """The spans [start, end) of texts that follow each other from `start` on, each after a space."""
    spans = []
    for text in texts:
        spans.append((start + 1, start + 1 + len(text)))
        start = spans[-1][1]
    return spans


def readings(seed: int, split: Split, fewest: int = _FEWEST_OF_SAMPLES) -> Iterator[Reading]:
    """Distinct draws for training or test, in an order fixed by `seed`, with `fewest` to PASSAGES passages each."""
    return distinct(SOURCES, lambda rng: _drawn(rng, rng.randint(fewest, PASSAGES)), seed, split)


def _drawn(rng: random.Random, passages: int) -> Reading:
    """A draw with so many passages, each about another person."""
    persons = rng.sample(lexicon.kinds()["person"], passages)
    facts = tuple(_fact(rng, person) for person in persons)
    asked = rng.sample(range(passages), 2 if rng.random() < _TWO_ASKED else 1)
    return Reading(facts, tuple(rng.randrange(FORMS) for _ in facts), tuple(asked))


def _fact(rng: random.Random, person: str) -> Fact:
    """A random deed of a person."""
    [preposition] = rng.choices(list(lexicon.TIMES), [len(words) for words in lexicon.TIMES.values()])
    past, _ = rng.choice(lexicon.EVENTS)
    return Fact(person, past, rng.choice(lexicon.PLACES), f"{preposition} {rng.choice(lexicon.TIMES[preposition])}")
