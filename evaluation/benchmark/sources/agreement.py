"""Agreement: minimal pairs of BLiMP (Warstadt et al. 2020), and Goldberg's (2019) sentences after Linzen et al. (2016).

Of BLiMP, Close Look's task is a paradigm, anaphor number agreement, with the text ending at the slot. NormXLogit's are
five, with the slot inside the sentence: what follows it may be the evidence. Goldberg's sentences have a verb against
its form of other number.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from closelook.evaluation.benchmark.samples import Malformed, Row, meta_of, sample
from closelook.evaluation.benchmark.sources.base import Side, Source, field, one_sample
from closelook.evaluation.benchmark.sources.files import json_lines, tab_separated
from closelook.evaluation.benchmark.syntax import of_verb

MASK = "***mask***"  # stands for the verb in Goldberg's sentences
_WORD = re.compile(r"([\w'-]+)(\W*)")
_NEGATION = re.compile(r"\b\w+n't\b")
_STEMS = {"ca": "can", "wo": "will"}  # of can't and won't; other stems are words already, as in hasn't
#: NormXLogit's five paradigms: the name that each has there, and its evidence.
PARADIGMS = {
    "anaphor_number_agreement": ("ana", "antecedent"),
    "determiner_noun_agreement_2": ("dna", "noun"),
    "determiner_noun_agreement_with_adj_2": ("dnaa", "noun"),
    "distractor_agreement_relational_noun": ("darn", "subject"),
    "regular_plural_subject_verb_agreement_1": ("rpsv", "subject"),
}


def pair(good_sentence: str, bad_sentence: str) -> tuple[str, str, str, str]:
    """The text before, the two words, and the text after the only word in which the sentences differ.

    Raises Malformed unless they differ in exactly one word.
    """
    good, bad = good_sentence.split(" "), bad_sentence.split(" ")
    differ = [i for i, (left, right) in enumerate(zip(good, bad, strict=False)) if left != right]
    if len(good) != len(bad) or len(differ) != 1:
        raise Malformed("the sentences do not differ in exactly one word", f"{' '.join(good)} / {' '.join(bad)}")
    at = differ[0]
    right, wrong = _WORD.fullmatch(good[at]), _WORD.fullmatch(bad[at])
    if right is None or wrong is None or right[2] != wrong[2]:
        raise Malformed("the sentences differ in more than the letters of a word", f"{good[at]} / {bad[at]}")
    after = " ".join(["", *good[at + 1 :]])
    return " ".join(good[:at]), right[1], wrong[1], right[2] + after


def parse(record: Any) -> Row:
    """The sample of a pair of sentences: target and foil are the words in which they differ.

    The text ends at the slot; what follows it (a full stop) is kept for the annotator as `meta.rest`. Raises Malformed
    for sentences that do not differ in exactly one word.
    """
    before, good, bad, rest = pair(*(field(record, f"sentence_{kind}") for kind in ("good", "bad")))
    return sample("blimp", before, len(before), good, bad, meta={"rest": rest})


def parse_inside(record: Any) -> Row:
    """The sample of a pair of one of the five PARADIGMS: its text is the whole sentence without the word that differs.

    Negative contractions are written out (hasn't becomes has not), so that the verb is a word of its own. The kind of
    evidence that the annotator has to find is `meta.evidence`. Raises Malformed as `pair` does, and for a paradigm that
    is none of the five.
    """
    uid = field(record, "UID")
    if uid not in PARADIGMS:
        raise Malformed("not one of the five paradigms", uid)
    name, evidence = PARADIGMS[uid]
    before, good, bad, rest = pair(*(written_out(field(record, f"sentence_{kind}")) for kind in ("good", "bad")))
    before = before and f"{before} "
    return sample("blimp5", before + rest, len(before), good, bad, meta={"paradigm": name, "evidence": evidence})


def written_out(sentence: str) -> str:
    """`sentence` with its negative contractions in two words; can't becomes cannot, which is one."""

    def words(contraction: re.Match[str]) -> str:
        """The contraction written out, with a capital where it has one."""
        stem = contraction[0].removesuffix("n't")
        full = _STEMS.get(stem.lower(), stem)
        full = full if stem[:1].islower() else full.capitalize()
        return f"{full}not" if full.lower() == "can" else f"{full} not"

    return _NEGATION.sub(words, sentence)


def regular_plurals(row: Row) -> Side | None:
    """The side of a row for `balance`: of the paradigm rpsv, singular verbs are drawn and plural ones counted.

    None for rows of other paradigms. NormXLogit balances so.
    """
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
    hub_configs=("anaphor_number_agreement",),
    hub_splits=("train",),
)
BLIMP5 = replace(
    BLIMP,
    name="blimp5",
    title="BLiMP, the five paradigms of NormXLogit's evidence experiment (Warstadt et al. 2020)",
    rows=one_sample(parse_inside),
    file_url=None,
    hub_configs=tuple(PARADIGMS),
    side=regular_plurals,
)


def parse_masked(columns: list[str]) -> Row:
    """The sample of a row: number of attractors, sentence, sentence with MASK for its verb, verb, its other form.

    Raises Malformed for a row of another form.
    """
    if len(columns) != 5:
        raise Malformed("not five columns", f"{len(columns)} columns")
    attractors, sentence, masked, good, bad = columns
    if not attractors.isdecimal():
        raise Malformed("the number of attractors is no number", attractors)
    if masked.count(MASK) != 1:
        raise Malformed("no mask marker" if MASK not in masked else "more than one mask marker", masked)
    if masked.replace(MASK, good) != sentence:
        raise Malformed("the masked sentence is not the sentence", masked)
    slot = masked.index(MASK)
    return sample("lgd", masked.replace(MASK, ""), slot, good, bad, meta={"attractors": int(attractors)})


LGD = Source(
    name="lgd",
    title="Subject-verb agreement sentences of Goldberg (2019), after Linzen et al. (2016)",
    url="https://github.com/yoavg/bert-syntax",
    licence="Apache 2.0",
    suffixes=(".tsv",),
    records=tab_separated,
    rows=one_sample(parse_masked),
    file_url="https://raw.githubusercontent.com/yoavg/bert-syntax/master/lgd_dataset.tsv",
)
