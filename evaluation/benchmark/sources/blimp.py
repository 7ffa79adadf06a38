"""BLiMP (Warstadt et al. 2020): minimal pairs of sentences that differ in one word.

Close Look's task is one of its paradigms, anaphor number agreement, with the text ending at the slot. NormXLogit's are
five, with the slot inside the sentence: what follows it may be the evidence.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any, NamedTuple

from evaluation.benchmark.number import of_verb
from evaluation.benchmark.samples import Malformed, Row, meta_of, sample
from evaluation.benchmark.sources.balance import Side
from evaluation.benchmark.sources.base import Source, field, one_sample
from evaluation.benchmark.sources.files import json_lines

_WORD = re.compile(r"([\w'-]+)(\W*)")
_NEGATION = re.compile(r"\b\w+n't\b")
_STEMS = {"ca": "can", "wo": "will"}  # the others keep theirs: hasn't, has not


#: NormXLogit's five paradigms: the name that each has there, and its evidence.
PARADIGMS = {
    "anaphor_number_agreement": ("ana", "antecedent"),
    "determiner_noun_agreement_2": ("dna", "noun"),
    "determiner_noun_agreement_with_adj_2": ("dnaa", "noun"),
    "distractor_agreement_relational_noun": ("darn", "subject"),
    "regular_plural_subject_verb_agreement_1": ("rpsv", "subject"),
}


class SentencePair(NamedTuple):
    """Two sentences that differ in one word: the text before it, the two words, and the text behind."""

    before: str
    good: str
    bad: str
    rest: str


def pair(good_sentence: str, bad_sentence: str) -> SentencePair:
    """The words in which the two sentences differ. Raises Malformed unless they differ in exactly one."""
    good, bad = good_sentence.split(" "), bad_sentence.split(" ")
    differ = [i for i, (left, right) in enumerate(zip(good, bad, strict=False)) if left != right]
    if len(good) != len(bad) or len(differ) != 1:
        raise Malformed("the sentences do not differ in exactly one word", f"{' '.join(good)} / {' '.join(bad)}")
    at = differ[0]
    right, wrong = _WORD.fullmatch(good[at]), _WORD.fullmatch(bad[at])
    if right is None or wrong is None or right[2] != wrong[2]:
        raise Malformed("the differing word is no word", f"{good[at]} / {bad[at]}")
    after = " ".join(["", *good[at + 1 :]])
    return SentencePair(" ".join(good[:at]), right[1], wrong[1], right[2] + after)


def parse(record: Any) -> Row:
    """Slot, target and foil are where the two sentences differ; the hub's rows tell no more than the sentences.

    The text ends at the slot; what follows it (a full stop) is kept for the annotator as `meta.rest`.
    """
    before, good, bad, rest = pair(*(field(record, f"sentence_{kind}") for kind in ("good", "bad")))
    return sample("blimp", before, len(before), good, bad, meta={"rest": rest})


def parse_inside(record: Any) -> Row:
    """A record of one of the five paradigms: the whole sentence without the word that differs.

    Negative contractions are written out (hasn't: has not), so that the word that agrees is one of its own. What the
    annotator has to find stands in `meta.evidence`.
    """
    uid = field(record, "UID")
    if uid not in PARADIGMS:
        raise Malformed("not one of the five paradigms", uid)
    name, evidence = PARADIGMS[uid]
    before, good, bad, rest = pair(*(written_out(field(record, f"sentence_{kind}")) for kind in ("good", "bad")))
    before = before and f"{before} "
    return sample("blimp5", before + rest, len(before), good, bad, meta={"paradigm": name, "evidence": evidence})


def written_out(sentence: str) -> str:
    """`sentence` with its negative contractions in two words (can't: cannot, which is one)."""

    def words(contraction: re.Match[str]) -> str:
        stem = contraction[0].removesuffix("n't")
        full = _STEMS.get(stem.lower(), stem)
        full = full if stem[:1].islower() else full.capitalize()
        return f"{full}not" if full.lower() == "can" else f"{full} not"

    return _NEGATION.sub(words, sentence)


def regular_plurals(row: Row) -> Side | None:
    """NormXLogit draws as many sentences with singular verbs of this paradigm as there are with plural ones."""
    if meta_of(row)["paradigm"] != "rpsv":
        return None
    return "drawn" if of_verb(row["target"], row["foil"]) == "singular" else "counted"


BLIMP = Source(
    name="blimp",
    title="BLiMP, anaphor number agreement (Warstadt et al. 2020)",
    url="https://github.com/alexwarstadt/blimp",
    licence="CC BY 4.0",
    suffixes=(".jsonl",),
    records=json_lines,
    rows=one_sample(parse),
    file_url="https://raw.githubusercontent.com/alexwarstadt/blimp/master/data/anaphor_number_agreement.jsonl",
    hub="nyu-mll/blimp",
    hub_config="anaphor_number_agreement",
    hub_splits=("train",),
)
BLIMP5 = replace(
    BLIMP,
    name="blimp5",
    title="BLiMP, the five paradigms of NormXLogit's evidence experiment (Warstadt et al. 2020)",
    rows=one_sample(parse_inside),
    file_url=None,
    hub_config=tuple(PARADIGMS),
    side=regular_plurals,
)
