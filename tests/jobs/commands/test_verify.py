"""`closelook verify`: a table and exit code, and a file of its findings."""

import json
import shlex
from dataclasses import replace

import pytest
import torch
from transformers import AutoModelForCausalLM

import closelook
from closelook.evaluation.benchmark.demo import model_dir
from closelook.lrp_core.operations.nodes import scaled
from closelook.lrp_core.operations.table import TABLE
from closelook.lrp_core.verification.run import SUMS
from tests.docs.test_blocks import PAGES, to_run
from tests.tiny import tiny_model

QUICK = ("--method", "lrp,attnlrp,attnlrp_explicit")


def test_a_model_is_verified_as_the_page_says(closelook, tmp_path, monkeypatch):
    """A table with bounds, and a file."""
    [command] = [block["code"] for block in to_run(PAGES["trust.md"])]
    monkeypatch.chdir(tmp_path)
    code, out, _ = closelook(*shlex.split(command)[1:])
    assert code == 0
    assert out.startswith("demo/gpt2: gpt2, causal, float32 on cpu; closelook ")
    rows = [line.split() for line in out.splitlines() if " pass " in line]
    assert len(rows) == 5
    assert "5 checks passed, 0 do not apply" in out
    written = json.loads((tmp_path / "gpt2.json").read_text())
    assert written["identity"].startswith("sha256:")
    assert {finding["state"] for finding in written["findings"]} == {"pass"}


def test_a_check_that_fails_is_named_and_ends_with_exit_code_1(closelook, monkeypatch):
    right = TABLE[torch.nn.functional.layer_norm]

    def wrong(mode, func, args, kwargs):
        return scaled(right.handler(mode, func, args, kwargs), [1.1] * len(mode.plan.composites), mode.plan)

    monkeypatch.setitem(TABLE, torch.nn.functional.layer_norm, replace(right, handler=wrong))
    code, out, _ = closelook("verify", "demo/gpt2", *QUICK)
    assert code == 1
    assert "checks failed" in out


def test_an_unknown_method_is_one_line(closelook):
    code, _, err = closelook("verify", "demo/gpt2", "--method", "atnlrp")
    assert (code, err.strip()) == (2, "error: unknown method 'atnlrp' (did you mean 'attnlrp'?)")


def test_models_in_memory_are_verified_without_a_tokenizer_and_left_as_they_were():
    model = AutoModelForCausalLM.from_pretrained(model_dir("gpt2")).train()
    verification = closelook.verify(model, method="lrp")
    assert verification.passed
    assert model.training
    assert all(parameter.requires_grad for parameter in model.parameters())
    frame = verification.to_frame()
    assert list(frame["check"]) == [finding.check for finding in verification.findings]
    assert SUMS in verification._repr_html_()
    assert repr(closelook.verify(tiny_model("bert"), method=["lrp"])) == (
        "<Verification of BertForMaskedLM, float64 on cpu: 4 passed>"
    )


@pytest.mark.parametrize("setting", [{"dtype": "float32"}, {"device": "cuda"}, {"adapter": "lora"}])
def test_a_model_in_memory_is_verified_only_as_it_is(setting):
    with pytest.raises(closelook.UserError, match=f"leave `{next(iter(setting))}` out"):
        closelook.verify(tiny_model("gpt2"), method="lrp", **setting)
