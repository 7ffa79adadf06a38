"""The demo language: sentences and passages with their evidence, by construction.

Three tasks, as generic samples, and texts of all of them to go on with (next_word). Two more are in :mod:`judged`, and
images in :mod:`shapes`.

*sva*: the form of a verb that agrees with its subject across prepositional phrases
and relative clauses. *ra*: the reflexive that agrees with its antecedent. *qa*: a passage with one person, one place
and one time, and a question for one of the three. Evidence is the head noun of the subject or antecedent, or the
answer's span in the passage.

Training and evaluation draws are disjoint: a hash of what a model reads before it answers (the passage, or the text up
to the slot) decides the side a draw falls on.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

from evaluation.benchmark.demo import lexicon
from evaluation.benchmark.demo.judged import JUDGED, judged
from evaluation.benchmark.demo.split import Split, distinct, side
from evaluation.benchmark.samples import Filled, Row, Span, sample
from lrp_core.types import UserError


@dataclass(frozen=True)
class Draw:
    """One draw of the grammar, and the text that decides its side of the split."""

    text: str
    slot: int
    target: str
    foil: str
    evidence: Span
    scope: Span | None
    meta: dict[str, Any]
    key: str

    @property
    def split(self) -> Split:
        return side(self.key)

    def row(self) -> Row:
        scope = None if self.scope is None else [self.scope]
        evidence = [self.evidence]
        return sample(
            "demo", self.text, self.slot, self.target, self.foil, evidence=evidence, scope=scope, meta=self.meta
        )

    def completed(self) -> Filled:
        """The text with the target in its slot."""
        return Filled.of(self.text, self.slot, self.target)


def draws(task: str, seed: int, split: Split) -> Iterator[Draw]:
    """Distinct draws of one side of the split, in an order fixed by `seed`, until the language is exhausted.

    Raises KeyError for a task other than ra, sva and qa.
    """
    make, rng = _TASKS[task], random.Random(f"{task} {split} {seed}")
    return distinct(lambda: make(rng), split, lambda draw: (draw.text, draw.target))


def _agreement_sentence(rng: random.Random) -> Draw:
    animate = rng.random() < 0.5
    nouns = lexicon.ANIMATE if animate else lexicon.THINGS
    number = rng.randrange(2)  # 0 singular, 1 plural
    phrase = _Phrase(rng, number)
    phrase.noun(rng.choice(nouns)[number], lexicon.ADJECTIVES if animate else lexicon.THING_ADJECTIVES)
    phrase.modifiers()
    forms, endings = rng.choice(lexicon.PREDICATES + (2 * lexicon.ANIMATE_PREDICATES if animate else []))
    return phrase.draw(target=forms[number], foil=forms[1 - number], rest=f"{rng.choice(endings)}.")


def _reflexive_sentence(rng: random.Random) -> Draw:
    nouns, reflexive = rng.choice(lexicon.GENDERS)
    number = rng.randrange(2)
    phrase = _Phrase(rng, number)
    if number == 0 and reflexive in lexicon.PERSONS and rng.random() < 0.3:
        phrase.head(rng.choice(lexicon.PERSONS[reflexive]))
    else:
        phrase.noun(rng.choice(nouns)[number], lexicon.ADJECTIVES)
        phrase.modifiers()
    phrase.say(*rng.choice([[], [rng.choice(lexicon.ADVERBS)]]), rng.choice(lexicon.REFLEXIVE_VERBS))
    forms = (reflexive, "themselves")
    return phrase.draw(target=forms[number], foil=forms[1 - number], rest="")


class _Phrase:
    """A sentence under construction up to its slot: words, the subject, and the nouns between it and the slot."""

    def __init__(self, rng: random.Random, number: int) -> None:
        self._rng, self._number = rng, number
        self._text = f"{rng.choice(lexicon.OPENINGS)}," if rng.random() < 0.2 else ""
        self._evidence = (0, 0)
        self._between: list[int] = []  # numbers of the nouns after the subject
        self._structure: list[str] = []

    def say(self, *words: str) -> None:
        self._text = " ".join(part for part in (self._text, *words) if part)

    def head(self, word: str) -> None:
        """The subject's head noun, which is the evidence."""
        self.say(word)
        self._evidence = (len(self._text) - len(word), len(self._text))

    def noun(self, word: str, adjectives: list[str]) -> None:
        """A determiner, perhaps an adjective, and the subject's head noun."""
        rng = self._rng
        self.say(rng.choice(lexicon.DETERMINERS), *([rng.choice(adjectives)] if rng.random() < 0.3 else []))
        self.head(word)

    def modifiers(self) -> None:
        """None, one or two of: a prepositional phrase, a relative clause on its object, one on its subject (past)."""
        for _ in range(self._rng.choices([0, 1, 2], weights=[3, 4, 3])[0]):
            kind = self._rng.choice(["pp", "pp", "object_rc", "subject_rc"])
            self._structure.append(kind)
            singular, plural, past = self._rng.choice(lexicon.TRANSITIVE)
            if kind == "pp":
                self.say(self._rng.choice(lexicon.PREPOSITIONS))
                self._other(lexicon.THINGS + lexicon.ANIMATE)
            elif kind == "object_rc":
                self.say("that")
                number = self._other(lexicon.ANIMATE)
                self.say(self._rng.choice([(singular, plural)[number], past]))
            else:
                self.say("that", past)
                self._other(lexicon.THINGS + lexicon.ANIMATE)

    def _other(self, nouns: list[tuple[str, ...]]) -> int:
        number = self._rng.randrange(2)
        self.say(self._rng.choice(lexicon.DETERMINERS), self._rng.choice(nouns)[number])
        self._between.append(number)
        return number

    def draw(self, target: str, foil: str, rest: str) -> Draw:
        before = self._text[0].upper() + self._text[1:]
        text = f"{before} {rest}" if rest else before
        meta = {
            "attractors": sum(number != self._number for number in self._between),
            "intervening": len(self._between),
            "number": ("singular", "plural")[self._number],
            "structure": "+".join(self._structure) or "simple",
        }
        slot = len(before) + bool(rest)
        return Draw(text, slot, target, foil, self._evidence, None, meta, key=before)


