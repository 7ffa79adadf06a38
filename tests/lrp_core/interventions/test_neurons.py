"""Neurons are set and scaled row by row, at the positions asked for, and come back when the scope ends."""

import pytest
import torch

from closelook.lrp_core import Batch, UnsupportedMethod, UserError
from closelook.lrp_core.interventions.heads import HeadsLeft, heads_removed
from closelook.lrp_core.interventions.neurons import neurons_scaled, neurons_set
from closelook.lrp_core.opening.model import view_of
from tests.tiny import ragged_rows, tiny_model

pytestmark = pytest.mark.numeric


def edited(view, layer, neuron, change):
    """The model with the neuron's row of the down projection changed: what the intervention does, done to weights."""
    other = tiny_model(view.config.model_type)
    weight = other.blocks[layer].down.weight
    if view.family.transposed:
        weight[neuron] = change(weight[neuron])
    else:
        weight[:, neuron] = change(weight[:, neuron])
    return other


def test_a_scaled_neuron_is_its_value_vector_scaled(view, batch):
    expected = edited(view, 1, 3, lambda vector: vector * -2).all_logits(batch)
    with neurons_scaled(view, [{(1, 3): -2.0}] * len(batch)):
        logits = view.all_logits(batch)
    torch.testing.assert_close(logits, expected, rtol=1e-9, atol=1e-10)


def test_a_neuron_set_adds_so_much_of_its_value_vector(view, batch):
    silent = edited(view, 0, 2, torch.zeros_like)
    weight = view.blocks[0].down.weight
    vector = weight[2] if view.family.transposed else weight[:, 2]
    bias = silent.blocks[0].down.bias
    if bias is None:
        silent.blocks[0].down.register_forward_hook(lambda _, args, y: y + 1.5 * vector)
    else:
        bias += 1.5 * vector
    with neurons_set(view, [{(0, 2): 1.5}] * len(batch)):
        logits = view.all_logits(batch)
    torch.testing.assert_close(logits, silent.all_logits(batch), rtol=1e-9, atol=1e-10)


def test_rows_and_positions_that_are_not_named_keep_their_numbers(view, batch):
    inputs = {"input_ids": batch.input_ids, "attention_mask": batch.attention_mask}
    plain = view.model(**inputs).logits
    where = torch.zeros_like(batch.attention_mask, dtype=torch.bool)
    where[0, 3] = True
    with neurons_set(view, [{(0, 0): 4.0, (1, 7): -4.0}, {}, {}], where):
        logits = view.model(**inputs).logits
    assert torch.equal(logits[1:], plain[1:])
    assert not torch.equal(logits[0, 3], plain[0, 3])
    if view.kind.causal:
        torch.testing.assert_close(logits[0, :3], plain[0, :3], rtol=1e-12, atol=1e-12)


def test_neurons_and_heads_combine_and_the_model_is_whole_again(view, batch):
    before = view.all_logits(batch)
    layers = [HeadsLeft(torch.arange(3), torch.zeros(3, view.n_heads, dtype=view.dtype))] * view.n_layers
    silence = [{(0, 1): 0.0}] * 3
    with neurons_scaled(view, silence), heads_removed(view, layers):
        scaled = view.all_logits(batch)
    with heads_removed(view, layers), neurons_set(view, silence):
        zeroed = view.all_logits(batch)
    with heads_removed(view, layers):
        heads_alone = view.all_logits(batch)
    torch.testing.assert_close(scaled, zeroed, rtol=1e-12, atol=1e-12)
    assert not torch.equal(scaled, heads_alone)
    with pytest.raises(RuntimeError, match="boom"), neurons_set(view, silence):
        raise RuntimeError("boom")
    assert torch.equal(view.all_logits(batch), before)


def test_what_does_not_exist_is_named_with_the_range(view, batch):
    with (
        pytest.raises(UserError, match="there is no layer 2: the model's layers are 0 to 1"),
        neurons_set(view, [{(2, 0): 0.0}] * 3),
    ):
        pass
    with (
        pytest.raises(UserError, match=f"no neuron {view.n_neurons}: the model's neurons are 0 to"),
        neurons_scaled(view, [{(0, view.n_neurons): 0.0}] * 3),
    ):
        pass
    with (
        pytest.raises(UserError, match=r"a batch of the shape \[2\], and this one has \[3, 10\]"),
        neurons_set(view, [{(0, 0): 0.0}] * 2),
    ):
        view.all_logits(batch)
    generic = view_of(tiny_model("gpt2").model, family="generic")
    with (
        pytest.raises(UnsupportedMethod, match="feed-forward layers that are described"),
        neurons_set(generic, [{(0, 0): 0.0}]),
    ):
        pass


def test_generation_goes_on_changed(view):
    if view.kind.slot:
        pytest.skip("a masked model does not go on with a text")
    row = dict(ragged_rows(view)[0])
    generated, ids = [], list(row["input_ids"])
    with neurons_set(view, [{(1, n): 30.0 for n in range(8)}]):
        for _ in range(3):
            batch = Batch.collate([{**row, "input_ids": ids, "position": len(ids) - 1}], 0)
            generated.append(int(view.all_logits(batch)[0, -1].argmax()))
            ids = [*ids, generated[-1]]
    handle = view.blocks[1].down.register_forward_pre_hook(
        lambda _, args: (torch.cat([torch.full_like(args[0][..., :8], 30.0), args[0][..., 8:]], -1),)
    )
    prompt = torch.tensor([row["input_ids"]])
    settings = {"max_new_tokens": 3, "do_sample": False, "eos_token_id": [-1]}
    whole = view.model.generate(prompt, attention_mask=torch.ones_like(prompt), **settings)
    handle.remove()
    assert whole[0, -3:].tolist() == generated
