"""Rules live inside one call and leave the model as it was."""

import copy

import pytest
import torch

from closelook.lrp_core import METHODS, Batch, Request, UserError, attribute
from closelook.lrp_core.methods.gradients import READINGS, explain_many
from closelook.lrp_core.rules import ATTNLRP
from tests.ruled import embeddings, rules
from tests.tiny import ragged_rows, tiny_model

REQUESTS = [
    Request(name, explanation, embedding)
    for name in READINGS
    for explanation in ("contrastive", "target")
    for embedding in METHODS[name].embeddings
]


def stock_logits(view, batch):
    return view.model(input_ids=batch.input_ids, attention_mask=batch.attention_mask).logits


@pytest.mark.thinned(2)
@pytest.mark.parametrize("attn", ["sdpa", "eager"])
def test_model_is_bit_identical_after_every_method(family, attn):
    view = tiny_model(family, dtype="float32", attn=attn)
    batch = Batch.collate(ragged_rows(view), 0)
    before, state = stock_logits(view, batch), copy.deepcopy(vars(view.config))
    for method in METHODS:
        attribute(method, view, batch)
        assert torch.equal(stock_logits(view, batch), before)
    assert vars(view.config) == state
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in view.model.modules())


def test_model_is_restored_after_an_error_inside_a_pass(view, batch):
    before = stock_logits(view, batch)

    def fails(*_):
        raise RuntimeError("boom")

    with view.blocks[1].module.register_forward_hook(fails), pytest.raises(RuntimeError, match="boom"):
        explain_many(view, batch, REQUESTS, heads=True, checkpoint=True)
    assert torch.equal(stock_logits(view, batch), before)


def test_logits_under_rules_are_those_of_the_stock_model(family):
    view = tiny_model(family, dtype="float32")
    batch = Batch.collate(ragged_rows(view), 0)
    before = stock_logits(view, batch)
    with rules(ATTNLRP, ids=batch.input_ids):
        assert torch.equal(stock_logits(view, batch), before)


@pytest.mark.thinned(3)
def test_methods_can_be_switched_in_any_order(view, batch):
    first = {name: attribute(name, view, batch).tokens for name in METHODS}
    for name in reversed(list(METHODS)):
        assert torch.equal(attribute(name, view, batch).tokens, first[name])


@pytest.mark.thinned(3)
def test_one_forward_serves_every_method_and_explanation(view, batch):
    forwards = []
    hook = view.blocks[0].module.register_forward_hook(lambda *_: forwards.append(1))
    together = explain_many(view, batch, REQUESTS, heads=True)
    hook.remove()
    assert len(forwards) == 1
    assert set(together) == set(REQUESTS)
    for request in REQUESTS:
        alone = explain_many(view, batch, [request], heads=True)[request]
        torch.testing.assert_close(together[request].tokens, alone.tokens, rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(together[request].heads, alone.heads, rtol=1e-10, atol=1e-12)


def test_checkpointing_gives_the_same_numbers(view, batch):
    kept = explain_many(view, batch, REQUESTS, heads=True)
    again = explain_many(view, batch, REQUESTS, heads=True, checkpoint=True)
    for request in REQUESTS:
        assert torch.equal(kept[request].tokens, again[request].tokens)
        assert torch.equal(kept[request].heads, again[request].heads)


def test_eager_and_sdpa_agree(family):
    views = [tiny_model(family, dtype="float32", attn=attn) for attn in ("eager", "sdpa")]
    batch = Batch.collate(ragged_rows(views[0]), 0)
    eager, sdpa = (explain_many(view, batch, REQUESTS) for view in views)
    for request in REQUESTS:
        torch.testing.assert_close(eager[request].tokens, sdpa[request].tokens, rtol=1e-4, atol=1e-5)


def test_unknown_attention_implementation_is_a_one_line_error(view, batch):
    view.config._attn_implementation = "paged|eager"
    with pytest.raises(UserError, match=r"attention implementation 'paged\|eager' is not supported"):
        attribute("attnlrp", view, batch, heads=True)


def test_plain_gradient_equals_the_stock_model(family):
    view = tiny_model(family, dtype="float32")
    batch = Batch.collate(ragged_rows(view), 0)
    embedded = view.token_embedding(batch.input_ids).requires_grad_()
    logits = view.model(inputs_embeds=embedded, attention_mask=batch.attention_mask).logits
    logits = logits[torch.arange(len(batch)), batch.position]
    contrast = logits.gather(1, batch.target_ids[:, None]) - logits.gather(1, batch.foil_ids[:, None])
    (gradient,) = torch.autograd.grad(contrast.sum(), embedded)
    _, full = embeddings(view, batch)
    relevance = attribute("gradient_x_input", view, batch).tokens
    torch.testing.assert_close(relevance, (gradient * full).sum(-1) * batch.attention_mask, rtol=1e-4, atol=1e-5)