def _question(rng: random.Random) -> Draw:
    kinds = lexicon.kinds()
    person, place = rng.choice(kinds["person"]), rng.choice(kinds["place"])
    preposition = rng.choices(list(lexicon.TIMES), weights=[len(words) for words in lexicon.TIMES.values()])[0]
    time = rng.choice(lexicon.TIMES[preposition])
    past, base = rng.choice(lexicon.EVENTS)
    pronoun = "He" if person in lexicon.PERSONS["himself"] else "She"
    when = f"{preposition} {time}"
    fact = rng.choice(
        [
            f"{person} {past} in {place} {when}.",
            f"{when.capitalize()}, {person} {past} in {place}.".replace(time.lower(), time),
            f"In {place}, {person} {past} {when}.",
            f"{person} was in {place}. {pronoun} {past} {when}.",
            f"{person} {past} {when}. It was in {place}.",
        ]
    )
    fillers = [_filler(rng) if rng.random() < 0.25 else "" for _ in range(2)]
    context = " ".join(part for part in (fillers[0], fact, fillers[1]) if part)
    kind = rng.choice(list(kinds))
    questions = {"person": f"Who {past}?", "place": f"Where did {person} {base}?", "time": f"When did {person} {base}?"}
    answer = {"person": person, "place": place, "time": time}[kind]
    foil = rng.choice([word for word in kinds[kind] if word != answer])
    start = len("Context: ")
    at = start + context.index(answer)
    text = f"Context: {context} Question: {questions[kind]} Answer:"
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


NEXT_WORD, SHAPES = "next_word", "shapes"


def _continued(seed: int) -> Iterator[Row]:
    """Texts of every task in turn that end with the word of their slot, so that it is the next word of the rest."""
    for several in zip(*(draws(task, seed, "test") for task in TASKS), strict=False):
        for draw in several:
            yield sample("demo", draw.completed().text[: draw.completed().word[1]], None, None, None, meta=draw.meta)


def generate(task: str, n: int, seed: int = 0) -> Iterator[Row]:
    """The first `n` evaluation samples under `seed`, as rows of the generic schema; no two are equal.

    Raises KeyError for an unknown task, UserError where the language has fewer than `n` samples.
    """
    left = n
    if task == NEXT_WORD:
        rows = _continued(seed)
    elif task == SHAPES:
        from evaluation.benchmark.demo.shapes import shapes  # with numpy and Pillow

        rows = (drawing.row(f"{SHAPES} {at}") for at, drawing in enumerate(shapes(seed, "test")))
    else:
        rows = (draw.row() for draw in (judged if task in JUDGED else draws)(task, seed, "test"))
    for row in islice(rows, n):
        left -= 1
        yield row
    if left:
        raise UserError(f"the demo language has only {n - left} {task} samples, not {n}; ask for fewer")
