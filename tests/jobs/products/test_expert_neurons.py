"""Neurons of a mixture of experts, LAYER.EXPERT.NEURON: asked for in the terminal, and in a run from end to end."""

import json

import pytest
import torch

from closelook.evaluation.schema import ACTIVATIONS, KNOCKOUTS, NEURONS
from closelook.jobs.plan.cells import make_plan
from closelook.jobs.plan.node import Run
from closelook.jobs.products.neurons import contexts
from closelook.jobs.products.neurons.knockouts import knockouts_of
from closelook.jobs.stages.report import report
from closelook.jobs.store import Ledger
from closelook.lrp_core import Batch, load_model
from closelook.lrp_core.neurons.logit_lens import writing
from tests.jobs.small import config_of, prepared, rows_of, save_model
from tests.leaves import first_leaf
from tests.stages import attribute, neurons

SENTENCE = ("w5 w7 w9 w20 w41", "--target", "w10", "--foil", "w11")
COUNTS = [1, 5]


@pytest.fixture(scope="module")
def routed(tmp_path_factory):
    return save_model(tmp_path_factory.mktemp("models") / "mixtral", "mixtral")


def test_neurons_of_experts_are_shown_and_changed_by_their_names(closelook, routed, tmp_path):
    file = tmp_path / "neurons.json"
    asked = ("neurons", "--model", str(routed), *SENTENCE, "--dtype", "float64", "--json", str(file))
    assert closelook(*asked, "--top", "12")[0] == 0
    entries = json.loads(file.read_text())["neurons"]
    view = load_model(str(routed), dtype="float64")
    for entry in entries:
        neuron = entry["neuron"]["layer"], entry["neuron"]["neuron"]
        assert entry["name"] == view.neuron_names.of(*neuron)
        assert entry["name"] == f"0.{neuron[1] // 12}.{neuron[1] % 12}"
        assert entry["entropy"] == pytest.approx(writing(view, *neuron, 4).entropy)
    name, number = entries[0]["name"], entries[0]["neuron"]["neuron"]
    code, out, _ = closelook(*asked, "--scale", f"{name}=-20")
    assert code == 0
    assert f"changed: {name} times -20" in out
    after = dict(json.loads(file.read_text())["after"]["predictions"])
    view.blocks[0].experts.all.down_proj[number // 12][:, number % 12] *= -20
    batch = Batch.collate([{"input_ids": [5, 7, 9, 20, 41], "position": 4, "target_id": 10}], 0)
    shares = view.all_logits(batch)[0, -1].softmax(0)
    assert after["w10"] == pytest.approx(float(shares[10]), abs=1e-12)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--set", "0.5=1"], "neurons of layer 0 are called 0.EXPERT.NEURON, not 0.5: its experts are 0 to 2"),
        (["--set", "0.9.1=1"], "there is no expert 9 in layer 0: its experts are 0 to 2"),
        (["--scale", "0.2.12=1"], "there is no neuron 12: the neurons of expert 2 in layer 0 are 0 to 11"),
        (["--set", "0.2.1=1", "--scale", "0.02.1=2"], "neuron 0.2.1 is changed twice"),
        (["--set", "0.2.1.3=1"], "as 2.17=0 (LAYER.EXPERT.NEURON=NUMBER in a mixture of experts), not '0.2.1.3=1'"),
    ],
)
def test_what_there_is_not_is_one_line(closelook, routed, arguments, message):
    code, _, err = closelook("neurons", "--model", str(routed), *SENTENCE, *arguments)
    assert (code, len(err.splitlines())) == (2, 1)
    assert message in err


def test_a_run_names_knocks_out_and_shows_neurons_of_experts(tmp_path, routed, inline):
    texts = tmp_path / "texts.txt"
    texts.write_text("".join(f"w{n} w{n + 1} w{n + 2}\n" for n in range(4, 28)))
    settings = {
        "tasks": {"sva": 3},
        "knockout": {"counts": COUNTS, "explanation": "target"},
        "corpus": {"source": "text", "path": str(texts), "top": 4},
    }
    config = config_of(tmp_path / "root", routed, methods=["attnlrp"], neurons=settings, report={"resamples": 50})
    store = prepared(config, rows_of(3))
    assert attribute(config, store).complete
    assert neurons(config, store).complete
    assert report(config, store).complete
    ledger, plan, view = Ledger(store), make_plan(config, store), load_model(routed)
    (cell,) = (planned.artifact for planned in plan.cells() if planned.artifact.product == "neurons")
    stored = ledger.read(cell, NEURONS).to_pylist()
    named = {}
    for row in stored:
        crossing = torch.tensor([row["boundaries"][1] - row["boundaries"][0]])
        kept = sum(row[f"kept_by_{reason}"][0] for reason in ("biases", "attention"))
        assert float(crossing) == pytest.approx(kept, abs=1e-5)
        for layer, number, name in zip(row["layer"], row["neuron"], row["name"], strict=True):
            assert name == f"{layer}.{number // 12}.{number % 12}"
            named[layer, number] = name
    shown = first_leaf(store.read_bytes("report/neurons.html").decode(), "neurons")
    assert {(entry["layer"], entry["neuron"]): entry["name"] for entry in shown} == named
    assert any(entry["contexts"] for entry in shown)
    rows = {row["sample_id"]: row for row in rows_of(3)}
    (ranked, *_) = knockouts_of(config, plan.models[0])
    for entry in ledger.read(ranked.artifact, KNOCKOUTS).to_pylist():
        (ranking,) = (r for r in stored if (r["sample_id"], r["explanation"]) == (entry["sample_id"], "target"))
        expected = [without(view, rows[entry["sample_id"]], ranking["neuron"][:count]) for count in entry["removed"]]
        assert entry["explained"] == pytest.approx(expected, abs=1e-5)
    (read,) = contexts.nodes(Run(config, plan, ledger))
    tokens = [row["tokens"] for row in store.read(read.artifact.folders[1], ACTIVATIONS).to_pylist()]
    assert sum(tokens) == 24 * 3 * 12, "each token is sent to one expert"


def without(view, row, numbers):
    """The target's logit of a model whose experts lack these neurons."""
    weights = view.blocks[0].experts.all.down_proj
    kept = weights.clone()
    for number in numbers:
        weights[number // 12][:, number % 12] = 0
    batch = Batch.collate([row], 0)
    logit = float(view.logits(batch)[0, 0])
    weights.copy_(kept)
    return logit
