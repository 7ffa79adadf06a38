"""Words of a dependency parse: heads of subjects and antecedents, nouns of determiners, and their grammatical number.

Labels are those of Universal Dependencies or ClearNLP. If the parse has no such word, :class:`Malformed` says what it
has instead. Whether evidence and a verb form agree in number is recorded, as a check of the annotation; no sample is
left out for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from closelook.evaluation.benchmark.samples import Malformed

if TYPE_CHECKING:
    from spacy.tokens import Doc, Token


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
_FUNCTION = {"aux", "aux:pass", "auxpass", "cop"}  # these hang from the predicate, which carries the subject
_SUBJECT = {"nsubj", "nsubj:pass", "nsubj:outer", "nsubjpass"}
_CLAUSE = {"csubj", "csubj:pass", "csubj:outer", "csubjpass"}
_RELATIVE = {"relcl", "acl:relcl", "advcl:relcl"}
_DETERMINER = {"det", "det:predet", "predet"}
_NOMINAL = {
    "nmod",
    "obl",
    "obj",
    "iobj",
    "dobj",
    "pobj",
    "appos",
    "compound",
    "amod",
    "nummod",
    "flat",
    "fixed",
    "case",
}
_PRONOUN = {"who", "whom", "which", "that", "what", "whatever", "whoever", "whichever"}


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


def predicate(verb: Token) -> Token:
    """The word that `verb` is an auxiliary or copula of, else `verb` itself."""
    while verb.dep_ in _FUNCTION and verb.head.i != verb.i:
        verb = verb.head
    return verb


def subject(verb: Token) -> Token:
    """The head of the subject that `verb` agrees with; it may follow the verb (inversion, existential *there*).

    A conjoined verb without a subject has that of the first conjunct. If the subject is a relative pronoun, its
    antecedent is returned. Raises Malformed if the parse has no subject, has a clause as subject, or contradicts
    itself.
    """
    clause = predicate(verb)
    if clause.i == verb.i and clause.dep_ in _NOMINAL:
        raise Malformed("the parse takes the verb for part of a noun phrase", f"{verb.text!r} is {clause.dep_}")
    while (token := _own_subject(clause, verb)) is None:
        if clause.dep_ != "conj" or clause.head.i == clause.i:
            raise Malformed("no subject in the parse", f"{verb.text!r} is {clause.dep_}")
        clause = clause.head
    if token.lower_ in _PRONOUN and token.i < verb.i:
        token = _antecedent(token, clause)
    elif any(child.dep_ == "case" and child.i < token.i for child in token.children):
        raise Malformed("the parse puts the subject under a preposition", token.text)
    return token


def _children(token: Token, labels: set[str]) -> list[Token]:
    """The dependents of a token under these labels."""
    return [child for child in token.children if child.dep_ in labels]


def _own_subject(clause: Token, verb: Token) -> Token | None:
    """The subject among the dependents of `clause` or of its auxiliaries: the nearest before `verb`, else the first.

    Of existential *there* it is what exists; of a free relative, its pronoun. None if the clause has no subject. Raises
    Malformed for a clause as subject.
    """
    nodes = [clause, *_children(clause, _FUNCTION)]
    subjects = sorted(child for node in nodes for child in _children(node, _SUBJECT))
    before = [child for child in subjects if child.i < verb.i]
    if subjects:
        return before[-1] if before else subjects[0]
    if expletives := _children(clause, {"expl"}):
        if expletives[0].lower_ != "there":
            return expletives[0]
        attributes = _children(clause, {"attr"})  # ClearNLP: the thing that there is
        if not attributes:
            raise Malformed("no subject in the parse", "there is no noun behind 'there'")
        return attributes[0]
    if _children(clause, _CLAUSE):
        raise Malformed("the subject is a clause")
    if clause.dep_ in _RELATIVE and clause.head.lower_ in _PRONOUN:
        return clause.head  # a free relative: "what remains"
    return None


def _antecedent(pronoun: Token, clause: Token) -> Token:
    """The antecedent of a relative pronoun that is the subject of `clause`; an interrogative pronoun itself.

    Raises Malformed for a relative pronoun without an antecedent.
    """
    while clause.dep_ == "conj" and clause.head.i != clause.i:
        clause = clause.head
    if clause.dep_ in _RELATIVE:
        return clause.head
    if pronoun.lower_ in ("that", "which") and pronoun.tag_ in ("WDT", "WP", "IN"):
        raise Malformed("a relative pronoun without an antecedent", pronoun.text)
    return pronoun


def noun(determiner: Token) -> Token:
    """The noun of a determiner. Raises Malformed if the parse attaches the determiner to no noun."""
    head = determiner.head
    if determiner.dep_ not in _DETERMINER or head.i <= determiner.i:
        raise Malformed("the parse has no noun for the determiner", f"{determiner.text!r} is {determiner.dep_}")
    return head


def binder(reflexive: Token) -> Token:
    """The head of the subject of the nearest clause around a reflexive. Raises Malformed when no clause has one."""
    for clause in reflexive.ancestors:
        try:
            token = subject(clause)
        except Malformed:
            continue
        if token.i != reflexive.i:
            return token
    raise Malformed("no antecedent in the parse", reflexive.text)


def token_at(doc: Doc, start: int, end: int) -> Token:
    """The token of exactly the characters [start, end). Raises Malformed if the pipeline splits the text otherwise."""
    span = doc.char_span(start, end)
    if span is None or len(span) != 1:
        raise Malformed("the pipeline does not make the word one token", doc.text[start:end])
    return span[0]
