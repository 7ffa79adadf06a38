"""`family: generic` in a run: what needs no description is computed, the rest is named."""

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from closelook import explain, open_model
from closelook.jobs.plan.cells import make_plan, validate
from closelook.lrp_core import METHODS, Batch, UnsupportedMethod, load_model
from tests.jobs.small import config_of, prepared, relevance_of, rows_of, save_model
from tests.stages import attribute


def test_an_undescribed_model_runs_with_the_methods_that_apply(tmp_path, inline):
    directory = save_model(tmp_path / "bloom", "bloom")
    config = config_of(tmp_path / "root", directory, methods=["alti", "attnlrp", "gradient_x_input", "occlusion"])
    validate(config)
    rows = rows_of(5)
    store = prepared(config, rows)
    plan = make_plan(config, store)
    assert plan.undefined == (("bloom", "alti"),)
    assert {request.embedding for cell in plan.cells() for request in cell.requests} == {"partial", "none"}
    assert attribute(config, store).complete
    view = load_model(directory)
    for cell, table in relevance_of(config, store).items():
        (name,) = (name for name in ("attnlrp", "gradient_x_input", "occlusion") if name in cell)
        for row in table.to_pylist():
            (sample,) = (sample for sample in rows if sample["sample_id"] == row["sample_id"])
            relevance = METHODS[name](view, Batch.collate([sample], 0), explanation=row["explanation"])
            torch.testing.assert_close(torch.tensor(row["relevance"]), relevance.tokens[0], rtol=1e-4, atol=1e-6)


def test_one_sentence_to_an_undescribed_model(tmp_path, closelook):
    directory = save_model(tmp_path / "bloom", "bloom")
    asked = ("explain", "-m", str(directory), "w5 w6 w7", "--target", "w8", "--foil", "w9", "--method")
    code, out, _ = closelook(*asked, "attnlrp")
    assert (code, "attnlrp" in out) == (0, True)
    code, _, err = closelook(*asked, "alti")
    assert (code, "alti needs attention weights that can be read" in err) == (2, True)
    asked += ("occlusion",)
    code, out, _ = closelook(*asked, "--family", "generic")
    assert (code, "occlusion" in out) == (0, True)
    assert closelook(*asked, "--family", "bert")[::2] == (
        2,
        "error: --family must be 'generic' or left out, not 'bert'\n",
    )


def test_one_line_explains_a_model_in_memory_that_no_family_describes(tmp_path):
    directory = save_model(tmp_path / "bloom", "bloom")
    model = AutoModelForCausalLM.from_pretrained(directory)
    tokenizer = AutoTokenizer.from_pretrained(directory)
    opened = open_model(model, tokenizer=tokenizer)
    one = explain("w5 w6 w7", model=opened, method="attnlrp", target="w8")
    other = explain("w5 w6 w7", model=directory, method="attnlrp", target="w8")
    torch.testing.assert_close(one.relevance("attnlrp")[0].tokens, other.relevance("attnlrp")[0].tokens)
    with pytest.raises(UnsupportedMethod, match="decompx needs"):
        explain("w5 w6 w7", model=opened, method="decompx", target="w8")


def test_the_list_of_models_says_what_the_generic_family_is_explained_by(closelook):
    code, out, _ = closelook("models")
    assert code == 0
    line = next(line for line in out.splitlines() if line.startswith("family: generic"))
    assert line.endswith(
        "gradient_l1, gradient_l2, gradient_x_input, lrp, attnlrp, lrp_identity_softmax, lrp_distributed_bias, "
        "integrated_gradients, smoothgrad, occlusion, kernel_shap, random, "
        "contextcite, leave_one_out"
    )
