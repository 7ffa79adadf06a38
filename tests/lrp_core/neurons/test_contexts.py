"""The best contexts of a neuron are those of a pass over everything, and their explanation sums to the activation."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch

from closelook.lrp_core import Batch, UnsupportedMethod, UserError
from closelook.lrp_core.neurons import activations, contexts
from closelook.lrp_core.neurons.contexts import best_contexts, explain_context, explain_contexts
from closelook.lrp_core.neurons.near_ties import ROUNDING, runs
from tests.lrp_core.rules.test_conservation import without_biases
from tests.tiny import ragged_rows


def texts_of(view, count=23):
    return [row["input_ids"] for row in ragged_rows(view, lengths=[3 + i % 9 for i in range(count)], seed=3)]


def activation(view, ids, layer, neuron):
    seen = []
    hook = view.blocks[layer].down.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    view.hidden(Batch.collate([{"input_ids": ids, "position": 0, "target_id": 0}], 0))
    hook.remove()
    return seen[0][0, :, neuron]


@pytest.mark.thinned(3)
def test_best_contexts_are_at_least_as_active_as_all_others(view):
    """Against a pass over all texts. Equal texts may differ by rounding, so only values are compared."""
    texts = texts_of(view)
    texts.append(list(texts[4]))
    every = [activation(view, ids, 1, 6) for ids in texts]
    for rows in (1, 5, 64):
        result = best_contexts(view, iter(texts), 1, 6, 7, rows)
        kept = {context.number for context in result}
        assert len(kept) == 7
        left_out = max(float(every[number].max()) for number in set(range(len(texts))) - kept)
        for context in result:
            largest = float(every[context.number].max())
            assert largest >= left_out - ROUNDING * abs(left_out)
            assert context.value == pytest.approx(largest, rel=ROUNDING)
            assert float(every[context.number][context.position]) == pytest.approx(largest, rel=ROUNDING)
            assert list(context.ids) == texts[context.number]
        for better, worse in pairwise(context.value for context in result):
            assert better >= worse


@pytest.mark.thinned(3)
def test_which_contexts_are_best_does_not_depend_on_what_shares_their_batch(view, monkeypatch):
    """As on CPUs that round otherwise in batches of other sizes: the last digits depend on a row's neighbours."""
    exact = activations._largest

    def rounded(x):
        value, position = exact(x)
        row = torch.arange(len(value))[:, None]
        return value * (1 + (len(value) > 1) * 3e-7 * torch.cos(7.0 * row + len(value))), position

    monkeypatch.setattr(activations, "_largest", rounded)
    texts = texts_of(view)
    texts += [list(ids) for ids in texts]  # every activation is there twice
    alone = best_contexts(view, texts, 1, 6, 7, rows=1)
    assert [context.number for context in alone][:2] == [alone[0].number, alone[0].number + 23], (
        "of equal ones the earlier first"
    )
    for rows in (2, 5, 64):
        result = best_contexts(view, texts, 1, 6, 7, rows)
        assert result == alone
        assert [context.position for context in result] == [context.position for context in alone]


def test_what_explains_an_activation_sums_to_it_under_lrp(view):
    view = without_biases(view)
    for context in best_contexts(view, texts_of(view), 1, 6, 3):
        if view.embedding_norm is None:
            relevance = explain_context(view, context, 1, 6, "lrp")
            assert sum(relevance) == pytest.approx(context.value, rel=1e-6)  # RMSNorm rounds to float32
        if view.kind.causal:
            assert not any(explain_context(view, context, 1, 6)[context.position + 1 :])


@pytest.mark.thinned(3)
def test_contexts_that_are_explained_together_are_as_each_alone(view):
    texts = texts_of(view)
    neurons = [(0, 3), (1, 6), (1, 0)]
    asked = [(context, *neuron) for neuron in neurons for context in best_contexts(view, texts, *neuron, 3)]
    assert len({len(context.ids) for context, _, _ in asked}) > 1
    for method in ("attnlrp", "gradient_l2"):
        for (context, *neuron), relevance in zip(asked, explain_contexts(view, asked, method), strict=True):
            assert relevance == pytest.approx(explain_context(view, context, *neuron, method), rel=1e-6, abs=1e-9)


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


def test_contexts_that_are_equal_but_for_rounding_stand_in_the_order_of_the_texts(view, monkeypatch):
    """Processors round otherwise, even of a text alone: the same texts twice, of which the second are a bit larger."""
    texts = [*texts_of(view), *texts_of(view)]
    look = contexts._contexts

    def rounded(*args, **options):
        best = look(*args, **options)
        return [replace(context, value=context.value * (1 + 1e-7 * context.number)) for context in best]

    monkeypatch.setattr(contexts, "_contexts", rounded)
    numbers = [context.number for context in best_contexts(view, texts, 0, 3, 6)]
    half = len(texts) // 2
    assert numbers[::2] == [number - half for number in numbers[1::2]]


def test_runs_begin_where_a_value_differs_by_more_than_rounding():
    step = ROUNDING / 2
    values = np.array([[2.0, 1.0, 1.0 - step, 1.0 - 2 * step, 0.5], [1.0, 0.0, 0.0, -np.inf, -np.inf]])
    assert runs(values).tolist() == [[0, 1, 1, 1, 4], [0, 1, 2, 3, 4]]
