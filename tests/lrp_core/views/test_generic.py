"""The family "generic": models that no family describes, explained as their stock forward computes."""

import pytest
import torch
from transformers import AutoConfig, AutoModelForTokenClassification

from closelook.alti import METHODS as VECTORS
from closelook.lrp_core import (
    METHODS,
    Batch,
    ModelView,
    UnsupportedMethod,
    UnsupportedModel,
    UserError,
    load_model,
    random_model,
)
from closelook.lrp_core.families import FAMILIES, check_type
from closelook.lrp_core.families.generic import generic_family
from closelook.lrp_core.interventions.tokens import tokens_removed
from closelook.lrp_core.opening.model import view_of
from closelook.lrp_core.readers.predictions import with_predictions
from closelook.lrp_core.verification.architectures import architectures
from closelook.lrp_core.verification.architectures import tiny_model as tiny_architecture
from tests.asked import CLOSE, close, explain
from tests.oracles import methods as oracles
from tests.tiny import ragged_rows

pytestmark = pytest.mark.numeric
EVERY = {**METHODS, **VECTORS}
RULED = ("lrp", "attnlrp", "lrp_identity_softmax", "lrp_distributed_bias")
KNOWN = {
    *("gradient_l1", "gradient_l2", "gradient_x_input", "integrated_gradients", "smoothgrad"),
    *("kernel_shap", "occlusion", "random"),
    *RULED,
}
FEW = {"kernel_shap": {"samples": 8}, "smoothgrad": {"samples": 2}, "integrated_gradients": {"steps": 2}}
_SIZES = {"vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4}
_MORE = {**_SIZES, "intermediate_size": 24, "max_position_embeddings": 32}
_XLM = {"vocab_size": 50, "emb_dim": 16, "n_layers": 2, "n_heads": 4, "max_position_embeddings": 32}
_BLOOM = {"vocab_size": 50, "hidden_size": 16, "n_layer": 2, "n_head": 4}
#: Positions by a bias of attention, by rotation, in a table, and in one that begins behind the padding token's id.
MODELS = {
    "bloom": ("bloom", _BLOOM),
    "falcon": ("falcon", {**_SIZES, "alibi": False, "max_position_embeddings": 32}),
    "rembert": ("rembert", {**_MORE, "input_embedding_size": 8, "output_embedding_size": 8, "pad_token_id": 0}),
    "camembert": ("camembert", {**_MORE, "max_position_embeddings": 34, "pad_token_id": 1}),
    "xlm": ("xlm", {**_XLM, "pad_token_id": 0}),
    "rembert classifier": (
        "rembert",
        {**_MORE, "input_embedding_size": 8, "architectures": ["RemBertForSequenceClassification"], "num_labels": 3},
    ),
    "bloom classifier": ("bloom", {**_BLOOM, "architectures": ["BloomForSequenceClassification"], "num_labels": 3}),
}


def made(name: str, dtype: str = "float64") -> ModelView:
    family, config = MODELS[name]
    view = random_model(AutoConfig.for_model(family, **config), family="generic")
    generator = torch.Generator().manual_seed(0)
    for parameter in view.model.parameters():
        centre, spread = (parameter.mean(), 0.2) if parameter.dim() == 1 else (0.0, parameter.shape[-1] ** -0.5)
        parameter.copy_(centre + spread * torch.randn(parameter.shape, generator=generator))
    return view_of(view.model.to(getattr(torch, dtype)), "generic")


@pytest.fixture(params=MODELS)
def view(request) -> ModelView:
    assert MODELS[request.param][0] not in FAMILIES
    return made(request.param)


@pytest.fixture
def rows(view) -> list[dict]:
    return ragged_rows(view, lengths=(6, 4, 6))


def stock(view: ModelView, row: dict) -> torch.Tensor:
    """Logits of the stock model on token ids, as its users call it."""
    types = row.get("token_type_ids")
    options = {} if types is None else {"token_type_ids": torch.tensor([types])}
    return oracles.read(view, row, oracles.stock(view, input_ids=torch.tensor([row["input_ids"]]), **options).logits[0])


@pytest.mark.thinned(2)
def test_padded_batch_equals_the_stock_model_on_single_samples(view, rows):
    if view.n_segments > 1:
        rows = [
            row | {"token_type_ids": [int(2 * t > len(row["input_ids"])) for t, _ in enumerate(row["input_ids"])]}
            for row in rows
        ]
    for name in sorted(KNOWN):
        together = {
            side: METHODS[name](view, Batch.collate(rows, 0, side), **FEW.get(name, {})) for side in ("left", "right")
        }
        for i, row in enumerate(rows):
            length = len(row["input_ids"])
            alone = METHODS[name](view, Batch.collate([row], 0), **FEW.get(name, {})).tokens[0]
            torch.testing.assert_close(together["left"].tokens[i, -length:], alone, rtol=1e-6, atol=1e-8, msg=name)
            torch.testing.assert_close(together["right"].tokens[i, :length], alone, rtol=1e-6, atol=1e-8, msg=name)
            torch.testing.assert_close(together["left"].logit_foil[i], stock(view, row)[row["foil_id"]], **CLOSE)


@pytest.mark.thinned(3)
def test_gradients_are_those_of_the_stock_model(view, rows):
    tokens = [oracles.tokens(view, row) for row in rows]
    for explanation in ("contrastive", "log_prob"):
        gradients = [oracles.gradient(view, row, x, explanation) for row, x in zip(rows, tokens, strict=True)]
        norms = [gradient.abs().sum(-1) for gradient in gradients]
        close(explain("gradient_l1", view, rows, explanation=explanation), norms)
        products = [(g * x).abs().sum(-1) for g, x in zip(gradients, tokens, strict=True)]
        close(explain("gradient_x_input", view, rows, explanation=explanation, reduce="l1"), products)
    path = [oracles.integrated_gradients(view, row, "contrastive", 2, "right", torch.tensor(0.0)) for row in rows]
    relevance = explain("integrated_gradients", view, rows, steps=2, reduce="l1")
    close(relevance, [product.abs().sum(-1) for product in path])


@pytest.mark.thinned(3)
def test_perturbations_equal_one_forward_a_token(view, rows):
    close(explain("occlusion", view, rows), [oracles.occlusion(view, row, "contrastive", "zero") for row in rows])
    if view.kind.causal:
        relevance = explain("occlusion", view, rows, how="delete")
        close(relevance, [oracles.occlusion(view, row, "contrastive", "delete") for row in rows])
    if view.kind.slot:
        for row in rows:
            row["input_ids"][row["position"]] = 3  # the mask token
        relevance = explain("occlusion", view, rows, how="mask")
        close(relevance, [oracles.occlusion(view, row, "contrastive", "mask") for row in rows])


def test_what_is_said_of_the_whole_vocabulary_is_that_of_the_stock_model(view, rows):
    batch = Batch.collate(rows, 0)
    logits = torch.stack([stock(view, row) for row in rows])
    torch.testing.assert_close(view.all_logits(batch)[:, -1], logits)
    predicted = with_predictions(view, [row | {"target_id": None} for row in rows])
    assert [row["target_id"] for row in predicted] == logits.argmax(-1).tolist()
    removed = torch.zeros_like(batch.attention_mask).bool()
    removed[:, 1] = True
    with tokens_removed(view, batch, removed, "zero") as changed:
        gone = view.logits(changed)
    assert not torch.isclose(gone, view.logits(batch)).any()


def test_what_needs_a_description_is_refused_by_name(view, rows):
    batch = Batch.collate(rows, 0)
    assert {name for name, method in EVERY.items() if not method.missing(view.family.capabilities)} == KNOWN
    for name in EVERY.keys() - KNOWN:
        with pytest.raises(UnsupportedMethod, match=rf"^{name} needs .*, which {view.family.name} .* 'generic' do not"):
            EVERY[name](view, batch)
    with pytest.raises(UnsupportedMethod, match=r"of the full embedding needs .*: ask for embedding 'partial'"):
        METHODS["gradient_x_input"](view, batch, embedding="full")
    with pytest.raises(UnsupportedMethod, match="relevance of attention heads needs attention weights"):
        METHODS["gradient_l1"](view, batch, heads=True)


@pytest.mark.thinned(3)
def test_the_model_is_bit_identical_afterwards(view, rows):
    before = stock(view, rows[0])
    for name in sorted(KNOWN):
        METHODS[name](view, Batch.collate(rows, 0), **FEW.get(name, {}))
        assert torch.equal(stock(view, rows[0]), before), name


#: Architectures that no family describes, with rotary or no positions: relevance of their words is all there is.
RUN = {
    "qwen3_moe": {
        **_MORE,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 12,
    },
    "gpt_oss": {**_MORE, "num_key_value_heads": 2, "head_dim": 4, "num_local_experts": 4, "num_experts_per_tok": 2},
    "falcon": {**_SIZES, "alibi": False, "max_position_embeddings": 32},
    "mamba": {"vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 2, "state_size": 8},
}


def without_biases(model_type: str) -> ModelView:
    """A model whose logits are sums of what its words give: its biases are 0."""
    view = random_model(AutoConfig.for_model(model_type, pad_token_id=0, **RUN[model_type]), dtype="float64")
    generator = torch.Generator().manual_seed(0)
    for name, parameter in view.model.named_parameters():
        if "bias" in name:
            parameter.zero_()
        elif parameter.dim() > 1:
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * parameter.shape[-1] ** -0.5)
    return view


@pytest.mark.parametrize("model_type", RUN)
def test_lrp_of_an_undescribed_model_sums_to_its_logit_and_padding_changes_nothing(model_type):
    view = without_biases(model_type)
    rows = ragged_rows(view, lengths=(6, 4, 6))
    for name in ("lrp", "attnlrp"):
        for side in ("left", "right"):
            together = METHODS[name](view, Batch.collate(rows, 0, side))
            if name == "lrp":
                torch.testing.assert_close(together.tokens.sum(1), together.explained, rtol=1e-6, atol=1e-7)
            for i, row in enumerate(rows):
                length = len(row["input_ids"])
                alone = METHODS[name](view, Batch.collate([row], 0)).tokens[0]
                there = together.tokens[i, -length:] if side == "left" else together.tokens[i, :length]
                torch.testing.assert_close(there, alone, rtol=1e-7, atol=1e-9)
                expected = stock(view, row)[row["foil_id"]]
                torch.testing.assert_close(together.logit_foil[i], expected, rtol=1e-5, atol=1e-6)


def test_labels_of_a_text_share_its_forward_pass():
    view = made("rembert classifier")
    rows = ragged_rows(view, lengths=(6, 4, 6))
    several = [row | {"target_id": label} for label in range(3) for row in rows]
    together = METHODS["attnlrp"](view, Batch.collate(several, 0), explanation="target", texts=3)
    alone = METHODS["attnlrp"](view, Batch.collate(several, 0), explanation="target")
    torch.testing.assert_close(together.tokens, alone.tokens, rtol=1e-7, atol=1e-9)


def test_an_operation_without_a_rule_is_refused_by_name_and_gradients_are_not():
    view = without_biases("falcon")
    view.model.transformer.ln_f.register_forward_hook(lambda module, args, output: torch.cos(output))
    batch = Batch.collate(ragged_rows(view), 0)
    with pytest.raises(
        UnsupportedModel, match=r"no rule for torch.cos of a tensor that carries relevance \(transformer"
    ):
        METHODS["lrp"](view, batch)
    assert METHODS["gradient_l1"](view, batch).tokens.isfinite().all()


def test_loading_takes_a_model_that_no_family_describes(tmp_path):
    view = made("rembert", "float32")
    view.model.save_pretrained(tmp_path)
    loaded = load_model(tmp_path)
    assert (loaded.kind, loaded.family) == (view.kind, view.family)
    batch = Batch.collate(ragged_rows(view), 0)
    for parameter, other in zip(loaded.model.parameters(), view.model.parameters(), strict=True):
        assert torch.equal(parameter, other)
    torch.testing.assert_close(loaded.all_logits(batch), view.all_logits(batch))
    with pytest.raises(UserError, match="unknown family 'bert': give 'generic'"):
        load_model(tmp_path, family="bert")


def test_models_that_run_in_no_known_way_are_refused():
    with pytest.raises(UnsupportedModel, match="no family describes 'gemma3n_text' models"):
        check_type("gemma3n_text")
    with pytest.raises(UnsupportedModel):
        generic_family(AutoConfig.for_model("gemma3n_text"))


REFUSED = {
    "gemma3n_text models embed the tokens again in every layer, which no embedding stands for": (
        "gemma3n_text",
        {"vocab_size": 50, "num_hidden_layers": 1},
    ),
    "XLNetLMHeadModel lets later tokens change earlier predictions, as no causal model does": (
        "xlnet",
        {"vocab_size": 50, "d_model": 16, "n_layer": 2, "n_head": 4, "d_inner": 24},
    ),
    "are supported with problem_type=.* only, not multi_label": (
        "rembert",
        {**MODELS["rembert classifier"][1], "problem_type": "multi_label_classification"},
    ),
}


@pytest.mark.parametrize("message", REFUSED)
def test_a_model_that_no_method_would_explain_is_refused_when_loaded(message):
    family, config = REFUSED[message]
    with pytest.raises(UnsupportedModel, match=message) as error:
        random_model(AutoConfig.for_model(family, **config), family="generic")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("family", ["camembert", "bloom", "rembert"])
@pytest.mark.parametrize("vocabulary", [2, 5, 6])
def test_a_vocabulary_may_be_smaller_than_what_a_model_is_tried_on(family, vocabulary):
    config = AutoConfig.for_model(family, **{**MODELS[family][1], "vocab_size": vocabulary, "eos_token_id": 1})
    view = random_model(config, dtype="float64", family="generic")
    row = {"input_ids": [view.config.pad_token_id == 0] * 4, "position": 3, "target_id": 0, "foil_id": 1}
    row["input_ids"] = [int(token) for token in row["input_ids"]]
    relevance = METHODS["occlusion"](view, Batch.collate([row], 0))
    torch.testing.assert_close(relevance.logit_target[0], stock(view, row)[0], **CLOSE)


PADDING = ("xlm-roberta", "camembert", "mpnet", "rembert", "bloom")
PADDED = {
    **_MORE,
    "max_position_embeddings": 44,
    "pad_token_id": 1,
    "n_layer": 2,
    "n_head": 4,
    "input_embedding_size": 8,
}


@pytest.mark.parametrize("family", PADDING)
def test_a_padding_token_inside_a_text_is_read_as_the_stock_model_reads_it(family):
    config = AutoConfig.for_model(family, **PADDED)
    view = random_model(config, family="generic")
    rows = ragged_rows(view, lengths=(6, 5))
    rows[1]["input_ids"][1] = view.config.pad_token_id
    batch = Batch.collate(rows, 1)
    relevance = METHODS["occlusion"](view, batch)
    for i, row in enumerate(rows):
        torch.testing.assert_close(relevance.logit_target[i], stock(view, row)[row["target_id"]], rtol=1e-4, atol=1e-5)


def test_a_head_that_predicts_neither_tokens_nor_labels_is_refused_by_name():
    model = AutoModelForTokenClassification.from_config(AutoConfig.for_model("rembert", **MODELS["rembert"][1]))
    classes = "RemBertForMaskedLM or RemBertForCausalLM or RemBertForSequenceClassification"
    with pytest.raises(UnsupportedModel, match=f"RemBertForTokenClassification predicts neither .*: give a {classes}"):
        view_of(model, "generic")


def test_a_class_in_which_rules_lose_relevance_has_gradients_alone():
    [kimi] = [each for each in architectures(["causal"]) if each.name == "KimiLinearForCausalLM"]
    view = view_of(tiny_architecture(kimi))
    batch = Batch.collate(ragged_rows(view, lengths=(6, 4)), 0)
    assert METHODS["gradient_x_input"](view, batch).tokens.abs().max() > 0
    with pytest.raises(UnsupportedModel, match="rules lose relevance in KimiLinearForCausalLM"):
        METHODS["lrp"](view, batch)
