"""Spans of answers: several tokens explained by one backward are the weighted sum of what each is by itself."""

import pytest
import torch

from lrp_core import METHODS, Batch, UnsupportedMethod, UnusableRows, UserError, attribute
from lrp_core.types import span_row
from tests.tiny import BOTH, MORE, TINY, tiny_classifier, tiny_model

pytestmark = pytest.mark.numeric
CAUSAL = sorted(name for name in TINY | MORE if tiny_model(name).kind.causal)
WRITING = [*CAUSAL, *sorted(BOTH)]
LINEAR = ("gradient_x_input", "lrp", "attnlrp", "integrated_gradients", "occlusion")
PROMPT, ANSWER = [5, 9, 12, 7, 20], [11, 3, 30, 8]


def read(view, prompt=PROMPT, answer=ANSWER):
    """The row that a model reads before the last token of an answer, and where the first of it is read."""
    if view.kind.decoder:
        start = view.config.decoder_start_token_id
        return {"input_ids": prompt, "decoder_input_ids": [start, *answer[:-1]]}, 0
    return {"input_ids": [*prompt, *answer[:-1]]}, len(prompt) - 1


def singles(view, name, weights, explanation):
    """The sum over the answer's tokens of weights times the relevance of each, explained alone."""
    row, first = read(view)
    total = explained = 0.0
    for at, (token, weight) in enumerate(zip(ANSWER, weights, strict=True)):
        alone = {**row, "position": first + at, "target_id": token}
        result = attribute(name, view, Batch.collate([alone], 0), explanation=explanation)
        total = total + weight * torch.cat([result.tokens, *decoder(result)], 1)
        explained = explained + weight * result.explained
    return total, explained


def decoder(result):
    return [] if result.decoder_tokens is None else [result.decoder_tokens]


def of_span(view, name, weights=None, explanation="target", **options):
    row, first = read(view)
    batch = Batch.collate([span_row(row, first, ANSWER, weights)], 0)
    result = METHODS[name](view, batch, explanation=explanation, **options)
    return torch.cat([result.tokens, *decoder(result)], 1), result


def agree(ours, expected):
    bound = 1e-9 * expected.abs().sum()
    assert expected.abs().max() > 1e-5, "the oracle must say something"
    assert (ours - expected).abs().max() <= bound


@pytest.mark.parametrize("explanation", ["target", "log_prob"])
@pytest.mark.parametrize("family", WRITING)
def test_a_span_is_the_sum_of_its_tokens(family, explanation):
    view = tiny_model(family)
    for name in LINEAR:
        if METHODS[name].missing(view.family.capabilities) or explanation not in METHODS[name].explanations:
            continue
        ours, result = of_span(view, name, explanation=explanation)
        expected, explained = singles(view, name, [1.0] * len(ANSWER), explanation)
        agree(ours, expected)
        torch.testing.assert_close(result.explained, explained, rtol=1e-9, atol=1e-9)


def test_tokens_have_weights_and_those_of_none_are_read_alone():
    view = tiny_model("llama")
    weights = [0.5, 0.0, 2.0, -1.0]
    ours, _ = of_span(view, "attnlrp", weights)
    agree(ours, singles(view, "attnlrp", weights, "target")[0])


def test_norms_are_of_the_gradient_of_the_whole_sum():
    view = tiny_model("gpt2")
    row, first = read(view)
    ids = torch.tensor([row["input_ids"]])
    words = view.token_embedding(ids).detach().requires_grad_()
    logits = view.model(inputs_embeds=words).logits[0]
    total = sum(logits[first + at, token] for at, token in enumerate(ANSWER))
    (gradient,) = torch.autograd.grad(total, words)
    ours, _ = of_span(view, "gradient_l2")
    assert METHODS["gradient_l2"].measure == "square"
    agree(ours, gradient.square().sum(-1))


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", ["lrp", "attnlrp", "occlusion", "smoothgrad", "kernel_shap"])
def test_padding_and_neighbours_with_longer_spans_change_nothing(name, side):
    view = tiny_model("llama")
    texts = [(PROMPT, ANSWER), ([4, 6], [9, 9]), ([8, 5, 13, 21, 22, 23], [30])]
    rows = []
    for prompt, answer in texts:
        row, first = read(view, prompt, answer)
        rows.append(span_row(row, first, answer))
    together = attribute(name, view, Batch.collate(rows, 0, side), explanation="target")
    for at, row in enumerate(rows):
        alone, length = attribute(name, view, Batch.collate([row], 0), explanation="target"), len(row["input_ids"])
        kept = together.tokens[at, -length:] if side == "left" else together.tokens[at, :length]
        torch.testing.assert_close(kept, alone.tokens[0], rtol=1e-8, atol=1e-9)


def test_a_span_costs_as_many_forwards_and_backwards_as_a_token(monkeypatch):
    view = tiny_model("gpt2")
    backward, calls, forwards = torch.autograd.grad, [], []
    monkeypatch.setattr(torch.autograd, "grad", lambda *a, **k: calls.append(1) or backward(*a, **k))
    hook = view.model.base_model.register_forward_hook(lambda *_: forwards.append(1))
    of_span(view, "attnlrp")
    of_all = len(forwards), len(calls)
    row, first = read(view)
    attribute("attnlrp", view, Batch.collate([{**row, "position": first, "target_id": 4}], 0), explanation="target")
    hook.remove()
    assert of_all[0] == 1
    assert (len(forwards), len(calls)) == (2, 2 * of_all[1])


def test_what_cannot_be_explained_together_is_refused_by_name():
    view = tiny_model("gpt2")
    row, first = read(view)
    batch = Batch.collate([span_row(row, first, ANSWER)], 0)
    with pytest.raises(UnsupportedMethod, match="attnlrp_explicit explains one token"):
        attribute("attnlrp_explicit", view, batch, explanation="target")
    with pytest.raises(UnsupportedMethod, match="tokens that move leave spans"):
        METHODS["occlusion"](view, batch, explanation="target", how="delete")
    with pytest.raises(UserError, match="a contrastive explanation needs foil_ids"):
        attribute("lrp", view, batch, explanation="contrastive")
    outside = Batch.collate([span_row(row, first + 1, ANSWER)], 0)
    with pytest.raises(UnusableRows, match="outside of the row"):
        attribute("lrp", view, outside, explanation="target")
    with pytest.raises(UserError, match="not 0 tokens"):
        span_row(row, first, [])
    with pytest.raises(UserError, match="2 tokens and 1 weights"):
        span_row(row, first, [3, 4], [1.0])
    with pytest.raises(UserError, match="some rows of the batch have spans"):
        Batch.collate([span_row(row, first, ANSWER), {**row, "position": 0, "target_id": 4}], 0)


@pytest.mark.parametrize("open_model", [lambda: tiny_model("bert"), lambda: tiny_classifier("gpt2")])
def test_models_that_predict_one_word_or_label_have_no_spans(open_model):
    row = span_row({"input_ids": PROMPT}, 2, [1, 2])
    with pytest.raises(UserError, match="spans are of models that go on with a text"):
        attribute("lrp", open_model(), Batch.collate([row], 0), explanation="target")
