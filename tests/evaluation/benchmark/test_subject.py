"""Parses written by hand, by both label schemes: the finder is judged, not a parser."""

import pytest
import spacy
from spacy.tokens import Doc

from closelook.evaluation.benchmark import syntax
from closelook.evaluation.benchmark.samples import Malformed
from closelook.evaluation.benchmark.syntax import binder, noun, subject, token_at

VOCAB = spacy.blank("en").vocab


def parse(text):
    """`word/TAG/label/head` for every word, the head counted from 1, the root its own head."""
    parts = [part.rsplit("/", 3) for part in text.split()]
    words, tags, labels, heads = zip(*parts, strict=True)
    return Doc(VOCAB, list(words), tags=list(tags), deps=list(labels), heads=[int(head) - 1 for head in heads])


SUBJECTS = {
    "ud, past a prepositional phrase": (
        "The/DT/det/2 keys/NNS/nsubj/6 to/IN/case/5 the/DT/det/5 cabinet/NN/nmod/2 rust/VBP/ROOT/6",
        "rust",
        "keys",
    ),
    "clearnlp, past a prepositional phrase": (
        "The/DT/det/2 keys/NNS/nsubj/6 to/IN/prep/2 the/DT/det/5 cabinet/NN/pobj/3 rust/VBP/ROOT/6",
        "rust",
        "keys",
    ),
    "auxiliary": ("Keys/NNS/nsubj/3 have/VBP/aux/3 rusted/VBN/ROOT/3", "have", "Keys"),
    "auxiliary that holds the subject": ("Keys/NNS/nsubj/2 do/VBP/aux/3 rust/VB/ROOT/3", "do", "Keys"),
    "two auxiliaries": ("Keys/NNS/nsubj/4 have/VBP/aux/4 been/VBN/aux/4 rusting/VBG/ROOT/4", "have", "Keys"),
    "ud copula": ("Keys/NNS/nsubj/3 are/VBP/cop/3 old/JJ/ROOT/3", "are", "Keys"),
    "clearnlp copula": ("Keys/NNS/nsubj/2 are/VBP/ROOT/2 old/JJ/acomp/2", "are", "Keys"),
    "ud passive": ("Keys/NNS/nsubj:pass/3 are/VBP/aux:pass/3 found/VBN/ROOT/3", "are", "Keys"),
    "clearnlp passive": ("Keys/NNS/nsubjpass/3 are/VBP/auxpass/3 found/VBN/ROOT/3", "are", "Keys"),
    "conjoined verbs": ("Keys/NNS/nsubj/2 rust/VBP/ROOT/2 and/CC/cc/4 break/VBP/conj/2", "break", "Keys"),
    "conjoined auxiliaries": (
        "Keys/NNS/nsubj/3 are/VBP/aux:pass/3 lost/VBN/ROOT/3 and/CC/cc/6 are/VBP/aux:pass/6 found/VBN/conj/3",
        "are@5",
        "Keys",
    ),
    "conjunct with a subject of its own": (
        "Keys/NNS/nsubj/2 rust/VBP/ROOT/2 and/CC/cc/5 doors/NNS/nsubj/5 creak/VBP/conj/2",
        "creak",
        "doors",
    ),
    "ud relative clause": ("keys/NNS/ROOT/1 that/WDT/nsubj/3 open/VBP/acl:relcl/1 doors/NNS/obj/3", "open", "keys"),
    "clearnlp relative clause": ("keys/NNS/ROOT/1 that/WDT/nsubj/3 open/VBP/relcl/1 doors/NNS/dobj/3", "open", "keys"),
    "conjoined verbs of a relative clause": (
        "men/NNS/ROOT/1 who/WP/nsubj/3 eat/VBP/acl:relcl/1 and/CC/cc/5 drink/VBP/conj/3",
        "drink",
        "men",
    ),
    "relative clause with another subject": (
        "keys/NNS/ROOT/1 that/WDT/obj/4 we/PRP/nsubj/4 use/VBP/acl:relcl/1",
        "use",
        "we",
    ),
    "free relative": ("what/WP/nsubj/3 remains/VBZ/acl:relcl/1 helps/VBZ/ROOT/3", "remains", "what"),
    "question word": ("Who/WP/nsubj/2 knows/VBZ/ROOT/2", "knows", "Who"),
    "ud existential there": ("There/EX/expl/2 are/VBP/ROOT/2 two/CD/nummod/4 keys/NNS/nsubj/2", "are", "keys"),
    "clearnlp existential there": ("There/EX/expl/2 are/VBP/ROOT/2 two/CD/nummod/4 keys/NNS/attr/2", "are", "keys"),
    "inversion": ("Here/RB/advmod/2 lie/VBP/ROOT/2 the/DT/det/4 keys/NNS/nsubj/2", "lie", "keys"),
    "inverted question": ("Do/VBP/aux/3 keys/NNS/nsubj/3 rust/VB/ROOT/3", "Do", "keys"),
    "expletive it": ("It/PRP/expl/2 seems/VBZ/ROOT/2 that/IN/mark/5 keys/NNS/nsubj/5 rust/VBP/csubj/2", "seems", "It"),
    "complement clause": ("It/PRP/expl/2 seems/VBZ/ROOT/2 keys/NNS/nsubj/4 rust/VBP/csubj/2", "rust", "keys"),
    "nested subjects": (
        "Rust/NN/nsubj:outer/6 is/VBZ/cop/6 what/WP/obj/6 keys/NNS/nsubj/6 have/VBP/aux/6 got/VBN/ROOT/6",
        "have",
        "keys",
    ),
}

