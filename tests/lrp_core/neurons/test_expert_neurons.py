"""Neurons of experts, LAYER.EXPERT.NEURON: against a loop over tokens and the experts that each is sent to."""

import math

import pytest
import torch

from closelook.lrp_core import Batch, UserError, attribute
from closelook.lrp_core.interventions.neurons import neurons_scaled, neurons_set
from closelook.lrp_core.neurons.activity import BOUNDARIES, Activity
from closelook.lrp_core.neurons.contexts import explain_contexts
from closelook.lrp_core.neurons.logit_lens import nearest_tokens, top_neurons, writing
from closelook.lrp_core.verification.stock import without_biases
from tests.contexts import best_contexts
from tests.lrp_core.neurons.test_contexts import texts_of
from tests.tiny import ragged_rows, tiny_model

pytestmark = pytest.mark.numeric
LAYER = 1  # of experts; the first layer of the tiny Qwen2-MoE is an MLP


@pytest.fixture(params=["mixtral", "qwen2_moe"])
def routed(request):
    return tiny_model(request.param)


def by_token(view, ids):
    """{expert: (weight, activations [F])} of every token of a text at LAYER, by the formulas."""
    seen = []
    mlp = view.blocks[LAYER].module.mlp
    hook = mlp.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    view.logits(Batch.collate([{"input_ids": list(ids), "position": 0, "target_id": 0}], 0))
    hook.remove()
    return [of_token(mlp, x) for x in seen[0][0]]


def of_token(mlp, x):
    probabilities = (mlp.gate.weight @ x).softmax(0)
    best = probabilities.topk(mlp.gate.top_k)
    kept = best.values.sum() if getattr(mlp.gate, "norm_topk_prob", True) else 1.0
    collected = {}
    for probability, expert in zip(best.values, best.indices.tolist(), strict=True):
        gate, up = mlp.experts.gate_up_proj[expert].chunk(2)
        collected[str(expert)] = (probability / kept, torch.nn.functional.silu(gate @ x) * (up @ x))
    shared = getattr(mlp, "shared_expert", None)
    if shared is not None:
        gate, up = shared.gate_proj.weight, shared.up_proj.weight
        weight = torch.sigmoid(mlp.shared_expert_gate.weight[0] @ x)
        collected["shared"] = (weight, torch.nn.functional.silu(gate @ x) * (up @ x))
    return collected


def down_of(view, title):
    mlp = view.blocks[LAYER].module.mlp
    return mlp.shared_expert.down_proj.weight if title == "shared" else mlp.experts.down_proj[int(title)]


def titles_of(view):
    return [part.title for part in view.blocks[LAYER].feed_forwards]


def test_names_and_numbers_tell_the_same(routed):
    names = routed.neuron_names
    width = 0
    for title in titles_of(routed):
        for neuron in range(down_of(routed, title).shape[1]):
            name = f"{LAYER}.{title}.{neuron}"
            assert names.neuron(name) == (LAYER, width)
            assert names.of(LAYER, width) == name
            assert names.is_name(name)
            width += 1
    assert names.count(LAYER) == routed.n_neurons == width
    for name in ("1", "1.", ".1", "a.1", "1.b.2", "1.2.3.4", "1.-1", "1.shared"):
        assert not names.is_name(name)


@pytest.mark.parametrize("value", [0.0, 2.5])
def test_a_neuron_of_an_expert_is_set_for_the_tokens_that_are_sent_to_it(routed, value):
    ids = texts_of(routed)[3]
    batch = Batch.collate([{"input_ids": ids, "position": 0, "target_id": 0}] * 2, 0)
    tokens = by_token(routed, ids)
    mlp, outputs = routed.blocks[LAYER].module.mlp, []
    for title in titles_of(routed):
        chosen = routed.neuron_names.neuron(f"{LAYER}.{title}.5")
        hook = mlp.register_forward_hook(lambda _, args, y: outputs.append(y))
        with neurons_set(routed, [{chosen: value}, {}]):
            routed.all_logits(batch)
        hook.remove()
        changed, plain = outputs.pop()
        for t, experts in enumerate(tokens):
            weight, activations = experts.get(title, (0.0, torch.zeros(6)))
            difference = weight * (value - activations[5]) * down_of(routed, title)[:, 5] if title in experts else 0
            torch.testing.assert_close(changed[t] - plain[t], difference + torch.zeros_like(plain[t]))


