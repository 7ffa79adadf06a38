"""Grammatical number of a subject's head and of a verb form: a check on the annotation, recorded and never a filter."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from spacy.tokens import Token

Number = Literal["singular", "plural"]

_SINGULAR_VERBS, _PLURAL_VERBS = ("is", "was", "has", "does"), ("are", "were", "have", "do")
_SINGULAR = {
    "it",
    "he",
    "she",
    "this",
    "that",
    "each",
    "either",
    "neither",
    "another",
    "much",
    "one",
    "everyone",
    "anyone",
    "someone",
}
_PLURAL = {"they", "we", "you", "i", "these", "those", "both", "many", "few", "several", "others"}
_TAGS: dict[str, Number] = {
    "NN": "singular", "NNP": "singular", "NNS": "plural", "NNPS": "plural",
    "VBG": "singular", "VB": "singular", "VBP": "singular", "VBZ": "plural",  # nouns tagged as verbs
}  # fmt: skip


def of_verb(form: str, other: str) -> Number:
    """The number of a present-tense form, from the form of the other number: the longer one ends in s."""
    if form.lower() in _SINGULAR_VERBS:
        return "singular"
    return "singular" if len(form) > len(other) and form.lower() not in _PLURAL_VERBS else "plural"


def of_determiner(word: str) -> Number:
    return "plural" if word.lower() in _PLURAL else "singular"


def of_reflexive(word: str) -> Number:
    return "plural" if word.lower().endswith("selves") else "singular"


def of_head(head: Token) -> Number | None:
    """The number that a verb takes after a subject with this head; None if the parse does not determine it.

    "I" and "you" count as plural, as they take that form. Conjuncts under "and" make a plural, under "or" either.
    """
    if any(child.dep_ == "conj" for child in head.children):
        joined = any(word.lower_ == "and" for word in head.subtree if word.dep_ == "cc")
        return "plural" if joined else None
    word = head.lower_
    if word in _SINGULAR or word.endswith(("body", "thing")):
        return "singular"
    if word in _PLURAL:
        return "plural"
    marked = head.morph.get("Number", [])
    if marked:
        return "plural" if marked[0] == "Plur" else "singular"
    if head.tag_ == "CD":
        return "singular" if word == "1" else "plural"
    return _TAGS.get(head.tag_)
