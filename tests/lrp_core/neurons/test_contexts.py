"""The best contexts of a neuron are those of a pass over everything, and their explanation sums to the activation."""

import pytest
import torch

from closelook.lrp_core import Batch, UnsupportedMethod, UserError
from closelook.lrp_core.neurons.contexts import Context, explain_contexts
from closelook.lrp_core.verification.stock import without_biases
from tests.contexts import best_contexts
from tests.ruled import embeddings
from tests.tiny import ragged_rows


def texts_of(view, count=23):
    return [row["input_ids"] for row in ragged_rows(view, lengths=[3 + i % 9 for i in range(count)], seed=3)]


def test_what_explains_an_activation_sums_to_it_under_lrp(view):
    with without_biases(view.model):
        for value, context in best_contexts(view, texts_of(view), 1, 6, 3):
            if view.embedding_norm is None:
                [relevance] = explain_contexts(view, [context], "lrp")
                assert sum(relevance) == pytest.approx(value, rel=1e-6)  # RMSNorm rounds to float32
            if view.kind.causal:
                assert not any(explain_contexts(view, [context])[0][context.position + 1 :])


@pytest.mark.thinned(3)
def test_contexts_that_are_explained_together_are_as_each_alone(view):
    texts = texts_of(view)
    neurons = [(0, 3), (1, 6), (1, 0)]
    asked = [context for neuron in neurons for _, context in best_contexts(view, texts, *neuron, 3)]
    assert len({len(context.ids) for context in asked}) > 1
    for method in ("attnlrp", "gradient_l2"):
        for context, relevance in zip(asked, explain_contexts(view, asked, method), strict=True):
            assert relevance == pytest.approx(explain_contexts(view, [context], method)[0], rel=1e-6, abs=1e-9)


def test_the_plain_gradient_is_that_of_the_activation(view):
    ((_, context),) = best_contexts(view, texts_of(view), 1, 6, 1)
    [relevance] = explain_contexts(view, [context], "gradient_x_input")
    batch = Batch.collate([{"input_ids": list(context.ids), "position": 0, "target_id": 0}], 0)
    _, full = embeddings(view, batch)
    token = view.token_embedding(batch.input_ids).requires_grad_()
    seen = []
    hook = view.blocks[1].down.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    view.model(inputs_embeds=token)
    hook.remove()
    (gradient,) = torch.autograd.grad(seen[0][0, context.position, 6], token)
    assert relevance == pytest.approx((gradient * full).sum(-1)[0].tolist(), rel=1e-4, abs=1e-6)


def test_what_does_not_exist_is_named(view):
    with pytest.raises(UserError, match="there is no layer 5: the model's layers are 0 to 1"):
        explain_contexts(view, [Context([5, 6], 0, layer=5, neuron=0)])
    with pytest.raises(UnsupportedMethod, match="'random' is no gradient method"):
        explain_contexts(view, [Context([5, 6], 0, layer=0, neuron=0)], "random")
