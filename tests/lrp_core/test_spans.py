"""Spans of answers: several tokens explained by one backward are the weighted sum of what each is by itself."""

from dataclasses import replace

import pytest
import torch

from closelook.jobs.methods import METHODS
from closelook.lrp_core import Batch, UnsupportedMethod, UnusableRows, UserError
from closelook.lrp_core.records.explained import NO_CHOICE, NONE
from closelook.lrp_core.records.types import span_row
from tests.oracles import methods as oracles_methods
from tests.tiny import BOTH, MORE, TINY, tiny_classifier, tiny_model

pytestmark = pytest.mark.numeric
CAUSAL = sorted(name for name in TINY | MORE if tiny_model(name).kind.causal)
WRITING = [*CAUSAL, *sorted(BOTH)]
TOGETHER = (
    "gradient_x_input",
    "lrp",
    "attnlrp",
    "lrp_identity_softmax",
    "integrated_gradients",
    "occlusion",
    "atman",
    "alti_logit",
)
SUMMED = ("attnlrp_explicit", "logat", "normxlogit", "value_zeroing")
PROMPT, ANSWER, WEIGHTS = [5, 9, 12, 7, 20], [11, 3, 30, 8], [1.0, 0.5, 1.0, -2.0]


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
        result = METHODS[name](view, Batch.collate([alone], 0), explanation=explanation)
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


