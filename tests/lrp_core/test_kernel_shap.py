"""Kernel SHAP, against Shapley values by enumeration on stock models."""

import pytest
import torch

from closelook.lrp_core import METHODS, Batch
from tests.asked import EXPLANATIONS, close, explain, widths
from tests.oracles import methods as oracles
from tests.tiny import picture_rows, ragged_rows, tiny_classifier, tiny_model


@pytest.fixture
def rows(view) -> list[dict]:
    return ragged_rows(view)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("explanation", EXPLANATIONS)
def test_kernel_shap_of_few_tokens_is_the_shapley_value(view, explanation):
    rows = ragged_rows(view, (1, 4, 6))
    relevance = explain("kernel_shap", view, rows, explanation=explanation)
    close(relevance, [oracles.shapley(view, row, explanation) for row in rows])


def test_kernel_shap_enumerates_as_soon_as_it_is_no_dearer(view):
    (row,) = ragged_rows(view, (5,))
    expected = oracles.shapley(view, row, "contrastive")
    sizes, undo = widths(view)
    (exact,) = explain("kernel_shap", view, [row], samples=2**5 - 2)
    undo()
    close([exact], [expected])
    assert sum(rows for rows, _ in sizes) == 1 + 2**5 - 1, "the whole text, no token, and every set between"
    (drawn,) = explain("kernel_shap", view, [row], samples=2**5 - 3)
    assert (drawn - expected).norm() > 1e-6 * expected.norm()


@pytest.mark.thinned(3)
def test_kernel_shap_of_drawn_sets_comes_close_to_shapley_values_and_keeps_their_sum(view):
    (row,) = ragged_rows(view, (8,))
    relevance = METHODS["kernel_shap"](view, Batch.collate([row], 0), samples=200)
    expected = oracles.shapley(view, row, "contrastive")
    assert (relevance.tokens[0] - expected).norm() < 0.2 * expected.norm()
    torch.testing.assert_close(relevance.tokens[0].sum(), expected.sum(), rtol=1e-6, atol=1e-6)
    assert relevance.residual is not None
    assert relevance.residual.abs().max() < 1e-9


def test_kernel_shap_runs_no_more_sets_than_samples(view, rows):
    for samples in (2, 3, 60):
        sizes, undo = widths(view)
        explain("kernel_shap", view, rows[2:], samples=samples)
        undo()
        assert sum(rows for rows, _ in sizes) - 2 <= samples


@pytest.mark.parametrize("samples", [10, 1000])
@pytest.mark.parametrize("side", ["left", "right"])
def test_kernel_shap_gives_nothing_to_tokens_behind_the_prediction(side, samples):
    view = tiny_model("gpt2")
    rows = [{**row, "position": position} for row, position in zip(ragged_rows(view), (3, 2, 5), strict=True)]
    together = METHODS["kernel_shap"](view, Batch.collate(rows, 0, side), samples=samples).tokens
    for of_row, row in zip(together, rows, strict=True):
        size, seen = len(row["input_ids"]), row["position"] + 1
        relevance = of_row[-size:] if side == "left" else of_row[:size]
        short = {**row, "input_ids": row["input_ids"][:seen]}
        (alone,) = explain("kernel_shap", view, [short], samples=samples)
        assert torch.equal(relevance[seen:], torch.zeros(size - seen, dtype=relevance.dtype))
        torch.testing.assert_close(relevance[:seen], alone, rtol=1e-6, atol=1e-8)
        assert relevance[:seen].all()


@pytest.mark.parametrize("attn", ["eager", "sdpa"])
def test_kernel_shap_gives_nothing_to_tokens_beyond_every_window(attn):
    view = tiny_model("mistral", attn=attn, sliding_window=3)  # two layers look back by two tokens each
    rows = ragged_rows(view)
    for row, of_row in zip(rows, explain("kernel_shap", view, rows, samples=12), strict=True):
        beyond = max(0, len(row["input_ids"]) - 5)
        assert not of_row[:beyond].any()
        assert of_row[beyond:].all()
        near = {**row, "input_ids": row["input_ids"][beyond:], "position": row["position"] - beyond}
        close([of_row[beyond:]], explain("kernel_shap", view, [near], samples=12))


@pytest.mark.parametrize("family", ["t5", "bart"])
def test_kernel_shap_gives_nothing_to_later_tokens_of_a_decoder(family):
    view = tiny_model(family)
    (row,) = ragged_rows(view, (4,))
    longer = {**row, "decoder_input_ids": [view.config.decoder_start_token_id, 7, 8, 9], "position": 1}
    shorter = {**longer, "decoder_input_ids": longer["decoder_input_ids"][:2]}
    for samples in (20, 1000):
        of_longer, of_shorter = (
            METHODS["kernel_shap"](view, Batch.collate([sample], 0), samples=samples) for sample in (longer, shorter)
        )
        assert not of_longer.decoder_tokens[0, 2:].any()
        torch.testing.assert_close(of_longer.tokens, of_shorter.tokens, rtol=1e-6, atol=1e-8)
        torch.testing.assert_close(of_longer.decoder_tokens[:, :2], of_shorter.decoder_tokens, rtol=1e-6, atol=1e-8)


@pytest.mark.thinned(3)
@pytest.mark.parametrize("make", [tiny_model, tiny_classifier], ids=["language model", "classifier"])
@pytest.mark.parametrize("side", ["left", "right"])
def test_kernel_shap_of_a_padded_batch_equals_single_samples(make, family, side):
    view = make(family)
    rows = ragged_rows(view, (3, 9, 5))
    together = METHODS["kernel_shap"](view, Batch.collate(rows, 0, side), samples=40).tokens
    for of_row, row in zip(together, rows, strict=True):
        size = len(row["input_ids"])
        (alone,) = explain("kernel_shap", view, [row], samples=40)
        torch.testing.assert_close(of_row[-size:] if side == "left" else of_row[:size], alone, rtol=1e-6, atol=1e-8)
        assert of_row.count_nonzero() == size


def test_kernel_shap_of_few_patches_is_the_shapley_value():
    view = tiny_model("vit", image_size=(4, 8))
    batch = Batch.collate(picture_rows(view, 2), 0)
    relevance = METHODS["kernel_shap"](view, batch, samples=6)  # the class token and two patches
    twice = METHODS["kernel_shap"](view, batch, samples=200)
    assert torch.equal(relevance.tokens, twice.tokens)
    assert relevance.residual.abs().max() < 1e-9


def test_kernel_shap_draws_from_the_seed_and_leaves_the_generator_alone(view, rows):
    state = torch.random.get_rng_state()
    first, again, other = (explain("kernel_shap", view, rows, samples=12, seed=seed)[2] for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(state, torch.random.get_rng_state())


def test_kernel_shap_of_a_row_of_padding_alone_is_zero(view, rows):
    batch = Batch.collate(rows, 0)
    batch.attention_mask[1] = 0
    tokens = METHODS["kernel_shap"](view, batch, samples=20).tokens
    assert tokens.isfinite().all()
    assert not tokens[1].any()
