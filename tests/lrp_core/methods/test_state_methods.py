"""NormXLogit and its parts, and Value Zeroing, against their formulas on stock models."""

from dataclasses import replace
from itertools import product

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import PreTrainedTokenizerFast

from closelook.lrp_core import METHODS, Batch, ModelView, Request, UnsupportedMethod
from closelook.lrp_core.records.types import UserError
from tests.asked import CLOSE, close, explain, in_turn
from tests.oracles import states as oracles
from tests.tiny import MORE, TINY, ragged_rows, tiny_classifier, tiny_model

pytestmark = pytest.mark.numeric
STATES = ("embedding_norm", "logat", "normxlogit")


#: Families with an implementation of attention.
EVERY = [*((family, "sdpa") for family in sorted(TINY | MORE)), ("bert", "eager"), ("gpt2", "eager")]


def each_view_in_turn(name, values):
    """Parametrises a test by every view and every value of an argument that acts behind the model, in turn."""
    return pytest.mark.parametrize(("view", name), in_turn(EVERY, values), indirect=["view"])


@pytest.fixture(params=EVERY)
def view(request) -> ModelView:
    family, attn = request.param
    return tiny_model(family, attn=attn, num_hidden_layers=3)


@pytest.fixture
def rows(view) -> list[dict]:
    return ragged_rows(view)


@pytest.mark.thinned(4)
@each_view_in_turn("explanation", ["contrastive", "target"])
def test_logat_is_the_stock_head_on_each_token(view, rows, explanation):
    batch = Batch.collate(rows, 0, "left")
    relevance = METHODS["logat"](view, batch, explanation=explanation, layers=True)
    for i, row in enumerate(rows):
        states = oracles.hidden_states(view, row)
        for layer in range(view.n_layers):
            pair = oracles.logat(view, row, states[layer + 1])
            expected = pair[:, 0] - pair[:, 1] if explanation == "contrastive" else pair[:, 0]
            torch.testing.assert_close(relevance.layers[i, layer, -len(expected) :], expected, **CLOSE)
        torch.testing.assert_close(relevance.tokens[i], relevance.layers[i, -1])
        torch.testing.assert_close(relevance.tokens[i, batch.position[i]], relevance.explained[i])


def words() -> PreTrainedTokenizerFast:
    """Knows w0 to w9 by their numbers."""
    tokenizer = Tokenizer(WordLevel({f"w{i}": i for i in range(10)}, unk_token="w0"))
    tokenizer.pre_tokenizer = Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="w0")


@pytest.mark.thinned(4)
@each_view_in_turn("asked", [*product(("w7", "foil"), ("contrastive", "target"))])
def test_logat_of_another_word_is_the_same_head_on_its_logit(view, rows, asked):
    view, batch = replace(view, read_tokenizer=words), Batch.collate(rows, 0)
    word, explanation = asked
    relevance = METHODS["logat"](view, batch, explanation=explanation, layers=True, word=word)
    for i, row in enumerate(rows):
        turned = {"target_id": row["foil_id"], "foil_id": row["target_id"]} if word == "foil" else {"target_id": 7}
        for layer, state in enumerate(oracles.hidden_states(view, row)[1:]):
            pair = oracles.logat(view, row | turned, state)
            expected = pair[:, 0] - pair[:, 1] if explanation == "contrastive" else pair[:, 0]
            torch.testing.assert_close(relevance.layers[i, layer, : len(expected)], expected, **CLOSE)
        torch.testing.assert_close(relevance.tokens[i, row["position"]], relevance.explained[i])
    plain = METHODS["logat"](view, batch, explanation=explanation)
    assert torch.equal(relevance.logit_target, plain.logit_target), "what tells whether a prediction is right"


def test_a_word_that_is_none_is_refused_in_one_line():
    view, row = tiny_model("gpt2"), ragged_rows(tiny_model("gpt2"))[0]
    known = replace(view, read_tokenizer=words)
    score = replace(tiny_classifier("bert", labels=1), read_tokenizer=words)
    for of, word, message in (
        (view, "plural", "'plural' cannot be tokenised: the model was opened without a tokenizer"),
        (known, "plural", "'plural' is unknown to the model's tokenizer"),
        (known, " ", "option 'word': it must be a word, 'target' or 'foil', not ' '"),
        (
            replace(tiny_classifier("bert"), read_tokenizer=words),
            "w7",
            "'w7' is no label: .* predict labels, not words",
        ),
        (score, "foil", "the model predicts a score and no word 'foil'"),
    ):
        sample = row | {"position": 0, "target_id": 0, "foil_id": None} if of.kind.labels else row
        with pytest.raises(UserError, match=message):
            METHODS["logat"](of, Batch.collate([sample], 0), word=word)


@pytest.mark.thinned(4)
@each_view_in_turn("which", ["embedding_output", "word"])
def test_normxlogit_is_the_norm_of_the_input_times_logat(view, rows, which):
    logat, norms = explain("logat", view, rows), explain("embedding_norm", view, rows, norm=which)
    expected = [oracles.norm(oracles.hidden_states(view, row), view, row, which) for row in rows]
    close(norms, expected)
    close(explain("normxlogit", view, rows, norm=which), [x * y for x, y in zip(expected, logat, strict=True)])


@pytest.mark.thinned(4)
def test_the_norm_of_every_layer_of_normxlogit_is_that_of_the_input(view, rows):
    batch = Batch.collate(rows, 0)
    norms = METHODS["embedding_norm"](view, batch).tokens[:, None]
    relevance, logat = (METHODS[name](view, batch, layers=True).layers for name in ("normxlogit", "logat"))
    torch.testing.assert_close(relevance, norms * logat)


