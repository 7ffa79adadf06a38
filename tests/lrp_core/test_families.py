"""Families beyond the three of Close Look are data: the same claims hold for them without a line of code."""

import pytest
import torch
from transformers import AutoConfig

from lrp_core import Batch, Request, UnsupportedModel, attribute, random_model
from lrp_core.explicit import explain_many as explain_explicitly
from lrp_core.families import FAMILIES, family_of
from tests.tiny import MORE, TINY, ragged_rows, tiny_config, tiny_model


def test_every_registered_family_is_tested():
    assert set(FAMILIES) == set(TINY) | set(MORE)


@pytest.fixture(params=sorted(MORE))
def family(request):
    """In place of the three families of the other tests."""
    return request.param


@pytest.mark.parametrize("side", ["left", "right"])
def test_padded_batch_equals_the_stock_model_on_single_samples(view, side):
    rows = ragged_rows(view)
    batch = Batch.collate(rows, 0, side)
    for i, row in enumerate(rows):
        stock = view.model(input_ids=torch.tensor([row["input_ids"]])).logits[0, row["position"]]
        found = attribute("attnlrp", view, batch)
        torch.testing.assert_close(found.logit_target[i], stock[row["target_id"]], rtol=1e-5, atol=1e-5)
        alone = attribute("attnlrp", view, Batch.collate([row], 0)).tokens[0]
        length = len(row["input_ids"])
        kept = found.tokens[i, -length:] if side == "left" else found.tokens[i, :length]
        torch.testing.assert_close(kept, alone, rtol=1e-6, atol=1e-8)


def test_lrp_conserves_logit_when_biases_are_zero(view, batch):
    for name, parameter in view.model.named_parameters():
        if name.endswith("bias"):
            parameter.zero_()
    residual = attribute("lrp", view, batch).residual
    torch.testing.assert_close(residual, torch.zeros_like(residual), atol=1e-10, rtol=0)


@pytest.mark.parametrize("embedding", ["full", "partial"])
def test_explicit_attnlrp_agrees_with_modified_gradients(view, batch, embedding):
    request = Request("attnlrp_explicit", "contrastive", embedding)
    explicit = explain_explicitly(view, batch, [request], heads=True, epsilon=1e-12)[request]
    modified = attribute("attnlrp", view, batch, embedding=embedding, heads=True)
    torch.testing.assert_close(explicit.tokens, modified.tokens, rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(explicit.heads, modified.heads, rtol=1e-6, atol=1e-9)


def test_model_is_bit_identical_afterwards(family):
    view = tiny_model(family, dtype="float32")
    batch = Batch.collate(ragged_rows(view), 0)
    before = view.model(input_ids=batch.input_ids).logits
    for method in ("gradient_x_input", "lrp", "attnlrp", "attnlrp_explicit", "attention_rollout"):
        attribute(method, view, batch, **({"checkpoint": True} if method == "lrp" else {}))
        assert torch.equal(view.model(input_ids=batch.input_ids).logits, before)


def test_value_weights_reproduce_the_values(view, batch):
    seen = {}
    block = view.blocks[0]
    hook = block.value.register_forward_hook(lambda _, args, y: seen.update(x=args[0], y=y))
    view.hidden(batch)
    hook.remove()
    weight, bias = block.value_weights()
    values = torch.einsum("gkd,btd->btgk", weight, seen["x"]) + (0 if bias is None else bias)
    shape = (view.n_heads, 3, view.head_dim) if view.family.qkv == "per_head" else (-1, view.head_dim)
    stock = seen["y"].unflatten(-1, shape)
    torch.testing.assert_close(values, stock[..., 2, :] if view.family.qkv == "per_head" else stock)


def test_unknown_family_lists_the_supported_ones():
    with pytest.raises(UnsupportedModel, match=r"no family describes 't5' models; supported: bert, .*gemma"):
        family_of(AutoConfig.for_model("t5"))


def test_unsupported_variant_says_which_field():
    with pytest.raises(UnsupportedModel, match="do_layer_norm_before=True only"):
        family_of(tiny_config("opt", do_layer_norm_before=False))


def test_unknown_activation_lists_the_supported_ones():
    view = random_model(tiny_config("bert", hidden_act="mish"))
    with pytest.raises(UnsupportedModel, match="no rule for the activation 'mish'"):
        attribute("lrp", view, Batch.collate(ragged_rows(view), 0))
