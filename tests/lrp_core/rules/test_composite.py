"""A composite fills slots: a rule in one of them changes the gradients of that kind of layer and of no other."""

from dataclasses import replace

import pytest
import torch
from transformers.pytorch_utils import Conv1D

from closelook.lrp_core import Batch
from closelook.lrp_core.methods.gradients import forward_pass
from closelook.lrp_core.rules import ATTNLRP, LRP, PLAIN, Composite, LinearRule, LinearRules, SoftmaxRule
from closelook.lrp_core.rules.records import LINEAR_GROUPS, TRUE_PRODUCT
from tests.oracles.rules import linear_epsilon
from tests.tiny import BOTH, IMAGES, MORE, TINY, picture_rows, ragged_rows, tiny_model

pytestmark = pytest.mark.numeric
BY_HAND = LinearRule("true gradient by hand", lambda dy, x, y, weight, bias: dy @ weight)
ZERO = LinearRule("nothing", lambda dy, x, y, weight, bias: torch.zeros_like(x))
CONSTANT = SoftmaxRule("constant", lambda ds, x, s, hidden: torch.zeros_like(x))
SOFTMAX_BY_HAND = SoftmaxRule("by hand", lambda ds, x, s, hidden: s * (ds - (ds * s).sum(-1, keepdim=True)))


def gradient(view, batch, *planned: Composite, checkpointing=False) -> torch.Tensor:
    """Of the first of the planned composites [B, T, D], with padding on the right."""
    forward = forward_pass(view, batch, batch, ["contrastive"], planned, view.stacks if checkpointing else ())
    roots = forward.gradients(forward.output["contrastive"], planned[0], keep=False)
    of_words = next(gradient for root, gradient in roots if root.words)
    return of_words * batch.attention_mask[..., None]


def same(result, expected):
    torch.testing.assert_close(result, expected, rtol=1e-9, atol=1e-12)


def everywhere(rule: LinearRule) -> LinearRules:
    return LinearRules(**dict.fromkeys(LINEAR_GROUPS, rule))


@pytest.mark.thinned(4)
@pytest.mark.parametrize("composite", [PLAIN, LRP, ATTNLRP], ids=lambda composite: composite.name)
@pytest.mark.parametrize("checkpointing", [False, True])
def test_every_linear_layer_is_offered_to_a_rule(view, batch, composite, checkpointing):
    by_hand = replace(composite, linear=everywhere(BY_HAND))
    expected = gradient(view, batch, composite)
    same(gradient(view, batch, by_hand, checkpointing=checkpointing), expected)
    same(gradient(view, batch, by_hand, PLAIN, LRP), expected)


@pytest.mark.thinned(4)
@pytest.mark.parametrize("family", sorted(TINY | MORE | BOTH | IMAGES))
def test_no_layer_that_multiplies_by_weights_is_left_out(family):
    view = tiny_model(family)
    rows = picture_rows(view) if family in IMAGES else ragged_rows(view)
    busy = []
    for module in view.model.modules():
        if isinstance(module, torch.nn.Linear | Conv1D) and module is not view.unembedding:
            module.register_forward_hook(lambda module, *_: busy.append(module))
    batch = Batch.collate(rows, pad_id=0)
    view.logits(batch)
    mixtures = [block.experts for block in view.blocks if block.experts is not None]  # refused by name
    routing = {part for experts in mixtures for part in (experts.router, experts.shared_gate)}
    layers = [layer.module for layer in view.linear_layers()]
    assert set(busy) - routing == set(layers)
    assert len(layers) == len(set(layers)), "a module that fuses layers comes once"


def test_a_composite_without_linear_rules_keeps_its_gradients_beside_one_that_has_them(view, batch):
    same(gradient(view, batch, ATTNLRP, replace(PLAIN, linear=everywhere(ZERO))), gradient(view, batch, ATTNLRP))


@pytest.mark.parametrize("group", LINEAR_GROUPS)
def test_a_rule_of_one_group_is_asked_for_the_layers_of_that_group(view, batch, group):
    asked = []

    def noted(dy, x, y, weight, bias):
        stock = x @ weight.mT if bias is None else x @ weight.mT + bias
        torch.testing.assert_close(stock, y, rtol=1e-9, atol=1e-9)
        asked.append(weight.shape)
        return dy @ weight

    relevance = gradient(view, batch, replace(ATTNLRP, linear=LinearRules(**{group: LinearRule("noted", noted)})))
    same(relevance, gradient(view, batch, ATTNLRP))
    shapes = [layer.parameters()[0].shape for layer in view.linear_layers() if layer.group == group]
    shapes += [view.unembedding.weight.shape] if group == "linear" else []
    assert sorted(asked) == sorted(shapes)
    assert bool(shapes) == (group != "convolution")


def test_the_epsilon_rule_in_the_linear_slot_is_the_rule_of_the_paper(view, batch):
    """Close Look C.2: gradient x input under the rule is the relevance that the explicit rule gives."""
    checked = []

    def epsilon(dy, x, y, weight, bias):
        if not checked and weight.dim() == 2:  # the oracle is slow: one token of one layer
            shift = torch.zeros(len(weight), dtype=x.dtype) if bias is None else bias
            at = int(dy.flatten(0, -2).abs().sum(-1).argmax())
            xi, dyi, yi = (tensor.flatten(0, -2)[at] for tensor in (x, dy, y))
            explicit = linear_epsilon(xi, weight, shift, dyi * yi, epsilon=0.0)
            torch.testing.assert_close(xi * (dyi @ weight), explicit, rtol=1e-6, atol=1e-9)
            assert explicit.any()
            checked.append(1)
        return dy @ weight

    gradient(view, batch, replace(LRP, linear=LinearRules(linear=LinearRule("epsilon", epsilon))))
    assert checked


@pytest.mark.parametrize("side", ["left", "right"])
def test_the_true_gradient_in_the_softmax_slot_is_that_of_the_kernel(view, side):
    batch = Batch.collate(ragged_rows(view), 0, side)
    by_hand = replace(ATTNLRP, softmax=SOFTMAX_BY_HAND)
    expected = gradient(view, batch, ATTNLRP)
    same(gradient(view, batch, by_hand), expected)
    same(gradient(view, batch, ATTNLRP, replace(PLAIN, softmax=CONSTANT)), expected)


@pytest.mark.parametrize("family", ["bert", "gpt2"])
def test_a_constant_softmax_is_signal_take_all_where_nothing_else_is_gated(view, batch):
    """CP-LRP (Ali et al. 2022), said in either slot."""
    constant = replace(LRP, bilinear=TRUE_PRODUCT, softmax=CONSTANT)
    same(gradient(view, batch, constant), gradient(view, batch, LRP))


def test_a_softmax_rule_learns_what_is_masked():
    view = tiny_model("gpt2")
    batch = Batch.collate(ragged_rows(view), 0)
    seen = []

    def note(ds, x, s, hidden):
        seen.append((x.masked_select(hidden), hidden))
        return torch.zeros_like(x)

    gradient(view, batch, replace(ATTNLRP, softmax=SoftmaxRule("note", note)))
    for scores, hidden in seen:
        assert not scores.any()
        later = torch.ones(hidden.shape[-2:]).triu(1).bool()
        padding = (batch.attention_mask == 0)[:, None, None, :]
        assert torch.equal(hidden.expand(len(batch), -1, -1, -1)[:, :1], (later | padding))
