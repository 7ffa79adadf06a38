"""Padding, precision and the shapes of results."""

from dataclasses import replace
from itertools import product

import pytest
import torch

from closelook.lrp_core import METHODS, Batch, Request, UnsupportedMethod, UserError, attribute
from closelook.lrp_core.methods.gradients import explain_many
from tests.asked import in_turn
from tests.oracles import rules as oracles
from tests.ruled import embeddings, forward
from tests.tiny import MORE, TINY, ragged_rows, tiny_model

pytestmark = pytest.mark.numeric
HALF = ["bfloat16", "float16"]
DTYPES = ["float64", "float32", *HALF]


@pytest.mark.thinned(3)
@pytest.mark.parametrize(("method", "padded"), in_turn(sorted(METHODS), [*product(TINY, ["left", "right"])], each=2))
def test_padded_batch_equals_single_samples(method, padded):
    """Every method, padded on either side, by family in turn; `verify` has every method of a family in its tests."""
    family, side = padded
    view = tiny_model(family)
    rows = ragged_rows(view)
    together = attribute(method, view, Batch.collate(rows, 0, side))
    for i, row in enumerate(rows):
        alone = attribute(method, view, Batch.collate([row], 0))
        length = len(row["input_ids"])
        kept = together.tokens[i, -length:] if side == "left" else together.tokens[i, :length]
        torch.testing.assert_close(kept, alone.tokens[0], rtol=1e-6, atol=1e-8)
        torch.testing.assert_close(together.explained[i], alone.explained[0])
    assert not together.tokens[Batch.collate(rows, 0, side).attention_mask == 0].any()


@pytest.mark.thinned(6)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("attn", ["sdpa", "eager"])
def test_fully_padded_rows_give_no_nan(family, attn, dtype):
    view = tiny_model(family, dtype=dtype, attn=attn)
    batch = Batch.collate(ragged_rows(view), 0)
    mask = batch.attention_mask.clone()
    mask[1] = 0
    padded = replace(batch, attention_mask=mask)
    for method in METHODS:
        tokens = attribute(method, view, padded).tokens
        assert tokens.isfinite().all()
        assert not tokens[1].any()


@pytest.mark.thinned(5)
@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize(
    "method", ["gradient_l1", "gradient_l2", "gradient_x_input", "lrp", "attnlrp", "attnlrp_explicit"]
)
def test_half_precision_stays_near_double(family, method, dtype):
    exact, half = tiny_model(family), tiny_model(family, dtype=dtype)
    batch = Batch.collate(ragged_rows(exact), 0)
    embedding = "none" if method.startswith("gradient_l") else "partial"
    expected = attribute(method, exact, batch, embedding=embedding).tokens
    relevance = attribute(method, half, batch, embedding=embedding).tokens
    assert relevance.dtype == torch.float32
    assert (relevance - expected).norm() / expected.norm() < (0.1 if dtype == "bfloat16" else 0.02)


@pytest.mark.thinned(4)
@pytest.mark.parametrize(("kind", "asked"), in_turn(sorted(TINY | MORE), [*product(HALF, ["full", "partial"])]))
def test_explicit_attnlrp_agrees_with_modified_gradients_in_half_precision(kind, asked):
    """Every family, in either precision and with either embedding in turn."""
    dtype, embedding = asked
    view = tiny_model(kind, dtype=dtype)
    batch = Batch.collate(ragged_rows(view), 0)
    explicit, modified = (
        attribute(method, view, batch, embedding=embedding, heads=True) for method in ("attnlrp_explicit", "attnlrp")
    )
    tolerance = 0.1 if dtype == "bfloat16" else 0.02
    for name in ("tokens", "heads", "explained", "logit_target", "logit_foil"):
        result, expected = getattr(explicit, name), getattr(modified, name)
        assert result.dtype == expected.dtype == torch.float32
        assert (result - expected).norm() <= tolerance * expected.norm(), name


def test_results_are_double_for_double_models_only(view, batch):
    assert attribute("lrp", view, batch).tokens.dtype == torch.float64


def test_full_and_partial_embeddings_differ_by_the_position_part(view, batch):
    token, full = embeddings(view, batch)
    both = explain_many(view, batch, [Request("lrp"), Request("lrp", embedding="partial")])
    same = torch.equal(both[Request("lrp")].tokens, both[Request("lrp", embedding="partial")].tokens)
    assert same == torch.equal(token, full)


