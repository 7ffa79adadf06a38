"""The best contexts of a neuron are those of a pass over everything, and their explanation sums to the activation."""

import pytest
import torch

from lrp_core import Batch, UnsupportedMethod, UserError
from lrp_core.contexts import best_contexts, explain_context, explain_contexts
from tests.lrp_core.test_conservation import without_biases
from tests.tiny import ragged_rows


def texts_of(view, count=23):
    return [row["input_ids"] for row in ragged_rows(view, lengths=[3 + i % 9 for i in range(count)], seed=3)]


def activation(view, ids, layer, neuron):
    seen = []
    hook = view.blocks[layer].down.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    view.hidden(Batch.collate([{"input_ids": ids, "position": 0, "target_id": 0}], 0))
    hook.remove()
    return seen[0][0, :, neuron]


def test_best_contexts_equal_a_pass_over_all_texts(view):
    texts = texts_of(view)
    texts.append(list(texts[4]))  # of equal texts the earlier comes first
    every = [activation(view, ids, 1, 6) for ids in texts]
    order = sorted(range(len(texts)), key=lambda i: (-round(float(every[i].max()), 9), i))[:7]
    for rows in (1, 5, 64):
        result = best_contexts(view, iter(texts), 1, 6, 7, rows)
        assert [one.number for one in result] == order
        for one in result:
            assert one.value == pytest.approx(float(every[one.number].max()), abs=1e-9)
            assert one.position == int(every[one.number].argmax())
            assert list(one.ids) == texts[one.number]


def test_what_explains_an_activation_sums_to_it_under_lrp(view):
    view = without_biases(view)
    for context in best_contexts(view, texts_of(view), 1, 6, 3):
        if view.embedding_norm is None:
            relevance = explain_context(view, context, 1, 6, "lrp")
            assert sum(relevance) == pytest.approx(context.value, rel=1e-6)  # RMSNorm rounds to float32
        if view.kind.causal:
            assert not any(explain_context(view, context, 1, 6)[context.position + 1 :])


def test_contexts_that_are_explained_together_are_as_each_alone(view):
    texts = texts_of(view)
    neurons = [(0, 3), (1, 6), (1, 0)]
    asked = [(one, *neuron) for neuron in neurons for one in best_contexts(view, texts, *neuron, 3)]
    assert len({len(one.ids) for one, _, _ in asked}) > 1
    for method in ("attnlrp", "gradient_l2"):
        for (one, *neuron), relevance in zip(asked, explain_contexts(view, asked, method), strict=True):
            assert relevance == pytest.approx(explain_context(view, one, *neuron, method), rel=1e-6, abs=1e-9)


def test_the_plain_gradient_is_that_of_the_activation(view):
    (context,) = best_contexts(view, texts_of(view), 1, 6, 1)
    relevance = explain_context(view, context, 1, 6, "gradient_x_input")
    batch = Batch.collate([{"input_ids": list(context.ids), "position": 0, "target_id": 0}], 0)
    token, full = view.embed(batch)
    token = token.detach().requires_grad_()
    seen = []
    hook = view.blocks[1].down.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    view.hidden(batch, token)
    hook.remove()
    (gradient,) = torch.autograd.grad(seen[0][0, context.position, 6], token)
    assert relevance == pytest.approx((gradient * full).sum(-1)[0].tolist(), rel=1e-4, abs=1e-6)


def test_what_does_not_exist_is_named(view):
    with pytest.raises(UserError, match="there is no layer 5: the model's layers are 0 to 1"):
        best_contexts(view, [], 5, 0, 1)
    (context,) = best_contexts(view, texts_of(view), 0, 0, 1)
    with pytest.raises(UnsupportedMethod, match="'random' is no gradient method"):
        explain_context(view, context, 0, 0, "random")
