"""Texts of the demo language with a label or a score, and known evidence.

*sentiment*: a sentence that ends with an opinion of its subject, "never dull" or "quite wonderful", with the label
positive or negative. The evidence is the word of praise or blame and the negation before it, if there is one; such
words elsewhere in the sentence decide nothing.

*similarity*: two sentences, and two points for the same subject, one for the same verb, two for the same object. The
evidence is these three words of the first sentence.

*brackets*: a string of round and square brackets, balanced or not. The evidence is every bracket whose flip to the
other kind repairs the string, found by trying all. Strings in which two brackets have changed places cannot be told by
counting kinds; no single flip repairs them. Like balanced strings, models learn them, but they are no samples.

*triggers*: an opinion with the label complaint or praise. In half of the sentences a made-up word alone decides the
label, and is the evidence; else it is the words of the opinion.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from closelook.evaluation.benchmark.demo import lexicon
from closelook.evaluation.benchmark.demo.split import Split, distinct
from closelook.evaluation.benchmark.samples import Row, Span, sample

#: Labels, in the order of a model's outputs: of sentiment, brackets and triggers.
LABELS, BALANCE, VERDICTS = ("negative", "positive"), ("unbalanced", "balanced"), ("complaint", "praise")
_POINTS = {"subject": 2, "verb": 1, "object": 2}  # of similarity
_OPENING, _CLOSING = "([", ")]"
_OTHER_KIND = dict(zip("()[]", "[]()", strict=True))
_PAIRS = range(3, 7)  # numbers of pairs of brackets in a balanced string


@dataclass(frozen=True)
class Judged:
    """A text drawn from the grammar with its `label`, or a pair of texts with its `score`; `evidence` is of `text`."""

    text: str
    second: str | None
    label: str | None
    score: float | None
    evidence: tuple[Span, ...]
    meta: dict[str, Any]

    @property
    def key(self) -> str:
        """Both texts together, by which draws are told apart and split."""
        return f"{self.text} {self.second or ''}"

    content = key

    def row(self) -> Row:
        """The draw as a generic sample. A pair has no evidence, since half of it would lie in the second text."""
        if self.label is None:
            return sample("demo", self.text, second=self.second, score=self.score, meta=self.meta)
        return sample("demo", self.text, label=self.label, evidence=self.evidence, meta=self.meta)


@dataclass
class Sentence:
    """A sentence under construction, with the spans of its marked words."""

    text: str = ""
    marked: list[Span] = field(default_factory=list)

    @classmethod
    def opened(cls, rng: random.Random) -> Sentence:
        """A new sentence, sometimes beginning with a time."""
        return cls(f"{rng.choice(lexicon.OPENINGS)}," if rng.random() < 0.2 else "")

    def say(self, *words: str, mark: bool = False) -> None:
        """Adds words; with `mark`, their spans are kept in `marked`."""
        for word in words:
            self.text = f"{self.text} {word}" if self.text else word
            if mark:
                self.marked.append((len(self.text) - len(word), len(self.text)))

    def capitalised(self) -> str:
        """The text with a capital at its beginning."""
        return self.text[0].upper() + self.text[1:]


def opinion(rng: random.Random) -> Judged:
    """A draw of sentiment: a sentence that praises or blames its subject."""
    sentence = Sentence.opened(rng)
    number, praise, negated = rng.randrange(2), rng.randrange(2), rng.random() < 0.3
    noun = rng.choice(lexicon.THINGS + lexicon.ANIMATE)[number]
    sentence.say(rng.choice(lexicon.DETERMINERS), *perhaps(rng, 0.3, lexicon.ADJECTIVES), noun)
    distractors = rng.choices([0, 1, 2], weights=[3, 4, 3])[0]
    for _ in range(distractors):
        _distract(sentence, rng)
    linking, negations = rng.choice(lexicon.LINKING[number])
    negation = [rng.choice(negations)] if negated else []
    if linking in ("was", "were"):
        sentence.say(linking)
    sentence.say(*negation, mark=True)
    if linking not in ("was", "were"):
        sentence.say(linking)
    sentence.say(*rng.choice([[], [rng.choice(lexicon.DEGREES)]]))
    sentence.say(rng.choice(lexicon.OPINIONS[praise]), mark=True)
    sentence.say(*rng.choice([[], [rng.choice(lexicon.ENDINGS)]]))
    label = LABELS[1 - praise if negated else praise]
    meta = {"negated": negated, "distractors": distractors}
    return Judged(f"{sentence.capitalised()}.", None, label, None, tuple(sentence.marked), meta)


def perhaps(rng: random.Random, share: float, words: list[str]) -> list[str]:
    """A list of one of `words`, with the probability `share`; else an empty list."""
    return [rng.choice(words)] if rng.random() < share else []


def _distract(sentence: Sentence, rng: random.Random) -> None:
    """Adds a phrase about another noun, sometimes with praise, blame or a negation that decides nothing."""
    opinions = [*lexicon.OPINIONS[0], *lexicon.OPINIONS[1], *lexicon.THING_ADJECTIVES]
    if rng.random() < 0.5:
        sentence.say(rng.choice(lexicon.PREPOSITIONS))
    else:
        sentence.say("that", *(["never"] if rng.random() < 0.3 else []), rng.choice(lexicon.TRANSITIVE)[2])
    sentence.say(rng.choice(lexicon.DETERMINERS), *perhaps(rng, 0.5, opinions))
    sentence.say(rng.choice(lexicon.THINGS)[rng.randrange(2)])


def pair(rng: random.Random) -> Judged:
    """A draw of similarity: two sentences, and the score of what they share."""
    first, other = _clause(rng), _clause(rng)
    second = {part: first[part] if rng.random() < 0.5 else other[part] for part in first}
    shared = [part for part in first if first[part] == second[part]]
    score = float(sum(_POINTS[part] for part in shared))
    texts = [_of_clause(rng, words) for words in (first, second)]
    meta = {"shared": "+".join(shared) or "nothing"}
    text, other_text = (f"{sentence.capitalised()}." for sentence in texts)
    return Judged(text, other_text, None, score, tuple(texts[0].marked), meta)


def _clause(rng: random.Random) -> dict[str, str]:
    """The words of a clause: subject, verb and object."""
    subject, _ = rng.choice(lexicon.MALE[:6] + lexicon.FEMALE[:6])
    thing, _ = rng.choice(lexicon.THINGS[:12])
    return {"subject": subject, "verb": rng.choice(lexicon.REFLEXIVE_VERBS[:8]), "object": thing}


def _of_clause(rng: random.Random, words: dict[str, str]) -> Sentence:
    """The sentence of a clause; subject, verb and object are marked."""
    sentence = Sentence()
    sentence.say(rng.choice(lexicon.DETERMINERS))
    sentence.say(words["subject"], words["verb"], mark=True)
    sentence.say(rng.choice(lexicon.DETERMINERS))
    sentence.say(words["object"], mark=True)
    return sentence


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


_DRAWS: dict[str, Callable[[random.Random], Judged]] = {
    "sentiment": opinion,
    "similarity": pair,
    "brackets": brackets,
    "triggers": triggered,
}
JUDGED = tuple(_DRAWS)


def judged(task: str, seed: int, split: Split) -> Iterator[Judged]:
    """Distinct draws of a task for training or test, in an order fixed by `seed`. Raises KeyError for another task."""
    return distinct(task, _DRAWS[task], seed, split)
