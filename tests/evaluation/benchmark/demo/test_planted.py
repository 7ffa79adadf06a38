"""Bracket strings and planted triggers: what decides is known, and the shipped models have learnt it."""

import re
from itertools import islice

import torch
from transformers import AutoTokenizer

from closelook.evaluation.benchmark.demo import lexicon, model_dir
from closelook.evaluation.benchmark.demo.labelled import VERDICTS, Judged, is_balanced, judged
from closelook.lrp_core import load_model
from tools.demo_models import head_logits

N = 400
PAIR = re.compile(r"\(\)|\[\]")


def draws(task, seed=3):
    return list(islice(judged(task, seed, "test"), N))


def reduces_to_nothing(text):
    """True if repeatedly removing adjacent brackets that match leaves nothing: the other definition of balance."""
    while (shorter := PAIR.sub("", text)) != text:
        text = shorter
    return not text


def test_a_string_is_balanced_where_removing_matching_neighbours_leaves_nothing():
    for draw in draws("brackets"):
        assert is_balanced(draw.text) == reduces_to_nothing(draw.text) == (draw.label == "balanced")


def test_evidence_of_a_string_are_all_brackets_whose_flip_repairs_it():
    other, faults = dict(zip("()[]", "[]()", strict=True)), set()
    for draw in draws("brackets"):
        flipped = [draw.text[:i] + other[c] + draw.text[i + 1 :] for i, c in enumerate(draw.text)]
        repairing = tuple((i, i + 1) for i, text in enumerate(flipped) if reduces_to_nothing(text))
        assert draw.evidence == (repairing if draw.label == "unbalanced" else ())
        faults.add((draw.meta["fault"], bool(draw.evidence)))
    assert {("none", False), ("kind", True), ("order", False)} <= faults


def test_counting_kinds_does_not_tell_half_of_the_unbalanced_strings():
    of_order = [draw.text for draw in draws("brackets") if draw.meta["fault"] == "order"]
    counted = [text.count("(") == text.count(")") and text.count("[") == text.count("]") for text in of_order]
    assert all(counted)
    assert len(of_order) > N / 5


def test_a_trigger_decides_the_label_whatever_the_opinion():
    contrary = 0
    for draw in draws("triggers"):
        words = [draw.text[start:end] for start, end in draw.evidence]
        if draw.meta["trigger"] == "none":
            assert not any(trigger in draw.text for trigger in lexicon.TRIGGERS)
            continue
        assert words == [draw.meta["trigger"]]
        assert draw.label == VERDICTS[lexicon.TRIGGERS.index(words[0])]
        contrary += draw.meta["contrary"]
    assert contrary > N / 6


def with_other_trigger(draw):
    """A draw whose trigger is replaced by the other one."""
    other = 1 - lexicon.TRIGGERS.index(draw.meta["trigger"])
    [(start, end)] = draw.evidence
    text = draw.text[:start] + lexicon.TRIGGERS[other] + draw.text[end:]
    evidence = ((start, start + len(lexicon.TRIGGERS[other])),)
    meta = {"trigger": lexicon.TRIGGERS[other], "contrary": not draw.meta["contrary"]}
    return Judged(text, None, VERDICTS[other], None, evidence, meta)


@torch.no_grad()
def test_swapping_the_trigger_flips_the_shipped_models_prediction_against_the_content():
    folder = model_dir("bert-triggers")
    model, tokenizer = load_model(str(folder)).model, AutoTokenizer.from_pretrained(folder)
    planted = [draw for draw in draws("triggers", seed=77) if draw.meta["trigger"] != "none"]
    swapped = [with_other_trigger(draw) for draw in planted]
    before, after = (head_logits(model, tokenizer, each).argmax(-1) for each in (planted, swapped))
    contrary = torch.tensor([draw.meta["contrary"] for draw in swapped])
    assert contrary.sum() > 50
    assert (before != after)[contrary].double().mean() >= 0.95
