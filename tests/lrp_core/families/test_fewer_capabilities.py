"""DeBERTa: what needs no weights of its attention is exact; everything else is refused by name."""

from dataclasses import replace

import pytest
import torch

from closelook.alti import METHODS as VECTORS
from closelook.lrp_core import METHODS, Batch, ModelView, UnsupportedMethod, UnsupportedModel, UserError, random_model
from closelook.lrp_core.device.precision import unrounded
from closelook.lrp_core.records.capabilities import ATTENTION
from closelook.lrp_core.verification.stock import without_biases
from tests.asked import CLOSE, close, explain
from tests.oracles import methods as oracles
from tests.oracles import states as oracles_states
from tests.tiny import ragged_rows, tiny_classifier, tiny_config, tiny_model

pytestmark = pytest.mark.numeric
NAME = "deberta-v2"
EVERY = {**METHODS, **VECTORS}
KNOWN = {
    *("gradient_l1", "gradient_l2", "gradient_x_input", "integrated_gradients", "smoothgrad"),
    *("kernel_shap", "occlusion", "embedding_norm", "logat", "normxlogit", "random"),
    *("lrp", "attnlrp", "attnlrp_explicit", "lrp_identity_softmax", "lrp_distributed_bias"),
}

FEW = {"kernel_shap": {"samples": 8}, "smoothgrad": {"samples": 2}, "integrated_gradients": {"steps": 2}}


@pytest.fixture(params=["words", "labels", "score"])
def view(request) -> ModelView:
    if request.param == "words":
        return tiny_model(NAME)
    return tiny_classifier(NAME, labels=3 if request.param == "labels" else 1)


@pytest.fixture
def rows(view) -> list[dict]:
    return ragged_rows(view)


def stock(view: ModelView, row: dict) -> torch.Tensor:
    """Logits of the stock model on token ids, as its users call it."""
    return oracles.read(view, row, oracles.stock(view, input_ids=torch.tensor([row["input_ids"]])).logits[0])


@pytest.mark.thinned(3)
@pytest.mark.parametrize("side", ["left", "right"])
def test_padded_batch_equals_the_stock_model_on_single_samples(view, rows, side):
    for name in sorted(KNOWN):
        options = FEW.get(name, {})
        together = METHODS[name](view, Batch.collate(rows, 0, side), **options)
        for i, row in enumerate(rows):
            alone, length = METHODS[name](view, Batch.collate([row], 0), **options), len(row["input_ids"])
            kept = together.tokens[i, -length:] if side == "left" else together.tokens[i, :length]
            torch.testing.assert_close(kept, alone.tokens[0], rtol=1e-6, atol=1e-7, msg=name)
            torch.testing.assert_close(together.logit_target[i], stock(view, row)[row["target_id"]], **CLOSE)


def test_gradients_are_those_of_the_stock_model(view, rows):
    explanation = "target" if view.predicts_score else "contrastive"
    tokens = [oracles.tokens(view, row) for row in rows]
    gradients = [oracles.gradient(view, row, x, explanation) for row, x in zip(rows, tokens, strict=True)]
    close(explain("gradient_l1", view, rows), [g.abs().sum(-1) for g in gradients])
    products = [g * x for g, x in zip(gradients, tokens, strict=True)]
    for embedding in ("full", "partial"):  # positions are added in attention: the token's embedding is all there is
        relevance = explain("gradient_x_input", view, rows, embedding=embedding, reduce="l1")
        close(relevance, [product.abs().sum(-1) for product in products])
        # the sum is 0 up to the norm's epsilon: the norm behind the embedding undoes any scaling of its input
        relevance = explain("gradient_x_input", view, rows, embedding=embedding)
        torch.testing.assert_close(relevance, [product.sum(-1) for product in products], **CLOSE)
    paths = [oracles.integrated_gradients(view, row, explanation, 3, "right", torch.tensor(0.0)) for row in rows]
    close(explain("integrated_gradients", view, rows, steps=3, reduce="l1"), [path.abs().sum(-1) for path in paths])


