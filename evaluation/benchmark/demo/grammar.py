"""The demo language: generated sentences and passages whose evidence is known, since the generator places it.

* *sva*: the form of a verb that agrees with its subject across prepositional phrases and relative clauses; the evidence
  is the subject's head noun.
* *ra*: the reflexive that agrees with its antecedent; the evidence is the antecedent's head noun.
* *qa*: a passage with a person, a place and a time, and a question for one of them; the evidence is the answer's span.
* *next_word*: texts of all three without a slot.

:mod:`labelled`, :mod:`passages` and :mod:`shapes` have the other tasks. A hash of what a model reads before it answers
decides whether a draw is for training or for test.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from closelook.evaluation.benchmark.demo import lexicon
from closelook.evaluation.benchmark.demo.labelled import JUDGED, Sentence, judged, perhaps
from closelook.evaluation.benchmark.demo.passages import SOURCES, readings
from closelook.evaluation.benchmark.demo.split import Split, distinct
from closelook.evaluation.benchmark.samples import Filled, Row, Span, sample
from closelook.evaluation.benchmark.sources.base import Generated
from closelook.lrp_core.records.types import UserError

NEXT_WORD, SHAPES = "next_word", "shapes"  # names of tasks


@dataclass(frozen=True)
class Draw:
    """A sample drawn from the grammar; `key` is the text whose hash decides between training and test."""

    text: str
    slot: int
    target: str
    foil: str
    evidence: Span
    scope: Span | None
    meta: dict[str, Any]
    key: str

    @property
    def content(self) -> tuple[str, str]:
        """The text and its target."""
        return self.text, self.target

    def row(self) -> Row:
        """The draw as a generic sample."""
        scope = None if self.scope is None else [self.scope]
        asked = (self.text, self.slot, self.target, self.foil)
        return sample("demo", *asked, evidence=[self.evidence], scope=scope, meta=self.meta)

    def completed(self) -> Filled:
        """The text with the target in its slot."""
        return Filled.of(self.text, self.slot, self.target)


def draws(task: str, seed: int, split: Split) -> Iterator[Draw]:
    """Distinct draws of a task for training or test, in an order fixed by `seed`, until hardly any new one is drawn.

    Raises KeyError for a task other than ra, sva and qa.
    """
    return distinct(task, _TASKS[task], seed, split)


def _agreement_sentence(rng: random.Random) -> Draw:
    """A draw of sva: a sentence with its verb as the slot."""
    animate = rng.random() < 0.5
    nouns = lexicon.ANIMATE if animate else lexicon.THINGS
    number = rng.randrange(2)  # 0 singular, 1 plural
    phrase = _Phrase(rng, number)
    phrase.noun(rng.choice(nouns)[number], lexicon.ADJECTIVES if animate else lexicon.THING_ADJECTIVES)
    phrase.modifiers()
    forms, endings = rng.choice(lexicon.PREDICATES + (2 * lexicon.ANIMATE_PREDICATES if animate else []))
    return phrase.draw(forms, f"{rng.choice(endings)}.")


def _reflexive_sentence(rng: random.Random) -> Draw:
    """A draw of ra: a sentence that ends with its reflexive as the slot."""
    nouns, reflexive = rng.choice(lexicon.GENDERS)
    number = rng.randrange(2)
    phrase = _Phrase(rng, number)
    if number == 0 and reflexive in lexicon.PERSONS and rng.random() < 0.3:
        phrase.say(rng.choice(lexicon.PERSONS[reflexive]), mark=True)
    else:
        phrase.noun(rng.choice(nouns)[number], lexicon.ADJECTIVES)
        phrase.modifiers()
    phrase.say(*rng.choice([[], [rng.choice(lexicon.ADVERBS)]]), rng.choice(lexicon.REFLEXIVE_VERBS))
    return phrase.draw((reflexive, "themselves"))


class _Phrase(Sentence):
    """A sentence under construction up to its slot; the head noun of its subject, which is the evidence, is marked."""

    def __init__(self, rng: random.Random, number: int) -> None:
        """An empty sentence, or one that begins with a time; `number` of the subject is 0 (singular) or 1 (plural)."""
        super().__init__(Sentence.opened(rng).text)
        self.rng, self.number = rng, number
        self.between: list[int] = []  # numbers of the nouns between the subject and the slot
        self.structure: list[str] = []

    def noun(self, word: str, adjectives: list[str]) -> None:
        """Adds a determiner, sometimes an adjective, and the subject's head noun `word`."""
        self.say(self.rng.choice(lexicon.DETERMINERS), *perhaps(self.rng, 0.3, adjectives))
        self.say(word, mark=True)

    def modifiers(self) -> None:
        """Adds up to two phrases: prepositional ones, and relative clauses whose pronoun is their object or subject.

        Their nouns may differ in number from the subject, and then are attractors. No verb tells the subject's number:
        those that agree with it are in the past tense.
        """
        for _ in range(self.rng.choices([0, 1, 2], weights=[3, 4, 3])[0]):
            kind = self.rng.choice(["pp", "pp", "object_rc", "subject_rc"])
            self.structure.append(kind)
            singular, plural, past = self.rng.choice(lexicon.TRANSITIVE)
            if kind == "pp":
                self.say(self.rng.choice(lexicon.PREPOSITIONS))
                self._other(lexicon.THINGS + lexicon.ANIMATE)
            elif kind == "object_rc":
                self.say("that")
                number = self._other(lexicon.ANIMATE)
                self.say(self.rng.choice([(singular, plural)[number], past]))
            else:
                self.say("that", past)
                self._other(lexicon.THINGS + lexicon.ANIMATE)

    def _other(self, nouns: list[tuple[str, ...]]) -> int:
        """Adds a determiner and one of `nouns` in a random number, which is noted and returned."""
        number = self.rng.randrange(2)
        self.say(self.rng.choice(lexicon.DETERMINERS), self.rng.choice(nouns)[number])
        self.between.append(number)
        return number

    def draw(self, forms: Sequence[str], rest: str = "") -> Draw:
        """The draw of this sentence with the slot at its end, followed by `rest`.

        `forms` are the (singular, plural) of the word in the slot: the one in the subject's number is the target.
        """
        before = self.capitalised()
        meta = {
            "attractors": sum(number != self.number for number in self.between),
            "intervening": len(self.between),
            "number": ("singular", "plural")[self.number],
            "structure": "+".join(self.structure) or "simple",
        }
        text = f"{before} {rest}" if rest else before
        target, foil = forms[self.number], forms[1 - self.number]
        return Draw(text, len(before) + bool(rest), target, foil, self.marked[0], None, meta, key=before)


