"""BLiMP's anaphor number agreement (Warstadt et al. 2020): a reflexive against its twin of the other number."""

from __future__ import annotations

import re
from typing import Any

from evaluation.benchmark.samples import Malformed, Row, sample
from evaluation.benchmark.sources.base import Source, field, one_sample
from evaluation.benchmark.sources.files import json_lines


def parse(record: Any) -> Row:
    """Slot, target and foil are where the two sentences differ; the hub's rows tell no more than the sentences.

    The text ends at the slot; what follows it (a full stop) is kept for the annotator as `meta.rest`.
    """
    good, bad = (field(record, f"sentence_{kind}").split(" ") for kind in ("good", "bad"))
    differ = [i for i, (left, right) in enumerate(zip(good, bad, strict=False)) if left != right]
    if len(good) != len(bad) or len(differ) != 1:
        raise Malformed("the sentences do not differ in exactly one word", f"{' '.join(good)} / {' '.join(bad)}")
    at = differ[0]
    words = [re.fullmatch(r"([\w'-]+)(\W*)", sentence[at]) for sentence in (good, bad)]
    if words[0] is None or words[1] is None or words[0][2] != words[1][2]:
        raise Malformed("the differing word is no word", f"{good[at]} / {bad[at]}")
    text = " ".join(good[:at])
    rest = " ".join([words[0][2], *good[at + 1 :]])
    return sample("blimp", text, len(text), words[0][1], words[1][1], meta={"rest": rest})


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