REJECTED = {
    "no subject": ("Remain/VB/ROOT/1 calm/JJ/xcomp/1", "Remain", "no subject in the parse"),
    "clausal subject": (
        "Eating/VBG/csubj/3 apples/NNS/obj/1 helps/VBZ/ROOT/3",
        "helps",
        "the subject is a clause",
    ),
    "relative pronoun without antecedent": (
        "that/WDT/nsubj/2 express/VBP/ROOT/2",
        "express",
        "a relative pronoun without an antecedent",
    ),
    "verb within a noun phrase": (
        "cameras/NNS/ROOT/1 use/NN/compound/1",
        "use",
        "the parse takes the verb for part of a noun phrase",
    ),
    "subject under a preposition": (
        "men/NNS/ROOT/1 with/IN/case/3 hats/NNS/nsubj/4 claim/VBP/acl/1",
        "claim",
        "the parse puts the subject under a preposition",
    ),
    "nothing that there is": ("There/EX/expl/2 are/VBP/ROOT/2", "are", "no subject in the parse"),
}


def word(doc, name):
    """The first token of this text, from the one after the @ on."""
    text, _, start = name.partition("@")
    return next(token for token in doc if token.text == text and token.i + 1 >= int(start or 1))


@pytest.mark.parametrize("case", SUBJECTS)
def test_the_subject_is_found(case):
    text, verb, head = SUBJECTS[case]
    doc = parse(text)
    assert subject(word(doc, verb)).text == head


@pytest.mark.parametrize("case", REJECTED)
def test_what_the_parse_does_not_tell_is_no_guess(case):
    text, verb, why = REJECTED[case]
    with pytest.raises(Malformed) as error:
        subject(word(parse(text), verb))
    assert error.value.reason == why


@pytest.mark.parametrize(
    ("text", "head"),
    [
        ("Susan/NNP/nsubj/2 revealed/VBD/ROOT/2 herself/PRP/obj/2", "Susan"),
        ("Girls/NNS/nsubj/2 think/VBP/ROOT/2 about/IN/case/4 themselves/PRP/obl/2", "Girls"),
        ("Girls/NNS/nsubj/2 think/VBP/ROOT/2 about/IN/prep/2 themselves/PRP/pobj/3", "Girls"),
        ("Girls/NNS/nsubj/2 want/VBP/ROOT/2 to/TO/mark/4 hug/VB/xcomp/2 themselves/PRP/obj/4", "Girls"),
    ],
)
def test_a_reflexive_is_bound_by_the_subject_of_its_clause(text, head):
    doc = parse(text)
    assert binder(doc[len(doc) - 1]).text == head


def test_a_reflexive_without_a_subject_around_it_is_no_guess():
    with pytest.raises(Malformed, match="no antecedent"):
        binder(parse("Men/NNS/ROOT/1 like/IN/case/3 themselves/PRP/nmod/1")[2])


def test_a_word_that_the_pipeline_splits_otherwise_is_rejected():
    with pytest.raises(Malformed, match="does not make the word one token"):
        token_at(parse("can/MD/aux/3 not/RB/neg/3 go/VB/ROOT/3"), 0, 7)


@pytest.mark.parametrize(
    ("form", "other", "expected"),
    [
        ("has", "have", "singular"),
        ("are", "is", "plural"),
        ("passes", "pass", "singular"),
        ("pass", "passes", "plural"),
    ],
)
def test_number_of_verb_forms(form, other, expected):
    assert syntax.of_verb(form, other) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("key/NN/ROOT/1", "singular"),
        ("keys/NNS/ROOT/1", "plural"),
        ("they/PRP/ROOT/1", "plural"),
        ("everybody/NN/ROOT/1", "singular"),
        ("42/CD/ROOT/1", "plural"),
        ("key/NN/ROOT/1 and/CC/cc/3 lock/NN/conj/1", "plural"),
        ("key/NN/ROOT/1 or/CC/cc/3 locks/NNS/conj/1", None),
        ("rich/JJ/ROOT/1", None),
    ],
)
def test_number_of_subject_heads(text, expected):
    assert syntax.of_head(parse(text)[0]) == expected


def test_morphology_outranks_the_tag():
    doc = parse("fish/NN/ROOT/1")
    doc[0].set_morph("Number=Plur")
    assert syntax.of_head(doc[0]) == "plural"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "Tom/NNP/nsubj/2 sees/VBZ/ROOT/2 these/DT/det/6 art/NN/compound/6 old/JJ/amod/6 halls/NNS/obj/2",
            "halls",
        ),
        ("Tom/NNP/nsubj/2 sees/VBZ/ROOT/2 these/DT/predet/5 old/JJ/amod/5 keys/NNS/dobj/2", "keys"),
    ],
)
def test_a_determiners_evidence_is_its_noun(text, expected):
    assert noun(parse(text)[2]).text == expected


@pytest.mark.parametrize(
    "text",
    [
        "Tom/NNP/nsubj/2 sees/VBZ/ROOT/2 this/DT/obj/2 old/JJ/amod/5 keys/NNS/obj/2",
        "Tom/NNP/nsubj/2 sees/VBZ/ROOT/2 these/DT/det/2 keys/NNS/obj/2",
    ],
)
def test_a_determiner_without_a_noun_has_no_evidence(text):
    with pytest.raises(Malformed, match="the parse has no noun for the determiner: 'th"):
        noun(parse(text)[2])


@pytest.mark.parametrize(("word", "expected"), [("this", "singular"), ("Those", "plural"), ("that", "singular")])
def test_the_number_of_a_determiner(word, expected):
    assert syntax.of_determiner(word) == expected