def _question(rng: random.Random) -> Draw:
    """A draw of qa: a passage, and a question for its person, place or time; the foil is another of the same kind."""
    kinds = lexicon.kinds()
    person, location = rng.choice(kinds["person"]), rng.choice(kinds["place"])
    weights = [len(words) for words in lexicon.TIMES.values()]
    [preposition] = rng.choices(list(lexicon.TIMES), weights)
    time = rng.choice(lexicon.TIMES[preposition])
    past, base = rng.choice(lexicon.EVENTS)
    pronoun = "He" if person in lexicon.PERSONS["himself"] else "She"
    when = f"{preposition} {time}"
    fact = rng.choice(
        [
            f"{person} {past} in {location} {when}.",
            f"{when.capitalize()}, {person} {past} in {location}.".replace(time.lower(), time),
            f"In {location}, {person} {past} {when}.",
            f"{person} was in {location}. {pronoun} {past} {when}.",
            f"{person} {past} {when}. It was in {location}.",
        ]
    )
    before, behind = ([_filler(rng)] if rng.random() < 0.25 else [] for _ in range(2))
    context = " ".join([*before, fact, *behind])
    asked = {
        "person": (f"Who {past}?", person),
        "place": (f"Where did {person} {base}?", location),
        "time": (f"When did {person} {base}?", time),
    }
    kind = rng.choice(list(kinds))
    question, answer = asked[kind]
    foil = rng.choice([word for word in kinds[kind] if word != answer])
    start = len("Context: ")
    at = start + context.index(answer)
    text = f"Context: {context} Question: {question} Answer:"
    scope = (start, start + len(context))
    return Draw(text, len(text), answer, foil, (at, at + len(answer)), scope, {"kind": kind}, key=context)


def _filler(rng: random.Random) -> str:
    """A sentence that answers nothing: no name, no place, no time."""
    number = rng.randrange(2)
    forms, endings = rng.choice(lexicon.PREDICATES)
    determiner = rng.choice(lexicon.DETERMINERS).capitalize()
    return f"{determiner} {rng.choice(lexicon.THINGS)[number]} {forms[number]} {rng.choice(endings)}."


_TASKS = {"ra": _reflexive_sentence, "sva": _agreement_sentence, "qa": _question}
TASKS = tuple(_TASKS)


def _continued(seed: int) -> Iterator[Row]:
    """Texts of the three tasks by turns, each cut after the word in its slot: this word is the next word to predict."""
    for several in zip(*(draws(task, seed, "test") for task in TASKS), strict=False):
        for draw in several:
            completed = draw.completed()
            yield sample("demo", completed.text[: completed.word[1]], meta=draw.meta)


def generate(task: str, n: int, seed: int = 0) -> Iterator[Row]:
    """The first `n` test samples of a task under `seed`, as rows of the generic schema; no two are equal.

    Raises KeyError for an unknown task, and UserError if the language has fewer than `n` samples.
    """
    if task == NEXT_WORD:
        rows = _continued(seed)
    elif task == SOURCES:
        rows = (reading.row() for reading in readings(seed, "test"))
    elif task == SHAPES:
        from closelook.evaluation.benchmark.demo.shapes import shapes  # with numpy and Pillow

        rows = (drawing.row(f"{SHAPES} {at}") for at, drawing in enumerate(shapes(seed, "test")))
    else:
        drawn = judged(task, seed, "test") if task in JUDGED else draws(task, seed, "test")
        rows = (draw.row() for draw in drawn if draw.evidence)  # of a task, all samples have evidence or none
    count = 0
    for row in islice(rows, n):
        count += 1
        yield row
    if count < n:
        raise UserError(f"the demo language has only {count} {task} samples, not {n}; ask for fewer")


DEMO = Generated(name="demo", title="the demo language, generated by closelook", generate=generate, corpus=NEXT_WORD)
