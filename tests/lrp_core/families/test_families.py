"""Families beyond the three of Close Look are data: the same claims hold for them without a line of code."""

import pytest
import torch
from transformers import AutoConfig, AutoModel, AutoModelForTokenClassification

from closelook.lrp_core import Batch, Request, UnsupportedModel, attribute, random_model
from closelook.lrp_core.families import FAMILIES, family_of
from closelook.lrp_core.methods.gradients import explain_explicitly
from closelook.lrp_core.opening.model import view_of
from tests.ruled import embeddings
from tests.tiny import BOTH, FEWER, IMAGES, MORE, TINY, ragged_rows, tiny_config, tiny_model

pytestmark = pytest.mark.numeric


def test_every_registered_family_is_tested():
    assert set(FAMILIES) == set(TINY) | set(MORE) | set(FEWER) | set(IMAGES) | set(BOTH)


@pytest.fixture(params=sorted(MORE))
def family(request):
    """In place of the three families of the other tests."""
    return request.param


@pytest.mark.thinned(4)
@pytest.mark.parametrize("side", ["left", "right"])
def test_padded_batch_equals_the_stock_model_on_single_samples(view, side):
    rows = ragged_rows(view)
    batch = Batch.collate(rows, 0, side)
    for i, row in enumerate(rows):
        stock = view.model(input_ids=torch.tensor([row["input_ids"]])).logits[0, row["position"]]
        relevance = attribute("attnlrp", view, batch)
        torch.testing.assert_close(relevance.logit_target[i], stock[row["target_id"]], rtol=1e-5, atol=1e-5)
        alone = attribute("attnlrp", view, Batch.collate([row], 0)).tokens[0]
        length = len(row["input_ids"])
        kept = relevance.tokens[i, -length:] if side == "left" else relevance.tokens[i, :length]
        torch.testing.assert_close(kept, alone, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("pad", [0, 1, 7])
def test_padding_tokens_inside_a_text_are_counted_as_the_stock_model_counts_them(pad):
    view = tiny_model("roberta", pad_token_id=pad, max_position_embeddings=44)
    rows = ragged_rows(view)
    for row in rows:
        row["input_ids"][1] = row["input_ids"][-1] = pad
    for side in ("left", "right"):
        batch = Batch.collate(rows, pad, side)
        stock = [view.model(input_ids=torch.tensor([row["input_ids"]])).logits[0, row["position"]] for row in rows]
        expected = torch.stack([logits[row["target_id"]] for logits, row in zip(stock, rows, strict=True)])
        for method in ("lrp", "atman", "occlusion"):
            torch.testing.assert_close(attribute(method, view, batch).logit_target, expected, rtol=1e-5, atol=1e-6)
        _, full = embeddings(view, batch)
        module = view.model.roberta.embeddings
        for i, row in enumerate(rows):
            real = slice(-len(row["input_ids"]), None) if side == "left" else slice(len(row["input_ids"]))
            alone = module(input_ids=torch.tensor([row["input_ids"]]))[0]
            torch.testing.assert_close(module.LayerNorm(full[i, real]), alone)


@pytest.mark.thinned(3)
def test_lrp_conserves_logit_when_biases_are_zero(view, batch):
    for name, parameter in view.model.named_parameters():
        if name.endswith("bias"):
            parameter.zero_()
    residual = attribute("lrp", view, batch).residual
    torch.testing.assert_close(residual, torch.zeros_like(residual), atol=1e-10, rtol=0)


@pytest.mark.thinned(4)
@pytest.mark.parametrize("embedding", ["full", "partial"])
def test_explicit_attnlrp_agrees_with_modified_gradients(view, batch, embedding):
    request = Request("attnlrp_explicit", "contrastive", embedding)
    explicit = explain_explicitly(view, batch, [request], heads=True, epsilon=1e-12)[request]
    modified = attribute("attnlrp", view, batch, embedding=embedding, heads=True)
    torch.testing.assert_close(explicit.tokens, modified.tokens, rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(explicit.heads, modified.heads, rtol=1e-6, atol=1e-9)


@pytest.mark.thinned(3)
def test_model_is_bit_identical_afterwards(family):
    view = tiny_model(family, dtype="float32")
    batch = Batch.collate(ragged_rows(view), 0)
    before = view.model(input_ids=batch.input_ids).logits
    for method in ("gradient_x_input", "lrp", "attnlrp", "attnlrp_explicit", "attention_rollout"):
        attribute(method, view, batch, **({"checkpoint": True} if method == "lrp" else {}))
        assert torch.equal(view.model(input_ids=batch.input_ids).logits, before)


def test_value_weights_reproduce_the_values(view, batch):
    seen = {}
    block = view.blocks[0]
    hook = block.value.register_forward_hook(lambda _, args, y: seen.update(x=args[0], y=y))
    view.all_logits(batch)
    hook.remove()
    weight, bias = block.value_weights()
    values = torch.einsum("gkd,btd->btgk", weight, seen["x"]) + (0 if bias is None else bias)
    if view.family.qkv == "per_head":
        stock = seen["y"].unflatten(-1, (view.n_heads, 3, view.head_dim))[..., 2, :]
    else:  # values alone, or last
        stock = seen["y"].unflatten(-1, (-1, view.head_dim))[..., -view.n_kv_heads :, :]
    torch.testing.assert_close(values, stock)


def test_unknown_family_lists_the_supported_ones():
    with pytest.raises(UnsupportedModel, match=r"no family describes 'gemma3n_text' models; supported: bert, .*gemma"):
        family_of(AutoConfig.for_model("gemma3n_text"))


@pytest.mark.parametrize("kind", ["linear", "llama3", "yarn"])
def test_rotary_positions_that_no_neighbour_changes_are_supported(kind):
    more = {"low_freq_factor": 1.0, "high_freq_factor": 4.0} if kind == "llama3" else {}
    if kind != "linear":
        more["original_max_position_embeddings"] = 8
    view = tiny_model(
        "llama",
        rope_parameters={"rope_type": kind, "rope_theta": 1e4, "factor": 4.0, **more},
        max_position_embeddings=32,
    )
    rows = ragged_rows(view, lengths=(6, 20))
    together, alone = (attribute("attnlrp", view, Batch.collate(some, 0)) for some in (rows, rows[:1]))
    torch.testing.assert_close(together.tokens[0, :6], alone.tokens[0], rtol=1e-6, atol=1e-8)


OTHER_HEADS = [AutoModel, AutoModelForTokenClassification]


@pytest.mark.parametrize("auto", OTHER_HEADS)
@pytest.mark.parametrize("name", ["bert", "gpt2", "llama"])
def test_model_without_language_modelling_head_is_refused_when_wrapped(name, auto):
    model = auto.from_config(tiny_config(name))
    with_head = {"bert": "BertForMaskedLM", "gpt2": "GPT2LMHeadModel", "llama": "LlamaForCausalLM"}[name]
    with pytest.raises(
        UnsupportedModel, match=f"{type(model).__name__} has no language-modelling head: give a {with_head}"
    ):
        view_of(model)


@pytest.mark.parametrize("activation", ["mish", "quick_gelu"])
def test_an_activation_is_explained_by_what_it_computes(activation):
    view = random_model(tiny_config("gpt2", activation_function=activation), dtype="float64")
    for name, parameter in view.model.named_parameters():
        if name.endswith("bias"):
            parameter.zero_()
    residual = attribute("lrp", view, Batch.collate(ragged_rows(view), 0)).residual
    torch.testing.assert_close(residual, torch.zeros_like(residual), atol=1e-10, rtol=0)
