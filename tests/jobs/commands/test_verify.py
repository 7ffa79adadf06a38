"""`closelook verify`: a table and exit code, a file that the registry reads, and the registry that is shipped."""

import json
import re
import shlex
from dataclasses import replace

import pytest
import torch
from transformers import AutoModelForCausalLM

import closelook
from closelook.evaluation.benchmark.demo import EVERY, model_dir
from closelook.jobs.verification.registry import FOLDER, OURS, SHIPPED, Verified, known, read
from closelook.lrp_core.families import FAMILIES
from closelook.lrp_core.opening.loading import DTYPES
from closelook.lrp_core.operations.nodes import scaled
from closelook.lrp_core.operations.table import TABLE
from closelook.lrp_core.verification.run import SUMS
from tests.docs.test_blocks import PAGES, to_run
from tests.tiny import tiny_model
from tests.verified import WITH_LABELS

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


def test_the_shipped_registry_has_every_family_in_every_precision_and_every_demo_model_passed():
    lines = read(SHIPPED)
    tiny = {(f"tiny {family}", dtype) for family in FAMILIES for dtype in DTYPES if FAMILIES.owner(family) == OURS}
    labelled = {(f"tiny {family} with labels", "float32") for family in WITH_LABELS}
    demo = {(f"demo/{name}", "float32") for name in EVERY}
    assert {(line.model, line.dtype) for line in lines} == tiny | labelled | demo
    assert not [line for line in lines if line.failed or not line.passed or line.nearest > 1]


@pytest.mark.parametrize("name", ["gpt2", "t5"])
def test_a_line_of_the_registry_is_what_a_run_finds(name):
    [line] = [line for line in read(SHIPPED) if (line.model, line.dtype) == (f"tiny {name}", "float32")]
    fresh = Verified.of(
        closelook.verify(tiny_model(name, dtype="float32"), method=["lrp", "attnlrp", "attnlrp_explicit"])
    )
    assert (fresh.family, fresh.kind, fresh.device, fresh.failed) == (line.family, line.kind, line.device, "")
    assert (fresh.passed, fresh.inapplicable) == (line.passed, line.inapplicable)


def test_files_of_users_are_listed_beside_the_shipped_lines(closelook, tmp_path, monkeypatch):
    monkeypatch.setenv(FOLDER, str(tmp_path))
    closelook("verify", "demo/bert", "--method", "lrp", "--json", str(tmp_path / "mine.json"))
    by, line = list(known())[-1]
    assert (by, line.model, line.failed) == ("mine.json", "demo/bert", "")
    code, out, _ = closelook("models")
    assert code == 0
    assert f"float32 ({line.passed})" in out
    assert "mine.json" in out
    (tmp_path / "other.json").write_text("[]")
    code, _, err = closelook("models")
    assert code == 2
    assert re.search(r"did not write .*other\.json: move it out of", err)


def test_a_folder_of_users_that_is_not_there_is_one_line(closelook, tmp_path, monkeypatch):
    monkeypatch.setenv(FOLDER, str(tmp_path / "none"))
    code, _, err = closelook("models")
    assert (code, len(err.splitlines())) == (2, 1)
    assert "none, which is no folder: make it, or unset the variable" in err
