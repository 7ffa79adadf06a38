"""The logit lens of neurons and the tokens that activate them, compared with the model itself."""

import pytest
import torch

from closelook.lrp_core import UserError, attribute
from closelook.lrp_core.interventions.neurons import neurons_set
from closelook.lrp_core.neurons.logit_lens import keys_of, nearest_tokens, top_neurons, writing, writings_of
from tests.tiny import tiny_model


def test_top_neurons_are_the_largest_and_know_their_place(view, batch):
    relevance = attribute("attnlrp", view, batch, neurons=True)
    for sample, top in enumerate(top_neurons(relevance, 5)):
        every = sorted(
            (
                (float(relevance.neurons[sample, i, n]), i, n)
                for i in range(view.n_layers)
                for n in range(view.n_neurons)
            ),
            key=lambda entry: (-entry[0], entry[1:]),
        )
        assert [(neuron.relevance, neuron.layer, neuron.neuron) for neuron in top] == every[:5]
    largest = top_neurons(relevance, 1, absolute=True)[0][0]
    assert abs(largest.relevance) == float(relevance.neurons[0].abs().max())
    with pytest.raises(UserError, match="call the method with neurons=True"):
        top_neurons(attribute("attnlrp", view, batch), 5)


def test_a_neuron_writes_what_one_unit_of_it_adds_to_the_stream(view, batch):
    layer, neuron = view.n_layers - 1, 7
    outputs = []
    hook = view.blocks[layer].down.register_forward_hook(lambda _, args, y: outputs.append(y))
    for value in (1.0, 0.0):
        with neurons_set(view, [{(layer, neuron): value}] * len(batch)):
            view.all_logits(batch)
    hook.remove()
    vector = (outputs[0] - outputs[1])[0, 0]  # what one unit adds to what the layer puts out
    expected = view.unembedding.weight @ vector
    result = writing(view, layer, neuron, 4)
    for descending, listed in ((True, result.promoted), (False, result.suppressed)):
        tokens, logits = zip(*listed, strict=True)
        assert len(set(tokens)) == 4
        assert expected[list(tokens)].tolist() == pytest.approx(logits)
        assert logits == pytest.approx(expected.sort(descending=descending).values[:4].tolist())
    shares = expected.softmax(0)
    assert result.entropy == pytest.approx(float(-(shares * shares.log()).sum()))


def test_what_a_neuron_writes_does_not_depend_on_which_others_are_asked():
    """Words come in pairs whose vectors differ by rounding."""
    view = tiny_model("gpt2", dtype="float32")
    weight = view.unembedding.weight
    weight[1::2] = weight[::2] * (
        1 + 1e-7 * torch.randn(len(weight) // 2, 1, generator=torch.Generator().manual_seed(0))
    )
    neurons = range(view.neuron_names.count(1))
    together = zip(neurons, writings_of(view, 1, neurons, 6), keys_of(view, 1, neurons, 6), strict=True)
    for neuron, written, keys in together:
        alone = writing(view, 1, neuron, 6)
        assert (written.promoted, written.suppressed) == (alone.promoted, alone.suppressed)
        assert keys == nearest_tokens(view, 1, neuron, 6)


def test_the_final_norm_is_folded_in_where_there_is_one(view):
    if view.final_norm is None:
        with pytest.raises(UserError, match="no final norm, which `normed` applies: leave out `normed`"):
            writing(view, 0, 0, 1, normed=True)
        return
    weight = view.final_norm.module.weight
    before = writing(view, 1, 3, 1, normed=True).promoted[0][1]
    weight.mul_(2)
    assert writing(view, 1, 3, 1, normed=True).promoted[0][1] == pytest.approx(2 * before)


def test_a_key_is_nearest_to_the_embedding_that_is_made_alike(view):
    """The weight of the norm is part of the key, and length plays no part."""
    block, neuron = view.blocks[0], 5
    module = block.up if block.gate is None else block.gate
    norm = block.mlp_norm if view.family.norm_order == "pre" else block.attention_norm
    row = module.weight[:, neuron] if view.family.transposed else module.weight[neuron]
    view.token_embedding.weight[11] = 3 * row * norm.module.weight
    token, cosine = nearest_tokens(view, 0, neuron, 2)[0]
    assert token == 11
    assert cosine == pytest.approx(1)
    assert nearest_tokens(view, 0, neuron, 2)[1][1] < 1