@pytest.mark.thinned(3)
@pytest.mark.parametrize("method", ["gradient_l1", "gradient_x_input", "lrp", "attnlrp", "attnlrp_explicit"])
def test_head_poolings_equal_the_naive_ones(view, batch, method):
    """Reads gradient and value of the head outputs at the output projection, where they are flat."""
    from closelook.lrp_core.methods.gradients import READINGS

    reading = READINGS["attnlrp" if method == "attnlrp_explicit" else method]
    outputs = []
    hooks = [b.output.register_forward_pre_hook(lambda _, args: outputs.append(args[0])) for b in view.blocks]
    logits = forward(view, batch, reading.composite).output["logits"]
    gradients = torch.autograd.grad((logits[:, 0] - logits[:, 1]).sum(), outputs)
    for hook in hooks:
        hook.remove()
    result = attribute(method, view, batch, heads=True).heads  # [B, L, H, P]
    for layer, (gradient, output) in enumerate(zip(gradients, outputs, strict=True)):
        relevance = reading.measure(gradient, output.detach()).unflatten(-1, (view.n_heads, view.head_dim))
        torch.testing.assert_close(result[:, layer], oracles.pool_heads(relevance), rtol=1e-5, atol=1e-7)


def test_rollout_equals_the_naive_product(view):
    rows = ragged_rows(view)
    relevance = attribute("attention_rollout", view, Batch.collate(rows, 0)).tokens
    view.model.set_attn_implementation("eager")
    for row, ours in zip(rows, relevance, strict=True):
        maps = view.model(input_ids=torch.tensor([row["input_ids"]]), output_attentions=True).attentions
        expected = oracles.rollout([attention[0] for attention in maps], row["position"])
        torch.testing.assert_close(ours[: len(expected)], expected, rtol=1e-5, atol=1e-7)


def test_random_relevance_depends_on_the_sample_alone(view, batch):
    first = attribute("random", view, batch).tokens
    assert torch.equal(first, attribute("random", view, batch).tokens)
    assert first[batch.attention_mask == 1].unique().numel() == batch.attention_mask.sum()


def test_no_foil_explains_the_target(view, batch):
    alone = replace(batch, foil_ids=None)
    relevance = attribute("attnlrp", view, alone)
    assert relevance.logit_foil is None
    torch.testing.assert_close(relevance.tokens, attribute("attnlrp", view, batch, explanation="target").tokens)
    with pytest.raises(UserError, match="needs foil_ids"):
        attribute("attnlrp", view, alone, explanation="contrastive")


def test_a_batch_goes_to_a_gpu_by_asynchronous_copies_of_pinned_memory(view, batch, monkeypatch):
    pinned, copies, to = [], [], torch.Tensor.to

    def pin(value):
        pinned.append(value.clone())
        return pinned[-1]

    def copied(value, device, **options):
        copies.append((value, device, options))
        return to(value, "meta")

    with monkeypatch.context() as no_gpu:
        no_gpu.setattr(torch.Tensor, "pin_memory", pin)
        no_gpu.setattr(torch.Tensor, "to", copied)
        moved = batch.to("cuda:0")
    tensors = [value for value in vars(batch).values() if value is not None]
    assert len(tensors) == len(pinned) == len(copies) >= 5
    for value, copy, (source, *how) in zip(tensors, pinned, copies, strict=True):
        assert source is copy
        assert torch.equal(copy, value)
        assert how == ["cuda:0", {"non_blocking": True}]
    assert moved.input_ids.is_meta


def test_a_batch_that_is_there_already_is_not_copied(batch, monkeypatch):
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda value: pytest.fail("nothing is pinned for a CPU"))
    moved = batch.to("cpu")
    assert all(value is getattr(batch, name) for name, value in vars(moved).items())


def test_unknown_choices_name_the_known_ones(view, batch):
    with pytest.raises(UnsupportedMethod, match="did you mean 'attnlrp'"):
        attribute("attn_lrp", view, batch)
    with pytest.raises(UnsupportedMethod, match="random has no explanation 'target'"):
        attribute("random", view, batch, explanation="target")
