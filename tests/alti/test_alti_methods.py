"""ALTI and ALTI-Logit against the oracle, under padding, in groups, and when memory runs out."""

from dataclasses import replace

import pytest
import torch

import closelook.alti.methods
from closelook.alti import METHODS, alti_logit, explain_many
from closelook.lrp_core import Batch, Request, UnsupportedMethod, UserError
from closelook.lrp_core import attribute as core_attribute
from tests.oracles import alti as oracles_alti
from tests.tiny import MORE, TINY, ragged_rows, tiny_model

pytestmark = pytest.mark.numeric
PRE_NORM = {
    "gpt2": {},
    "gpt2 of three layers": {"num_hidden_layers": 3},  # the order of a product of maps shows from three on
    "llama": {},
    "llama ungrouped": {"num_key_value_heads": 4},
    "llama one group": {"num_key_value_heads": 1},
}
CONTRASTIVE, TARGET = (Request("alti_logit", explanation, "none") for explanation in ("contrastive", "target"))
NUMBERS = ("tokens", "initial", "attention", "heads", "pooled", "mlp", "attention_bias", "bias")


@pytest.fixture(params=PRE_NORM)
def pre_norm(request):
    return tiny_model(request.param.split()[0], **PRE_NORM[request.param])


def unpadded(rows, batch: Batch, numbers):
    """The numbers [T] of each sample of [B, T] without its padding."""
    return [x[mask == 1] for x, mask in zip(numbers, batch.attention_mask, strict=True)]


@pytest.mark.thinned(3)
def test_alti_logit_equals_the_oracle(pre_norm):
    rows = ragged_rows(pre_norm)
    batch = Batch.collate(rows, 0)
    relevance = explain_many(pre_norm, batch, [CONTRASTIVE, TARGET], heads=True)
    for request in (CONTRASTIVE, TARGET):
        parts = relevance[request].contributions
        for i, row in enumerate(rows):
            unembedding = pre_norm.unembedding.weight[row["target_id"]]
            if request is CONTRASTIVE:
                unembedding = unembedding - pre_norm.unembedding.weight[row["foil_id"]]
            expected = oracles_alti.alti_logit(pre_norm, torch.tensor(row["input_ids"]), row["position"], unembedding)
            real = batch.attention_mask[i] == 1
            for name in NUMBERS:
                value = getattr(parts, name)[i]
                value = value[..., real] if name in ("tokens", "attention") else value
                torch.testing.assert_close(value, expected[name], rtol=0, atol=1e-10, msg=name)
            assert relevance[request].tokens[i][~real].abs().sum() == 0
        torch.testing.assert_close(relevance[request].heads, parts.pooled)


@pytest.mark.parametrize("side", ["left", "right"])
def test_alti_equals_the_oracle(side):
    view = tiny_model("bert", num_hidden_layers=3)
    rows = ragged_rows(view)
    batch = Batch.collate(rows, 0, side)
    relevance = METHODS["alti"](view, batch)
    for row, tokens in zip(rows, unpadded(rows, batch, relevance.tokens), strict=True):
        expected = oracles_alti.alti(view, torch.tensor(row["input_ids"]), row["position"])
        torch.testing.assert_close(tokens, expected, rtol=0, atol=1e-10)
    assert relevance.residual is None


def test_the_oracle_computes_what_the_model_computes(view):
    if view.family.name not in ("gpt2", "llama", "bert"):
        pytest.skip("no oracle forward for this family")
    ids = torch.tensor(ragged_rows(view)[0]["input_ids"])
    state = view.model.base_model(input_ids=ids[None]).last_hidden_state
    torch.testing.assert_close(oracles_alti.trace(view, ids).hidden, state[0], rtol=0, atol=1e-5)


@pytest.mark.thinned(3)
@pytest.mark.parametrize("name", sorted(TINY | MORE))
def test_tokens_mlps_and_biases_sum_to_the_explained_number_in_every_family(name):
    view = tiny_model(name)
    if METHODS["alti_logit"].missing(view.family.capabilities):
        pytest.skip("alti promises no sum")
    batch = Batch.collate(ragged_rows(view), 0)
    result = explain_many(view, batch, [CONTRASTIVE, TARGET])
    for relevance in result.values():
        torch.testing.assert_close(relevance.contributions.total(), relevance.explained, rtol=0, atol=1e-9)
    attention = result[TARGET].contributions.attention.sum((1, 2)) + result[TARGET].contributions.initial
    torch.testing.assert_close(attention, result[TARGET].tokens.sum(-1), rtol=0, atol=1e-9)


def test_explained_is_what_the_other_methods_explain(pre_norm):
    batch = Batch.collate(ragged_rows(pre_norm), 0)
    other = core_attribute("lrp", pre_norm, batch)
    torch.testing.assert_close(alti_logit(pre_norm, batch).explained, other.explained, rtol=0, atol=1e-12)


def test_contrastive_is_target_minus_foil(pre_norm):
    batch = Batch.collate(ragged_rows(pre_norm), 0)
    relevance = explain_many(pre_norm, batch, [CONTRASTIVE, TARGET])
    foil = alti_logit(pre_norm, Batch(batch.input_ids, batch.attention_mask, batch.position, batch.foil_ids))
    torch.testing.assert_close(
        relevance[CONTRASTIVE].tokens, relevance[TARGET].tokens - foil.tokens, rtol=0, atol=1e-12
    )


