"""Soft caps on scores and logits (Gemma 2) and sliding windows, which no family of Close Look has."""

import pytest
import torch

from closelook.alti import METHODS as VECTORS
from closelook.alti import alti_logit
from closelook.lrp_core import METHODS, Batch, UnsupportedMethod, UnsupportedModel, random_model
from tests.asked import CLOSE, close, explain
from tests.oracles import methods as oracles
from tests.tiny import ragged_rows, tiny_config, tiny_model

pytestmark = pytest.mark.numeric


@pytest.fixture
def view():
    return tiny_model("gemma2")


@pytest.fixture
def rows(view):
    return ragged_rows(view)


def test_both_caps_change_what_the_model_says(view, rows):
    for field in ("attn_logit_softcapping", "final_logit_softcapping"):
        other = tiny_model("gemma2", **{field: None})
        assert (oracles.logits(view, rows[0]) - oracles.logits(other, rows[0])).abs().max() > 1e-2, field


def test_logits_are_capped(view, rows):
    batch = Batch.collate(rows, 0)
    logits = view.all_logits(batch)[:, -1]
    for ours, row in zip(logits, rows, strict=True):
        torch.testing.assert_close(ours, oracles.logits(view, row), **CLOSE)


@pytest.mark.parametrize("explanation", ["contrastive", "target", "log_prob"])
def test_gradient_x_input_is_that_of_the_stock_model(view, rows, explanation):
    relevance = explain("gradient_x_input", view, rows, explanation=explanation, embedding="partial")
    expected = []
    for row in rows:
        token = oracles.tokens(view, row)
        expected.append((oracles.gradient(view, row, token, explanation) * token).sum(-1))
    close(relevance, expected)


def test_attnlrp_with_caps_so_wide_that_they_do_nothing_is_attnlrp_without(rows):
    wide = tiny_model("gemma2", attn_logit_softcapping=1e6, final_logit_softcapping=1e6)
    without = tiny_model("gemma2", attn_logit_softcapping=None, final_logit_softcapping=None)
    close(explain("attnlrp", wide, rows), explain("attnlrp", without, rows))


def test_atman_suppresses_capped_scores(rows):
    view = tiny_model("gemma2", sliding_window=32)
    relevance = explain("atman", view, rows, score="logit")
    close(relevance, [oracles.atman(view, row, "contrastive", 0.9, False) for row in rows])


@pytest.mark.parametrize("name", ["gemma2", "gemma3_text", "olmo2"])
def test_a_method_that_takes_logits_for_plain_sums_is_refused_by_name(name):
    view = tiny_model(name)
    with pytest.raises(
        UnsupportedMethod, match=r"^alti_logit needs .*logits that are sums of what blocks add .* have$"
    ):
        alti_logit(view, Batch.collate(ragged_rows(view), 0))


@pytest.mark.parametrize(
    ("family", "changes", "message"),
    [
        (
            "gemma3_text",
            {"attn_logit_softcapping": 30.0},
            "without attn_logit_softcapping only, not 30.0: transformers",
        ),
        ("gemma3_text", {"use_bidirectional_attention": True}, "use_bidirectional_attention=False only, not True"),
        ("gemma2", {"use_bidirectional_attention": True}, "use_bidirectional_attention=False only, not True"),
        ("phi", {"qk_layernorm": True}, "qk_layernorm=False only, not True"),
    ],
)
def test_what_no_rule_covers_is_refused_when_loaded(family, changes, message):
    with pytest.raises(UnsupportedModel, match=message):
        random_model(tiny_config(family, **changes))


@pytest.mark.thinned(2)
@pytest.mark.parametrize("attn", ["sdpa", "eager"])
@pytest.mark.parametrize("name", ["mistral", "phi3", "gemma3_text"])
def test_a_sliding_window_is_that_of_the_stock_model_with_padding_on_either_side(name, attn):
    view = tiny_model(name, attn=attn, sliding_window=3)
    rows = ragged_rows(view)
    assert not torch.allclose(
        oracles.logits(view, rows[0]), oracles.logits(tiny_model(name, sliding_window=32), rows[0])
    )
    for side in ("left", "right"):
        batch = Batch.collate(rows, 0, side)
        for method in ("attnlrp", "lrp", "attention_rollout", "atman", "occlusion"):
            together = METHODS[method](view, batch)
            for i, row in enumerate(rows):
                torch.testing.assert_close(
                    together.logit_target[i], oracles.logits(view, row)[row["target_id"]], **CLOSE
                )
                alone, length = METHODS[method](view, Batch.collate([row], 0)).tokens[0], len(row["input_ids"])
                kept = together.tokens[i, -length:] if side == "left" else together.tokens[i, :length]
                torch.testing.assert_close(kept, alone, rtol=1e-6, atol=1e-8, msg=f"{method} {side}")


def test_a_window_hides_what_it_hides_from_every_method():
    """One layer with a window of 3: the last three tokens alone have a say."""
    view = tiny_model("mistral", sliding_window=3, num_hidden_layers=1)
    batch = Batch.collate(ragged_rows(view), 0)
    for method in ("attnlrp", "lrp", "gradient_x_input", "attention_rollout", "atman", "occlusion", "alti_logit"):
        relevance = (VECTORS if method in VECTORS else METHODS)[method](view, batch).tokens
        for i, position in enumerate(batch.position.tolist()):
            assert relevance[i, : position - 2].abs().max() < 1e-6, method
            assert relevance[i, position - 2 : position].abs().max() > 1e-5, method
