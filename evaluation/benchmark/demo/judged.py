"""Texts of the demo language with a label or a score: opinions, and pairs of sentences with their similarity.

*sentiment*: a sentence that ends with an opinion of its subject, "never dull" or "quite wonderful", with the label
positive or negative. The word of praise or blame decides, with the negation before it, if there is one; such words
elsewhere in the sentence decide nothing. The evidence is these one or two words.

*similarity*: two sentences with subject, verb and object, and a score from 0 to 5: two points for the same subject, one
for the same verb, two for the same object. Determiners do not count. The evidence is these three words of the first
sentence.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

from evaluation.benchmark.demo import lexicon
from evaluation.benchmark.samples import Row, Span, sample

LABELS = ("negative", "positive")  # of sentiment
_POINTS = {"subject": 2, "verb": 1, "object": 2}  # of similarity


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
    def content(self) -> str:
        """Both texts together, by which draws are told apart."""
        return f"{self.text} {self.second or ''}"

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
    first, other = _words(rng), _words(rng)
    second = {part: first[part] if rng.random() < 0.5 else other[part] for part in first}
    shared = [part for part in first if first[part] == second[part]]
    score = float(sum(_POINTS[part] for part in shared))
    texts = [_sentence(rng, words) for words in (first, second)]
    meta = {"shared": "+".join(shared) or "nothing"}
    text, other_text = (f"{sentence.capitalised()}." for sentence in texts)
    return Judged(text, other_text, None, score, tuple(texts[0].marked), meta)


def _words(rng: random.Random) -> dict[str, str]:
    """The words of a clause: subject, verb and object."""
    subject, _ = rng.choice(lexicon.MALE[:6] + lexicon.FEMALE[:6])
    thing, _ = rng.choice(lexicon.THINGS[:12])
    return {"subject": subject, "verb": rng.choice(lexicon.REFLEXIVE_VERBS[:8]), "object": thing}


def _sentence(rng: random.Random, words: dict[str, str]) -> Sentence:
    """The sentence of a clause; subject, verb and object are marked."""
    sentence = Sentence()
    sentence.say(rng.choice(lexicon.DETERMINERS))
    sentence.say(words["subject"], words["verb"], mark=True)
    sentence.say(rng.choice(lexicon.DETERMINERS))
    sentence.say(words["object"], mark=True)
    return sentence