def test_the_published_explanation_lacks_the_initial_logit_and_its_parts_still_sum(pre_norm):
    batch = Batch.collate(ragged_rows(pre_norm), 0)
    whole, published = alti_logit(pre_norm, batch), alti_logit(pre_norm, batch, initial=False)
    parts = published.contributions
    less = torch.zeros_like(whole.tokens).scatter_(1, batch.position[:, None], parts.initial[:, None])
    torch.testing.assert_close(published.tokens, whole.tokens - less, rtol=0, atol=1e-12)
    torch.testing.assert_close(parts.total(), published.explained, rtol=0, atol=1e-10)
    torch.testing.assert_close(published.residual, whole.residual - parts.initial, rtol=0, atol=1e-12)


def test_without_foils_the_target_is_explained_and_contrastive_is_an_error(pre_norm):
    batch = Batch.collate([row | {"foil_id": None} for row in ragged_rows(pre_norm)], 0)
    assert alti_logit(pre_norm, batch).logit_foil is None
    with pytest.raises(UserError, match="needs foil_ids"):
        explain_many(pre_norm, batch, [CONTRASTIVE])


def test_the_other_norm_order_names_the_method_to_use():
    causal, masked = tiny_model("gpt2"), tiny_model("bert")
    with pytest.raises(UnsupportedMethod, match="use alti_logit"):
        METHODS["alti"](causal, Batch.collate(ragged_rows(causal), 0))
    with pytest.raises(UnsupportedMethod, match=r"use alti$"):
        METHODS["alti_logit"](masked, Batch.collate(ragged_rows(masked), 0))


def test_forward_is_bit_identical_afterwards(view):
    batch = Batch.collate(ragged_rows(view), 0)
    hidden = view.all_logits(batch)
    METHODS["alti_logit" if view.family.norm_order == "pre" else "alti"](view, batch)
    assert torch.equal(view.all_logits(batch), hidden)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in view.model.modules())


def test_small_budget_gives_the_same_numbers_in_more_groups(view):
    method = METHODS["alti_logit" if view.family.norm_order == "pre" else "alti"]
    batch = Batch.collate(ragged_rows(view, lengths=(7, 6, 10, 9)), 0)
    roomy = method(view, batch)
    tight = method(view, batch, byte_budget=roomy.plans[0].bytes // 3)
    assert len(tight.plans) > len(roomy.plans) == 1
    assert all(plan.bytes <= plan.byte_budget for plan in tight.plans)
    torch.testing.assert_close(tight.tokens, roomy.tokens, rtol=0, atol=1e-12)


def test_a_budget_too_small_for_one_sample_states_the_bytes_needed(view):
    method = METHODS["alti_logit" if view.family.norm_order == "pre" else "alti"]
    batch = Batch.collate(ragged_rows(view), 0)
    with pytest.raises(UserError, match=r"needs (\d+) bytes for one sample of 10 tokens") as error:
        method(view, batch, byte_budget=1000)
    needed = int(str(error.value).split()[2])
    assert len(method(view, batch, byte_budget=needed).plans) == 3


def test_out_of_memory_halves_the_group_then_the_chunk(view, monkeypatch, caplog):
    method = METHODS["alti_logit" if view.family.norm_order == "pre" else "alti"]
    batch = Batch.collate(ragged_rows(view, lengths=(8, 7, 10, 9)), 0)
    whole = method(view, batch)
    compute = closelook.alti.methods._compute

    def scarce(view, batch, maps, explanations, plan):
        if len(batch) > 1 or plan.chunk.vectors > 10:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return compute(view, batch, maps, explanations, plan)

    monkeypatch.setattr(closelook.alti.methods, "_compute", scarce)
    relevance = method(view, batch)
    assert [plan.batch for plan in relevance.plans] == [1, 1, 1, 1]
    assert all(plan.chunk.vectors <= 10 for plan in relevance.plans)
    torch.testing.assert_close(relevance.tokens, whole.tokens, rtol=0, atol=1e-12)
    assert "out of memory" in caplog.text


def test_out_of_memory_at_the_smallest_chunk_is_raised(view, monkeypatch):
    def never(*_):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(closelook.alti.methods, "_compute", never)
    with pytest.raises(torch.OutOfMemoryError):
        METHODS["alti_logit" if view.family.norm_order == "pre" else "alti"](view, Batch.collate(ragged_rows(view), 0))


def test_half_precision_is_close_to_float32(view):
    method = METHODS["alti_logit" if view.family.norm_order == "pre" else "alti"]
    rows = ragged_rows(view)
    exact = method(tiny_model(view.family.name, "float32"), Batch.collate(rows, 0))
    half = method(tiny_model(view.family.name, "bfloat16"), Batch.collate(rows, 0))
    assert half.tokens.dtype == torch.float32
    assert (half.tokens - exact.tokens).norm() < 0.05 * exact.tokens.norm()


def test_texts_that_are_padded_on_the_left_are_refused():
    """Padding behind a text is cut off: called directly, not through a Method, which moves padding there."""
    view = tiny_model("bert")
    batch = Batch.collate(ragged_rows(view), 0)
    left = replace(batch, attention_mask=batch.attention_mask.flip(-1))
    with pytest.raises(UserError, match="pad texts on the right"):
        explain_many(view, left, [Request("alti")])


def test_a_method_of_the_other_norm_order_is_refused():
    view = tiny_model("llama")
    with pytest.raises(UnsupportedMethod):
        explain_many(view, Batch.collate(ragged_rows(view), 0), [Request("alti")])