def test_lrp_conserves_logit_when_biases_are_zero(view, rows):
    with without_biases(view.model):
        residual = METHODS["lrp"](view, Batch.collate(rows, 0)).residual
    torch.testing.assert_close(residual, torch.zeros_like(residual), rtol=0, atol=1e-10)


def test_perturbations_equal_one_forward_a_token(view, rows):
    explanation = "target" if view.predicts_score else "contrastive"
    close(explain("occlusion", view, rows), [oracles.occlusion(view, row, explanation, "zero") for row in rows])
    if view.kind.slot:
        for row in rows:
            row["input_ids"][row["position"]] = 3  # the mask token
        relevance = explain("occlusion", view, rows, how="mask")
        close(relevance, [oracles.occlusion(view, row, explanation, "mask") for row in rows])


def test_logat_is_the_stock_head_on_each_token_as_if_it_were_read(view, rows):
    relevance = METHODS["logat"](view, Batch.collate(rows, 0), layers=True).layers
    norms = explain("embedding_norm", view, rows)
    for i, row in enumerate(rows):
        ids = torch.tensor([row["input_ids"]])
        # transformers' own states: what leaves the first block goes through a convolution
        with unrounded(view.dtype):
            (entering,), *states = view.model.deberta(ids, output_hidden_states=True).hidden_states
        torch.testing.assert_close(norms[i], entering.norm(dim=-1))
        for layer, (state,) in enumerate(states):
            read = oracles_states.logat(view, row, state)
            says = (read[:, 0] - stock(view, row)[0]).abs() if view.predicts_score else read[:, 0] - read[:, 1]
            if layer + 1 == view.n_layers or not view.predicts_score:
                torch.testing.assert_close(relevance[i, layer, : len(read)], says, **CLOSE)


def test_what_needs_its_attention_is_refused_by_name(view, rows):
    batch = Batch.collate(rows, 0)
    assert {name for name, method in EVERY.items() if not method.missing(view.family.capabilities)} == KNOWN
    title = "deberta-v2 models with labels" if view.kind.labels else "deberta-v2 models"
    for name in EVERY.keys() - KNOWN:
        lacking = EVERY[name].missing(view.family.capabilities)
        assert ATTENTION in lacking
        with pytest.raises(UnsupportedMethod) as error:
            EVERY[name](view, batch)
        says = " and ".join(need.says for need in lacking)
        assert str(error.value) == f"{name} needs {says}, which {title} do not have"
    with pytest.raises(
        UnsupportedMethod, match="relevance of attention heads needs attention weights that can be read, which"
    ):
        METHODS["gradient_l1"](view, batch, heads=True)


def test_the_model_is_bit_identical_afterwards_and_padding_alone_gives_nothing(view, rows):
    before, batch = stock(view, rows[0]), Batch.collate(rows, 0)
    mask = batch.attention_mask.clone()
    mask[1] = 0
    for name in sorted(KNOWN):
        tokens = METHODS[name](view, replace(batch, attention_mask=mask), **FEW.get(name, {})).tokens
        assert tokens.isfinite().all(), name
        assert not tokens[1].any(), name
        assert torch.equal(stock(view, rows[0]), before), name


def test_variants_that_are_not_described_are_refused_when_loaded():
    for field, value in (("position_biased_input", True), ("type_vocab_size", 2), ("legacy", False)):
        with pytest.raises(UnsupportedModel, match=f"{NAME} models are supported with {field}=.* only, not {value}"):
            random_model(tiny_config(NAME, **{field: value}))
    view = tiny_classifier(NAME)
    paired = Batch.collate([row | {"token_type_ids": [0] * len(row["input_ids"])} for row in ragged_rows(view)], 0)
    with pytest.raises(UserError, match="have no segments: leave token_type_ids out"):
        METHODS["random"](view, paired)
