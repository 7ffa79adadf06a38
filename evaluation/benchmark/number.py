"""Grammatical number of a subject's head and of a verb form.

Whether they agree is recorded, as a check of the annotation; no sample is left out for it.
"""

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
    """The number of the present-tense `form` of a verb; `other` is the form of the other number.

    The singular ends in s, so that it is the longer one; forms of be, have and do are listed.
    """
    if form.lower() in _SINGULAR_VERBS:
        return "singular"
    return "singular" if len(form) > len(other) and form.lower() not in _PLURAL_VERBS else "plural"


def of_determiner(word: str) -> Number:
    """The number of a determiner such as `this` or `those`."""
    return "plural" if word.lower() in _PLURAL else "singular"


def of_reflexive(word: str) -> Number:
    """The number of a reflexive pronoun such as `herself` or `themselves`."""
    return "plural" if word.lower().endswith("selves") else "singular"


def of_head(head: Token) -> Number | None:
    """The number that a verb takes after a subject with this head; None if the parse does not determine it.

    "I" and "you" count as plural, whose verb form they take. Heads joined by "and" are plural; by "or" they are None.
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