@pytest.mark.thinned(9)
@pytest.mark.parametrize("explanation", ["target", "log_prob"])
@pytest.mark.parametrize("family", WRITING)
def test_a_span_is_the_sum_of_its_tokens(family, explanation):
    view = tiny_model(family)
    for name in (*TOGETHER, *SUMMED):
        asked = NONE if METHODS[name].explanations == NO_CHOICE else explanation
        if METHODS[name].missing(view.family.capabilities) or asked not in METHODS[name].explanations:
            continue
        ours, result = of_span(view, name, WEIGHTS, explanation=asked)
        expected, explained = singles(view, name, WEIGHTS, asked)
        agree(ours, expected)
        torch.testing.assert_close(result.explained, explained, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_contributions_of_heads_and_of_all_parts_to_a_span_are_those_to_its_tokens(family):
    """The weights are not negative, since poolings of magnitudes do not add up under negative ones."""
    view, at_once, weights = tiny_model(family), [], [1.0, 0.5, 0.0, 2.0]
    row, first = read(view)
    _, whole = of_span(view, "alti_logit", weights, heads=True)
    for at, (token, weight) in enumerate(zip(ANSWER, weights, strict=True)):
        alone = Batch.collate([{**row, "position": first + at, "target_id": token}], 0)
        at_once.append((weight, METHODS["alti_logit"](view, alone, explanation="target", heads=True)))
    agree(whole.heads, sum(weight * result.heads for weight, result in at_once))
    for name, values in vars(whole.contributions).items():
        expected = sum(weight * getattr(result.contributions, name) for weight, result in at_once)
        torch.testing.assert_close(values, expected, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(whole.contributions.total(), whole.explained)


def test_tokens_have_weights_and_those_of_none_are_read_alone():
    view = tiny_model("llama")
    weights = [0.5, 0.0, 2.0, -1.0]
    ours, _ = of_span(view, "attnlrp", weights)
    agree(ours, singles(view, "attnlrp", weights, "target")[0])


def maps_of_span(view, explained):
    """Attention [H, T, T] of each layer and its gradients, of the weighted sum of the answer's logits."""
    row, first = read(view)

    def number(of_vocabulary, *_):
        logits = [of_vocabulary[first + at, token] for at, token in enumerate(ANSWER)]
        return sum(weight * logit for weight, logit in zip(explained, logits, strict=True))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(oracles_methods, "number", number)
        patch.setattr(oracles_methods, "read", lambda view, row, result: result)
        return (*oracles_methods.attention_maps(view, row, "target"), first)


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_attention_maps_are_weighted_by_the_gradient_of_the_whole_sum(family):
    view = tiny_model(family)
    maps, gradients, seen, first = maps_of_span(view, WEIGHTS)
    positions = range(first, first + len(ANSWER))
    shares = [abs(weight) / sum(map(abs, WEIGHTS)) for weight in WEIGHTS]

    def mean(rows):
        return sum(share * rows[at] for share, at in zip(shares, positions, strict=True))

    product = oracles_methods.grad_attention_rollout(maps, gradients, seen)
    agree(of_span(view, "grad_attention_rollout", WEIGHTS)[0][0], mean(product))
    identity = torch.zeros_like(product[0]).scatter(
        0, torch.tensor(positions), torch.tensor(shares, dtype=product.dtype)
    )
    agree(of_span(view, "grad_attention_rollout", WEIGHTS, itself="attended")[0][0], mean(product) - identity)
    left = of_span(view, "grad_attention_rollout", WEIGHTS, itself="zero")[0][0]
    agree(left, mean(product).index_fill(0, torch.tensor(positions), 0))
    heads = [(g * seen).sum() / seen.numel() for g in gradients[-1]]
    cams = []
    for sign in (1, -1):
        cam = torch.stack([a * sign * head for a, head in zip(maps[-1], heads, strict=True)]).mean(0)
        cams.append(mean(cam).clamp_min(0))
        ours, _ = of_span(view, "gradcam", [sign * weight for weight in WEIGHTS])
        torch.testing.assert_close(ours[0], cams[-1], rtol=1e-9, atol=1e-12)
    assert sum(cams).max() > 1e-5
    agree(of_span(view, "attention_rollout", WEIGHTS, explanation=NONE)[0][0], mean(rolled_out(maps)))
    attention = torch.stack([layer.mean(0) for layer in maps]).mean(0)
    agree(of_span(view, "attention_share", WEIGHTS, explanation=NONE)[0][0], mean(attention))


def rolled_out(maps):
    total = identity = torch.eye(maps[0].shape[-1]).to(maps[0])
    for attention in maps:
        total = (attention.mean(0) + identity) / 2 @ total
    return total


@pytest.mark.parametrize("name", ["attention_rollout", "grad_attention_rollout", "attention_share", "gradcam"])
def test_maps_of_encoder_decoders_have_spans(name):
    view = tiny_model("t5")
    asked = NONE if METHODS[name].explanations == NO_CHOICE else "target"
    ours, _ = of_span(view, name, [0.0, 0.0, 0.0, 1.0], explanation=asked)
    agree(ours, singles(view, name, [0.0, 0.0, 0.0, 1.0], asked)[0])


def test_a_deleted_token_leaves_the_answer_where_it_was():
    view = tiny_model("gpt2")
    row, first = read(view)
    ours, _ = of_span(view, "occlusion", how="delete")
    expected = torch.zeros(1, len(row["input_ids"])).to(ours)
    for gone in range(len(row["input_ids"])):
        kept = [token for at, token in enumerate(row["input_ids"]) if at != gone]
        read_at = [first + at - (gone <= first + at) for at in range(len(ANSWER))]
        short = view.model(torch.tensor([kept])).logits[0]
        whole = view.model(torch.tensor([row["input_ids"]])).logits[0]
        for at, token in enumerate(ANSWER):
            expected[0, gone] += whole[first + at, token] - short[read_at[at], token]
    agree(ours, expected)


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


@pytest.mark.thinned(5)
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize(
    ("name", "family"),
    [
        *((name, "llama") for name in ("lrp", "occlusion", "smoothgrad", "kernel_shap", "alti_logit")),
        *(("attnlrp", family) for family in WRITING),
    ],
)
def test_padding_and_neighbours_with_longer_spans_change_nothing(name, family, side):
    view = tiny_model(family)
    if METHODS[name].missing(view.family.capabilities):
        pytest.skip("the model lacks what the method needs")
    texts = [(PROMPT, ANSWER), ([4, 6], [9, 9]), ([8, 5, 13, 21, 22, 23], [30])]
    rows = []
    for prompt, answer in texts:
        row, first = read(view, prompt, answer)
        rows.append(span_row(row, first, answer))
    together = METHODS[name](view, Batch.collate(rows, 0, side), explanation="target")
    for at, row in enumerate(rows):
        alone, length = METHODS[name](view, Batch.collate([row], 0), explanation="target"), len(row["input_ids"])
        kept = together.tokens[at, -length:] if side == "left" else together.tokens[at, :length]
        torch.testing.assert_close(kept, alone.tokens[0], rtol=1e-8, atol=1e-9)
        if alone.decoder_tokens is not None:
            kept = together.decoder_tokens[at, : len(row["decoder_input_ids"])]  # padded behind, on either side
            torch.testing.assert_close(kept, alone.decoder_tokens[0], rtol=1e-8, atol=1e-9)


def test_a_span_costs_as_many_forwards_and_backwards_as_a_token(monkeypatch):
    view = tiny_model("gpt2")
    backward, calls, forwards = torch.autograd.grad, [], []
    monkeypatch.setattr(torch.autograd, "grad", lambda *a, **k: calls.append(1) or backward(*a, **k))
    hook = view.model.base_model.register_forward_hook(lambda *_: forwards.append(1))
    of_span(view, "attnlrp")
    of_all = len(forwards), len(calls)
    row, first = read(view)
    METHODS["attnlrp"](view, Batch.collate([{**row, "position": first, "target_id": 4}], 0), explanation="target")
    hook.remove()
    assert of_all[0] == 1
    assert (len(forwards), len(calls)) == (2, 2 * of_all[1])


def test_what_cannot_be_explained_together_is_refused_by_name():
    view = tiny_model("gpt2")
    row, first = read(view)
    batch = Batch.collate([span_row(row, first, ANSWER)], 0)
    alone = replace(METHODS["lrp"], name="alone", spans="")
    with pytest.raises(UnsupportedMethod, match="alone explains one token"):
        alone(view, batch, explanation="target")
    with pytest.raises(
        UnsupportedMethod, match="attnlrp_explicit explains a span token by token, and then gives relevance of tok"
    ):
        METHODS["attnlrp_explicit"](view, batch, explanation="target", heads=True)
    with pytest.raises(UserError, match="a contrastive explanation needs foil_ids"):
        METHODS["lrp"](view, batch, explanation="contrastive")
    outside = Batch.collate([span_row(row, first + 1, ANSWER)], 0)
    with pytest.raises(UnusableRows, match="outside of the row"):
        METHODS["lrp"](view, outside, explanation="target")
    with pytest.raises(UserError, match="not 0 tokens"):
        span_row(row, first, [])
    with pytest.raises(UserError, match="2 tokens and 1 weights"):
        span_row(row, first, [3, 4], [1.0])
    with pytest.raises(UserError, match="some rows of the batch have spans"):
        Batch.collate([span_row(row, first, ANSWER), {**row, "position": 0, "target_id": 4}], 0)


@pytest.mark.parametrize("open_model", [lambda: tiny_model("bert"), lambda: tiny_classifier("gpt2")])
def test_models_that_predict_one_word_or_label_have_no_spans(open_model):
    row = span_row({"input_ids": PROMPT}, 2, [1, 2])
    with pytest.raises(UserError, match="no answer of several tokens"):
        METHODS["lrp"](open_model(), Batch.collate([row], 0), explanation="target")
