"""A model that copies from one passage, by weights that are set by hand: methods name that passage, chance does not."""

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from closelook.evaluation.schema import SOURCES
from closelook.jobs.plan.cells import make_plan
from closelook.jobs.plan.node import Run
from closelook.jobs.products.answers import sources
from closelook.jobs.store import Ledger
from tests.copying import copying_model, copying_rows
from tests.jobs.answering import computed, run_of

METHODS = [
    "lrp",
    "attnlrp",
    "gradient_x_input",
    "attention_share",
    "contextcite",
    "leave_one_out",
    {"name": "shap_units", "method": "kernel_shap", "units": True},
    "random",
]
WAYS = ["remove", "cut", "zero"]
ROWS = copying_rows()


@pytest.fixture(scope="module")
def claims(tmp_path_factory):
    """Rows of sources by method."""
    folder = tmp_path_factory.mktemp("copying")
    model = copying_model(folder / "copies")
    changes = {"methods": METHODS, "ablations": {"fit": 64, "judge": 32, "shapley": 64, "ways": WAYS}}
    config = run_of(folder, model, ROWS, **changes)
    store = computed(config)
    run = Run(config, make_plan(config, store), Ledger(store))
    return {node.artifact.method: run.ledger.read(node.artifact, SOURCES).to_pylist() for node in sources.nodes(run)}


def test_the_model_says_what_follows_the_key_that_is_asked_for(tmp_path):
    path = copying_model(tmp_path / "copies")
    model, tokenizer = AutoModelForCausalLM.from_pretrained(path), AutoTokenizer.from_pretrained(path)
    for row in ROWS:
        ids = tokenizer(row["prompt"], return_tensors="pt")["input_ids"]
        generated = model.generate(ids, max_new_tokens=2, do_sample=False, pad_token_id=0)[0, ids.shape[1] :]
        assert tokenizer.decode(generated) == row["answer"]
        with torch.no_grad():
            assert model(ids).logits[0, -1].softmax(-1).max() > 0.9


@pytest.mark.thinned(3)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("method", [name if isinstance(name, str) else name["name"] for name in METHODS[:-1]])
def test_the_source_of_the_highest_relevance_is_the_passage_that_is_copied(claims, method, way):
    entries = [entry for entry in claims[method] if entry["way"] == way and entry["drop_l"]]
    assert len({entry["sample_id"] for entry in entries}) == len(ROWS)
    for entry in entries:
        assert entry["pg"] == 1.0, entry["explanation"]
        assert entry["drop_l"][0] > 2.0, "the answer is lost with its passage"
        if entry["lds_l"] is not None:
            assert entry["lds_l"] > 0.3


def test_random_relevance_names_it_by_chance_alone(claims):
    entries = claims["random"]
    assert all(entry["pg"] == pytest.approx(1 / len(entry["relevance"])) for entry in entries)
    drops = [entry["drop_l"][0] for entry in entries]
    assert max(drops) < 0.5 * min(entry["drop_l"][0] for entry in claims["leave_one_out"])
    tops = [int(np.argmax(entry["relevance"])) for entry in entries]
    assert len(set(tops)) > 1
