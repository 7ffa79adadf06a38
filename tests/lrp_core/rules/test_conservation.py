"""Conservation: lrp keeps all relevance, attnlrp loses the share that its softmax rules absorb, biases keep theirs."""

import sys

import pytest
import torch

from closelook.lrp_core import Batch, Request, attribute
from closelook.lrp_core.methods.gradients import explain_explicitly
from closelook.lrp_core.rules import ATTNLRP
from closelook.lrp_core.verification.stock import without_biases
from tests.ruled import forward
from tests.tiny import ragged_rows, tiny_model

pytestmark = pytest.mark.numeric


@pytest.mark.parametrize("explanation", ["contrastive", "target"])
def test_lrp_conserves_logit_when_biases_are_zero(view, batch, explanation):
    with without_biases(view.model):
        relevance = attribute("lrp", view, batch, explanation=explanation)
    torch.testing.assert_close(relevance.tokens.sum(-1), relevance.explained, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(relevance.residual, torch.zeros(len(batch), dtype=torch.float64), atol=1e-10, rtol=0)


def test_lrp_in_single_precision_conserves_to_rounding(family):
    view = tiny_model(family, dtype="float32")
    with without_biases(view.model):
        relevance = attribute("lrp", view, Batch.collate(ragged_rows(view), 0))
    torch.testing.assert_close(relevance.residual, torch.zeros(3), atol=1e-5, rtol=0)


def test_norms_of_gradients_promise_no_sum(view, batch):
    assert attribute("gradient_l1", view, batch).residual is None


def test_attnlrp_loses_exactly_what_softmax_absorbs_layer_by_layer(family, monkeypatch):
    view = tiny_model(family, attn="eager")
    batch = Batch.collate(ragged_rows(view, lengths=(6, 6)), 0)
    scores, weights, streams = [], [], []

    def attention(module, query, key, value, mask, scaling=None, **_):
        groups = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
        x = query @ key.transpose(-1, -2) * (scaling or query.shape[-1] ** -0.5)
        s = torch.softmax(x if mask is None else x + mask, -1)
        scores.append(x)
        weights.append(s)
        return (s @ value).transpose(1, 2), s

    modelling = sys.modules[type(view.blocks[0].attention).__module__]
    monkeypatch.setattr(modelling, "eager_attention_forward", attention)
    hooks = [b.module.register_forward_pre_hook(lambda _, args: streams.append(args[0])) for b in view.blocks]
    with without_biases(view.model):
        logits = forward(view, batch, ATTNLRP).output["logits"]
    nodes = [*streams, *scores, *weights]
    gradients = torch.autograd.grad(logits[:, 0].sum(), nodes)
    for hook in hooks:
        hook.remove()
    relevance = [(gradient * node).sum().item() for gradient, node in zip(gradients, nodes, strict=True)]
    layers = view.n_layers
    streams_sum = [*relevance[:layers], logits[:, 0].sum().item()]
    of_scores, of_weights = relevance[layers : 2 * layers], relevance[2 * layers :]
    for layer in range(layers):
        absorbed = of_weights[layer] - of_scores[layer]
        assert abs(absorbed) > 1e-4
        assert streams_sum[layer + 1] - streams_sum[layer] == pytest.approx(absorbed, abs=1e-10)


@pytest.mark.parametrize("explanation", ["contrastive", "target"])
@pytest.mark.parametrize("embedding", ["full", "partial"])
def test_explicit_attnlrp_agrees_with_modified_gradients(view, batch, explanation, embedding):
    request = Request("attnlrp_explicit", explanation, embedding)
    explicit = explain_explicitly(view, batch, [request], heads=True, epsilon=1e-12)[request]
    modified = attribute("attnlrp", view, batch, explanation=explanation, embedding=embedding, heads=True)
    torch.testing.assert_close(explicit.tokens, modified.tokens, rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(explicit.heads, modified.heads, rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(explicit.explained, modified.explained, rtol=1e-12, atol=1e-12)
