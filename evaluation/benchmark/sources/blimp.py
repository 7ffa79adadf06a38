"""BLiMP (Warstadt et al. 2020): minimal pairs of sentences that differ in one word.

Close Look's task is one of its paradigms, anaphor number agreement, with the text ending at the slot. NormXLogit's are
five, with the slot inside the sentence: what follows it may be the evidence.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from evaluation.benchmark.number import of_verb
from evaluation.benchmark.samples import Malformed, Row, meta_of, sample
from evaluation.benchmark.sources.balance import Side
from evaluation.benchmark.sources.base import Source, field, one_sample
from evaluation.benchmark.sources.files import json_lines

_WORD = re.compile(r"([\w'-]+)(\W*)")
_NEGATION = re.compile(r"\b\w+n't\b")
_STEMS = {"ca": "can", "wo": "will"}  # the others keep theirs: hasn't, has not


class Paradigm(NamedTuple):
    """One of NormXLogit's five: its name there, and what its evidence is."""

    name: str
    evidence: str


PARADIGMS = {
    "anaphor_number_agreement": Paradigm("ana", "antecedent"),
    "determiner_noun_agreement_2": Paradigm("dna", "noun"),
    "determiner_noun_agreement_with_adj_2": Paradigm("dnaa", "noun"),
    "distractor_agreement_relational_noun": Paradigm("darn", "subject"),
    "regular_plural_subject_verb_agreement_1": Paradigm("rpsv", "subject"),
}


class SentencePair(NamedTuple):
    """Two sentences that differ in one word: `before`, the words, the punctuation behind them, and what follows."""

    before: str
    good: str
    bad: str
    punctuation: str
    after: str


def pair(good_sentence: str, bad_sentence: str) -> SentencePair:
    """Where the two sentences differ. Raises Malformed unless it is in exactly one word."""
    good, bad = good_sentence.split(" "), bad_sentence.split(" ")
    differ = [i for i, (left, right) in enumerate(zip(good, bad, strict=False)) if left != right]
    if len(good) != len(bad) or len(differ) != 1:
        raise Malformed("the sentences do not differ in exactly one word", f"{' '.join(good)} / {' '.join(bad)}")
    at = differ[0]
    words = [_WORD.fullmatch(sentence[at]) for sentence in (good, bad)]
    if words[0] is None or words[1] is None or words[0][2] != words[1][2]:
        raise Malformed("the differing word is no word", f"{good[at]} / {bad[at]}")
    return SentencePair(" ".join(good[:at]), words[0][1], words[1][1], words[0][2], " ".join(good[at + 1 :]))


def parse(record: Any) -> Row:
    """Slot, target and foil are where the two sentences differ; the hub's rows tell no more than the sentences.

    The text ends at the slot; what follows it (a full stop) is kept for the annotator as `meta.rest`.
    """
    sentences = pair(*(field(record, f"sentence_{kind}") for kind in ("good", "bad")))
    rest = sentences.punctuation + (f" {sentences.after}" if sentences.after else "")
    return sample("blimp", sentences.before, len(sentences.before), sentences.good, sentences.bad, meta={"rest": rest})


def parse_inside(record: Any) -> Row:
    """A record of one of the five paradigms: the whole sentence without the word that differs.

    Negative contractions are written out (hasn't: has not), so that the word that agrees is one of its own. What the
    annotator has to find stands in `meta.evidence`.
    """
    uid = field(record, "UID")
    if uid not in PARADIGMS:
        raise Malformed("not one of the five paradigms", uid)
    sentences = pair(*(written_out(field(record, f"sentence_{kind}")) for kind in ("good", "bad")))
    before = f"{sentences.before} " if sentences.before else ""
    after = sentences.punctuation + (f" {sentences.after}" if sentences.after else "")
    meta = {"paradigm": PARADIGMS[uid].name, "evidence": PARADIGMS[uid].evidence}
    return sample("blimp5", before + after, len(before), sentences.good, sentences.bad, meta=meta)


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
BLIMP5 = Source(
    name="blimp5",
    title="BLiMP, the five paradigms of NormXLogit's evidence experiment (Warstadt et al. 2020)",
    url="https://github.com/alexwarstadt/blimp",
    licence="CC BY 4.0",
    suffixes=(".jsonl",),
    records=json_lines,
    rows=one_sample(parse_inside),
    hub="nyu-mll/blimp",
    hub_config=tuple(PARADIGMS),
    hub_splits=("train",),
    side=regular_plurals,
)