def test_a_neuron_scaled_is_its_column_scaled_and_the_model_is_whole_again(routed):
    batch = Batch.collate(ragged_rows(routed), 0)
    before, config = routed.all_logits(batch), routed.blocks[LAYER].experts.all.config
    chosen = routed.neuron_names.neuron(f"{LAYER}.2.7")
    with neurons_scaled(routed, [{chosen: -3.0}] * len(batch)), neurons_scaled(routed, [{chosen: 2.0}] * len(batch)):
        logits = routed.all_logits(batch)
    other = tiny_model(routed.config.model_type)
    other.blocks[LAYER].experts.all.down_proj[2][:, 7] *= -6
    torch.testing.assert_close(logits, other.all_logits(batch), rtol=1e-9, atol=1e-10)
    assert not torch.allclose(logits, before)
    assert routed.blocks[LAYER].experts.all.config is config
    assert torch.equal(routed.all_logits(batch), before)
    where = torch.zeros_like(batch.attention_mask, dtype=torch.bool)
    where[1, 0] = True
    with neurons_scaled(routed, [{}, {chosen: -3.0}, {}], where):
        some = routed.all_logits(batch)
    assert torch.equal(some[[0, 2]], before[[0, 2]])


def test_relevance_of_the_whole_model_is_finite_differences_of_its_neurons(routed):
    batch = Batch.collate(ragged_rows(routed)[:1], 0)
    relevance = attribute("gradient_x_input", routed, batch, neurons=True)
    step = 1e-4
    for title in titles_of(routed):
        layer, number = routed.neuron_names.neuron(f"{LAYER}.{title}.4")
        at, value = int(relevance.neuron_positions[0, layer, number]), float(relevance.neuron_values[0, layer, number])
        if at < 0:
            assert not any(title in experts for experts in by_token(routed, batch.input_ids[0].tolist()))
            continue
        total = 0.0
        for position, experts in enumerate(by_token(routed, batch.input_ids[0].tolist())):
            if title not in experts:
                continue
            activation = float(experts[title][1][4])
            assert position != at or activation == pytest.approx(value, rel=1e-5, abs=1e-6)
            where = torch.zeros_like(batch.attention_mask, dtype=torch.bool)
            where[0, position] = True
            contrasts = []
            for moved in (activation + step, activation - step):
                with neurons_set(routed, [{(layer, number): moved}], where):
                    target, foil = routed.logits(batch)[0]
                contrasts.append(float(target - foil))
            total += (contrasts[0] - contrasts[1]) / (2 * step) * activation
        assert float(relevance.neurons[0, layer, number]) == pytest.approx(total, rel=5e-3, abs=1e-5)


def test_neurons_of_experts_that_no_token_was_sent_to_are_not_ranked(routed):
    batch = Batch.collate(ragged_rows(routed, lengths=(2, 6)), 0)
    relevance = attribute("attnlrp", routed, batch, neurons=True)
    for row, top in enumerate(top_neurons(relevance, 10**6)):
        ids = batch.input_ids[row][batch.attention_mask[row].bool()].tolist()
        asked = {title for experts in by_token(routed, ids) for title in experts}
        names = {routed.neuron_names.of(neuron.layer, neuron.neuron) for neuron in top}
        assert len(names) == len(top)
        of_layer = {name.split(".")[1] for name in names if name.startswith(f"{LAYER}.")}
        assert of_layer == asked
        assert sum(neuron.relevance for neuron in top) == pytest.approx(float(relevance.neurons[row].sum()))


def test_padding_company_and_checkpointing_change_nothing(routed):
    batch = Batch.collate(ragged_rows(routed), 0)
    together = attribute("attnlrp", routed, batch, neurons=True, checkpoint=True)
    for row, sample in enumerate(ragged_rows(routed)):
        alone = attribute("attnlrp", routed, Batch.collate([sample], 0), neurons=True)
        for field in ("neurons", "neuron_positions", "neuron_values"):
            torch.testing.assert_close(getattr(together, field)[row], getattr(alone, field)[0], rtol=1e-8, atol=1e-10)


def test_kernels_of_experts_give_the_same_neurons_in_float32():
    view = tiny_model("qwen2_moe", dtype="float32")
    batch = Batch.collate(ragged_rows(view), 0)
    collected = {}
    for kernel in ("eager", "batched_mm", "grouped_mm"):
        view.model.set_experts_implementation(kernel)
        collected[kernel] = attribute("attnlrp", view, batch, neurons=True)
    for kernel in ("batched_mm", "grouped_mm"):
        torch.testing.assert_close(collected[kernel].neurons, collected["eager"].neurons, rtol=1e-3, atol=1e-4)
    assert torch.equal(collected["eager"].tokens, attribute("attnlrp", _eager(view), batch).tokens)


