"""Mixtures of experts on a device of its own: what runs their experts waits as often with four layers as with two."""

import pytest

from closelook.jobs.methods import METHODS
from closelook.lrp_core.device import expert_rows
from closelook.lrp_core.interventions.neurons import neurons_scaled, neurons_set
from closelook.lrp_core.neurons.activity import Activity
from closelook.lrp_core.neurons.contexts import Context, explain_contexts
from tests.second_device.kinds import OF_RULES, batch_of, check, rows_of


@pytest.fixture(autouse=True, params=[2, 64], ids=["many tiles", "a tile for each expert"])
def _tiles(request, monkeypatch):
    monkeypatch.setattr(expert_rows, "_LEAST_ROWS", request.param)


def explicit(view, rows):
    return METHODS["attnlrp_explicit"](view, batch_of(view, rows))


def neurons(view, rows):
    return METHODS["attnlrp"](view, batch_of(view, rows), neurons=True)


def neurons_of_lrp(view, rows):
    return METHODS["lrp"](view, batch_of(view, rows), neurons=True)


def corpus(view, rows):
    activity = Activity(view, top=2)
    activity.add([row["input_ids"] for row in rows_of(view, rows)], range(rows))
    seen = [activity.layer(layer) for layer in range(view.n_layers)]
    return [[layer.values, layer.total, layer.histogram.sum(1), layer.not_finite] for layer in seen]


def contexts(view, rows):
    examples = [Context(row["input_ids"], len(row["input_ids"]) - 1, layer=1, neuron=6) for row in rows_of(view, rows)]
    return explain_contexts(view, examples)


def changed(change):
    def compute(view, rows):
        batch = batch_of(view, rows).to(view.device)
        values = {(layer, neuron): 2.0 for layer in range(view.n_layers) for neuron in (3, 20)}
        with change(view, [values] * rows):
            return view.logits(batch).detach()

    return compute


COMPUTED = {
    "explicit relevance": (explicit, 2 + OF_RULES),
    "relevance of neurons": (neurons, 2 + OF_RULES),
    "relevance of neurons by LRP": (neurons_of_lrp, 2 + OF_RULES),
    "activity in a corpus": (corpus, 0),
    "contexts of a neuron": (contexts, 1 + OF_RULES),
    "neurons that are set": (changed(neurons_set), 0),
    "neurons that are scaled": (changed(neurons_scaled), 0),
}


@pytest.mark.thinned(4)
@pytest.mark.parametrize("kind", ["mixtral", "qwen2_moe"])
@pytest.mark.parametrize(("compute", "most"), COMPUTED.values(), ids=COMPUTED)
def test_experts_are_waited_for_as_often_whatever_the_layers(kind, compute, most):
    check(kind, compute, most)
