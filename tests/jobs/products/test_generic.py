"""`family: generic` in a run: what needs no description is computed, the rest is named."""

import pytest
import torch

from closelook.jobs.config import RunConfig
from closelook.jobs.config.file import ConfigError
from closelook.jobs.plan.cells import make_plan, validate
from closelook.lrp_core import METHODS, Batch, load_model
from tests.jobs.small import config_of, prepared, relevance_of, rows_of, save_model
from tests.stages import attribute


def test_an_undescribed_model_runs_as_family_generic_with_the_methods_that_apply(tmp_path, inline):
    directory = save_model(tmp_path / "bloom", "bloom")
    settings = config_of(tmp_path / "root", directory, methods=["attnlrp", "gradient_x_input", "occlusion"])
    plain = settings.model_dump(mode="json")
    with pytest.raises(ConfigError, match=r"'models.bloom.id': no family describes 'bloom' models.* with `family: gen"):
        validate(RunConfig.load(plain))
    (model,) = plain["models"]
    config = RunConfig.load(plain | {"models": [model | {"family": "generic"}]})
    validate(config)
    rows = rows_of(5)
    store = prepared(config, rows)
    plan = make_plan(config, store)
    assert plan.undefined == (("bloom", "attnlrp"),)
    assert {request.embedding for cell in plan.cells() for request in cell.requests} == {"partial", "none"}
    assert attribute(config, store).complete
    view = load_model(directory, family="generic")
    for cell, table in relevance_of(config, store).items():
        name = "occlusion" if "occlusion" in cell else "gradient_x_input"
        for row in table.to_pylist():
            (sample,) = (sample for sample in rows if sample["sample_id"] == row["sample_id"])
            relevance = METHODS[name](view, Batch.collate([sample], 0), explanation=row["explanation"])
            torch.testing.assert_close(torch.tensor(row["relevance"]), relevance.tokens[0], rtol=1e-4, atol=1e-6)


def test_one_sentence_to_an_undescribed_model(tmp_path, closelook):
    directory = save_model(tmp_path / "bloom", "bloom")
    asked = ("explain", "-m", str(directory), "w5 w6 w7", "--target", "w8", "--foil", "w9", "--method", "occlusion")
    code, _, err = closelook(*asked)
    assert (code, "with `family: generic` the methods that need no description may apply" in err) == (2, True)
    code, out, _ = closelook(*asked, "--family", "generic")
    assert (code, "occlusion" in out) == (0, True)
    assert closelook(*asked, "--family", "bert")[::2] == (
        2,
        "error: --family must be 'generic' or left out, not 'bert'\n",
    )


def test_the_list_of_models_says_what_the_generic_family_is_explained_by(closelook):
    code, out, _ = closelook("models")
    assert code == 0
    line = next(line for line in out.splitlines() if line.startswith("family: generic"))
    assert line.endswith(
        "gradient_l1, gradient_l2, gradient_x_input, integrated_gradients, smoothgrad, occlusion, kernel_shap, random, "
        "contextcite, leave_one_out"
    )