def _eager(view):
    view.model.set_experts_implementation("eager")
    return view


@pytest.mark.thinned(2)
def test_what_neurons_do_in_a_corpus_is_what_each_token_does(routed):
    texts = texts_of(routed, 7)
    activity = Activity(routed, 3)
    activity.add(texts[:4], range(4))
    activity.add(texts[4:], range(4, 7))
    of_layer = activity.layer(LAYER)
    known = [by_token(routed, ids) for ids in texts]
    for title in titles_of(routed):
        for neuron in (0, 6):
            _, number = routed.neuron_names.neuron(f"{LAYER}.{title}.{neuron}")
            every = [[float(t[title][1][neuron]) if title in t else None for t in tokens] for tokens in known]
            values = [value for text in every for value in text if value is not None]
            assert float(of_layer.total[number]) == pytest.approx(sum(values), abs=1e-9)
            assert int(of_layer.histogram[number].sum()) == len(values)
            above = sum(value >= BOUNDARIES[-1] for value in values)
            assert int(of_layer.histogram[number, -1]) == above
            reached = [[value for value in text if value is not None] for text in every]
            best = sorted(((max(text), at) for at, text in enumerate(reached) if text), key=lambda pair: -pair[0])[:3]
            kept = [float(v) for v in of_layer.values[number] if math.isfinite(v)]
            assert kept == pytest.approx([value for value, _ in best])
            named = of_layer.contexts[number, : len(kept)].tolist()
            assert [max(reached[at]) for at in named] == pytest.approx(kept)
            assert len(set(named)) == len(kept)
            positions = of_layer.positions[number].tolist()
            assert [every[at][position] for at, position in zip(named, positions, strict=False)] == pytest.approx(kept)


@pytest.mark.thinned(2)
def test_what_explains_an_experts_activation_sums_to_it_under_lrp(routed):
    for title in titles_of(routed):
        chosen = routed.neuron_names.neuron(f"{LAYER}.{title}.3")
        with without_biases(routed.model):
            for value, context in best_contexts(routed, texts_of(routed, 9), *chosen, 2):
                [relevance] = explain_contexts(routed, [context], "lrp")
                assert sum(relevance) == pytest.approx(value, rel=1e-5)
                assert not any(explain_contexts(routed, [context])[0][context.position + 1 :])


def test_a_neuron_of_an_expert_writes_its_column_and_answers_to_its_gate(routed):
    mlp = routed.blocks[LAYER].module.mlp
    for title in titles_of(routed):
        chosen = routed.neuron_names.neuron(f"{LAYER}.{title}.3")
        expected = routed.unembedding.weight @ down_of(routed, title)[:, 3]
        token, logit = writing(routed, *chosen, 2).promoted[0]
        assert float(expected[token]) == pytest.approx(logit) == pytest.approx(float(expected.max()))
        gates = mlp.shared_expert.gate_proj.weight if title == "shared" else mlp.experts.gate_up_proj[int(title)]
        row = gates[3] * mlp_norm(routed)
        cosines = torch.nn.functional.cosine_similarity(routed.token_embedding.weight, row[None])
        token, cosine = nearest_tokens(routed, *chosen, 1)[0]
        assert float(cosines[token]) == pytest.approx(cosine) == pytest.approx(float(cosines.max()))


def mlp_norm(view):
    return view.blocks[LAYER].mlp_norm.module.weight


def test_what_does_not_exist_is_named_with_the_range(routed):
    names = routed.neuron_names
    messages = {
        "9.0.0": "there is no layer 9: the model's layers are 0 to 1",
        f"{LAYER}.7.0": f"there is no expert 7 in layer {LAYER}: its experts are 0 to 3",
        f"{LAYER}.2.99": f"there is no neuron 99: the neurons of expert 2 in layer {LAYER} are 0 to",
        f"{LAYER}.5": f"neurons of layer {LAYER} are called {LAYER}.EXPERT.NEURON, not {LAYER}.5: its experts are 0",
    }
    if routed.blocks[0].experts is None:
        messages["0.1.2"] = "layer 0 has no experts: its neurons are called 0.NEURON, not 0.1.2"
        messages["0.24"] = "there is no neuron 24: the neurons of layer 0 are 0 to 23"
        assert names.neuron("0.23") == (0, 23)
    for name, message in messages.items():
        with pytest.raises(UserError, match=message):
            names.neuron(name)