@pytest.mark.thinned(4)
def test_requests_of_one_forward_are_those_of_several(view, rows):
    batch, forwards = Batch.collate(rows, 0), []
    asked = [
        METHODS[name].configured(**({"norm": norm} if norm else {})).bound(Request(name, explanation, "none"))
        for name, norm in (("embedding_norm", "word"), ("logat", None), ("normxlogit", "embedding_output"))
        for explanation in METHODS[name].explanations
    ]
    hook = view.blocks[0].module.register_forward_pre_hook(lambda *_: forwards.append(1))
    relevance = METHODS["logat"].compute(view, batch, asked)
    hook.remove()
    assert len(forwards) == 1
    for request in asked:
        alone = METHODS[request.method](view, batch, explanation=request.explanation, **dict(request.options))
        assert torch.equal(relevance[request].tokens, alone.tokens)
        assert torch.equal(relevance[request].explained, alone.explained)


@pytest.mark.thinned(6)
def test_what_stands_behind_a_causal_prediction_gets_nothing(view):
    if not view.kind.causal:
        return
    (row,) = ragged_rows(view, (9,))
    early, cut = {**row, "position": 4}, {**row, "input_ids": row["input_ids"][:5], "position": 4}
    for name in (*STATES, "value_zeroing"):
        (relevance,), (expected,) = explain(name, view, [early]), explain(name, view, [cut])
        torch.testing.assert_close(relevance[:5], expected, **CLOSE)
        assert not relevance[5:].any()


@pytest.mark.thinned(8)
def test_value_zeroing_equals_a_run_for_every_layer_and_token(view, rows):
    batch = Batch.collate(rows, 0, "left")
    relevance = METHODS["value_zeroing"](view, batch, layers=True, token_budget=25)
    for i, row in enumerate(rows):
        maps, length, position = oracles.value_zeroing(view, row), len(row["input_ids"]), row["position"]
        for layer, of_layer in enumerate(maps):
            torch.testing.assert_close(relevance.layers[i, layer, -length:], of_layer[position], rtol=1e-5, atol=1e-6)
        product = torch.linalg.multi_dot(maps[::-1])[position]
        torch.testing.assert_close(relevance.tokens[i, -length:], product, rtol=1e-5, atol=1e-6)
        assert not relevance.tokens[i, :-length].any()
        assert not relevance.layers[i, :, :-length].any()
        assert abs(float(relevance.tokens[i].sum()) - 1) < 1e-6


def test_value_zeroing_keeps_its_digits_in_float32():
    exact, single = tiny_model("bert"), tiny_model("bert", dtype="float32")
    batch = Batch.collate(ragged_rows(exact), 0)
    expected, relevance = (METHODS["value_zeroing"](view, batch).tokens for view in (exact, single))
    torch.testing.assert_close(relevance.double(), expected, rtol=1e-4, atol=1e-7)


@pytest.mark.thinned(6)
def test_the_model_is_bit_identical_after_value_zeroing(view, rows):
    batch = Batch.collate(rows, 0)
    before = view.model(input_ids=batch.input_ids).logits
    METHODS["value_zeroing"](view, batch)
    assert torch.equal(view.model(input_ids=batch.input_ids).logits, before)


@pytest.mark.parametrize("view", [("gpt2", "sdpa")], indirect=True)
def test_layers_of_a_method_without_any_are_refused(view, rows):
    with pytest.raises(UnsupportedMethod, match="gradient_l1 gives no relevance by layer"):
        METHODS["gradient_l1"](view, Batch.collate(rows, 0), layers=True)


@pytest.mark.thinned(4)
def test_what_the_norm_says_of_a_layer_is_the_norm_of_the_states_that_its_head_reads(view, rows):
    batch = Batch.collate(rows, 0, "left")
    plain, relevance = METHODS["embedding_norm"](view, batch), METHODS["embedding_norm"](view, batch, layers=True)
    assert torch.equal(relevance.tokens, plain.tokens)
    for i, row in enumerate(rows):
        states = oracles.hidden_states(view, row)
        for layer in range(view.n_layers):
            expected = oracles.norm_behind(view, states[layer + 1])
            seen = row["position"] + 1 if view.kind.causal else len(expected)
            torch.testing.assert_close(relevance.layers[i, layer, -len(expected) :][:seen], expected[:seen], **CLOSE)


@pytest.mark.parametrize("view", [(family, "sdpa") for family in TINY], indirect=True)
def test_noise_of_each_layer_is_drawn_anew_and_leaves_that_of_tokens(view, rows):
    left, right = (
        METHODS["random"](view, Batch.collate(rows, 0, side), layers=True, seed=3) for side in ("left", "right")
    )
    alone = METHODS["random"](view, Batch.collate(rows[1:2], 0), seed=3).tokens[0]
    length = len(rows[1]["input_ids"])
    assert torch.equal(right.tokens[1, :length], alone)
    assert torch.equal(left.tokens[1, -length:], alone)
    assert torch.equal(left.layers[1, :, -length:], right.layers[1, :, :length])
    drawn = torch.cat([right.tokens[1:2], right.layers[1]])[:, :length]
    assert len(torch.unique(drawn)) == drawn.numel() == (1 + view.n_layers) * length


@pytest.mark.thinned(6)
def test_no_foil_explains_the_target(view, rows):
    batch = Batch.collate(rows, 0)
    for name in (*STATES, "value_zeroing"):
        alone = METHODS[name](view, replace(batch, foil_ids=None))
        explanation = {"explanation": "target"} if "target" in METHODS[name].explanations else {}
        assert torch.equal(alone.tokens, METHODS[name](view, batch, **explanation).tokens)
        assert alone.logit_foil is None
