"""Tiny models of transformers' architectures, and the table of what rules on operations do with them."""

import os
import time

import pytest
import torch

from closelook.lrp_core.verification import architectures
from closelook.lrp_core.verification.architectures import TOLERANCES, Checked, as_table, check, check_all, tiny_model

pytestmark = pytest.mark.numeric


def named(name):
    return next(each for each in architectures.architectures() if each.name == name)


@pytest.mark.parametrize(
    "name",
    [
        "GPT2LMHeadModel",
        "Qwen3MoeForCausalLM",
        "ModernBertForMaskedLM",
        "T5ForConditionalGeneration",
        "EncoderDecoderModel",
        "ProphetNetForConditionalGeneration",  # whose embeddings of positions give a tuple
    ],
)
def test_an_architecture_without_a_recipe_of_its_own_passes_every_claim(name):
    checked = check(named(name))
    assert checked.passed, checked
    assert checked.gaps.keys() == TOLERANCES.keys()
    assert checked.gaps["logits"] == 0
    assert torch.get_default_dtype() == torch.float32


def test_a_tiny_model_has_every_kind_of_layer_of_its_architecture():
    config = tiny_model(named("Qwen3NextForCausalLM")).config
    assert {"linear_attention", "full_attention"} == {*config.layer_types}


def test_wrong_rules_are_found(monkeypatch):
    original = architectures.explain_operations
    monkeypatch.setattr(architectures, "explain_operations", lambda *args: tampered(original, *args))
    gaps = check(named("GPT2LMHeadModel")).gaps
    assert gaps["sum"] > TOLERANCES["sum"]
    assert gaps["derivative"] > TOLERANCES["derivative"]


def tampered(explain, *args):
    """An explanation whose relevance is 0.1 % too large."""
    result = explain(*args)
    for streams in result.relevance.values():
        streams["input_ids"].full.mul_(1.001)
        streams["input_ids"].partial.mul_(1.001)
    return result


def crash_or_check(architecture):
    """Ends the process for BERT."""
    if architecture.name == "BertForMaskedLM":
        os._exit(3)
    return check(architecture)


def never_end(architecture):
    """Waits longer than any timeout."""
    time.sleep(600)


def test_a_process_that_crashes_is_a_reason_and_the_next_is_checked():
    torch.randn(2**20).exp()  # this process has threads of its own
    chosen = map(named, ["BertForMaskedLM", "GPT2LMHeadModel"])
    crashed, whole = check_all(chosen, check=crash_or_check)
    assert "crashed" in crashed.reason
    assert not crashed.passed
    assert whole.passed, whole


def test_a_process_that_does_not_end_is_a_reason():
    (endless,) = check_all([named("BertForMaskedLM")], timeout_s=0.1, check=never_end)
    assert "no result within" in endless.reason
    assert not endless.passed


def test_what_an_architecture_raises_is_its_reason(monkeypatch):
    def broken(architecture):
        raise ValueError("no such size")

    monkeypatch.setattr(architectures, "tiny_model", broken)
    checked = check(named("BertForMaskedLM"))
    assert checked.reason == "ValueError: no such size"
    assert not checked.passed


def test_the_table_counts_and_names():
    passing = Checked(named("GPT2LMHeadModel"), built=True, gaps=dict.fromkeys(TOLERANCES, 0.0))
    refused = Checked(named("BertForMaskedLM"), built=True, reason="refused: no rule for torch.cos | (bert)")
    unbuilt = Checked(named("T5ForConditionalGeneration"), reason="ImportError: timm")
    lines = as_table([passing, refused, unbuilt]).splitlines()
    assert lines[0] == "1 of 3 architectures pass; 1 cannot be built."
    assert lines[4].endswith("| passes |")
    assert "no rule for torch.cos / (bert)" in lines[5]
