"""Encoder-decoders: the same promises, over the tokens of the encoder and of the decoder."""

import copy

import numpy as np
import pytest
import torch
from transformers import T5ForSequenceClassification

from closelook.lrp_core import METHODS, Batch, UnsupportedMethod, UnsupportedModel, UnusableRows, UserError, attribute
from closelook.lrp_core.interventions.heads import branches, heads_removed
from closelook.lrp_core.interventions.tokens import tokens_removed
from closelook.lrp_core.opening.model import view_of
from closelook.lrp_core.operations.forward import logits_at
from closelook.lrp_core.readers.predictions import predicted, rows_for
from closelook.lrp_core.records.variants import tiled
from closelook.lrp_core.rules import ATTNLRP, LRP
from closelook.lrp_core.verification.stock import without_biases
from tests.oracles import encoder_decoder as oracles_encoder_decoder
from tests.oracles import methods as oracles_methods
from tests.oracles import rules as oracles
from tests.ruled import forward
from tests.tiny import BOTH, T5_RELU, ragged_rows, tiny_config, tiny_model

pytestmark = pytest.mark.numeric
VARIANTS = {"t5": ("t5", {}), "t5_relu": ("t5", T5_RELU), "bart": ("bart", {})}
REFUSED = ("attnlrp_explicit", "value_zeroing", "embedding_norm", "logat", "normxlogit")
APPLY = [name for name in METHODS if name not in REFUSED]


#: Few points suffice where a claim is about each of them.
QUICK = {"kernel_shap": {"samples": 20}, "integrated_gradients": {"steps": 3}, "smoothgrad": {"samples": 2}}


@pytest.fixture(params=["t5", "bart"])
def family(request):
    return request.param


@pytest.fixture
def view(family):
    name, changes = VARIANTS[family]
    return tiny_model(name, **changes)


def stock(view, row):
    inputs = {name: torch.tensor([row[name]]) for name in ("input_ids", "decoder_input_ids")}
    return oracles_methods.stock(view, **inputs).logits[0, row["position"]]


@pytest.mark.thinned(4)
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("method", APPLY)
def test_padded_batch_equals_single_samples(view, method, side):
    rows = ragged_rows(view)[1:]
    options = QUICK.get(method, {})
    together = attribute(method, view, Batch.collate(rows, 0, side), **options)
    for i, row in enumerate(rows):
        alone = attribute(method, view, Batch.collate([row], 0), **options)
        length, seen = len(row["input_ids"]), len(row["decoder_input_ids"])
        kept = together.tokens[i, -length:] if side == "left" else together.tokens[i, :length]
        torch.testing.assert_close(kept, alone.tokens[0], rtol=1e-6, atol=1e-8)
        if together.decoder_tokens is not None:
            torch.testing.assert_close(together.decoder_tokens[i, :seen], alone.decoder_tokens[0], rtol=1e-6, atol=1e-8)
            assert not together.decoder_tokens[i, seen:].any()
        torch.testing.assert_close(together.logit_target[i], stock(view, row)[row["target_id"]], rtol=1e-6, atol=1e-6)
    assert not together.tokens[Batch.collate(rows, 0, side).attention_mask == 0].any()


@pytest.mark.thinned(3)
@pytest.mark.parametrize("family", sorted(VARIANTS))
@pytest.mark.parametrize("method", ["lrp", "attnlrp"])
@pytest.mark.parametrize("attn", ["sdpa", "eager"])
def test_relevance_is_that_of_the_printed_rules_layer_by_layer(family, method, attn):
    name, changes = VARIANTS[family]
    view = tiny_model(name, attn=attn, **changes)
    for row in ragged_rows(view, lengths=(5, 4, 6))[1:]:
        ours = attribute(method, view, Batch.collate([row], 0), explanation="target")
        tokens, seen, logit = oracles_encoder_decoder.relevance_of(
            view.model, row["input_ids"], row["decoder_input_ids"], row["target_id"], attnlrp=method == "attnlrp"
        )
        torch.testing.assert_close(ours.explained[0], logit, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(ours.tokens[0], tokens, rtol=1e-5, atol=1e-7)
        torch.testing.assert_close(ours.decoder_tokens[0], seen, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("family", sorted(VARIANTS))
@pytest.mark.parametrize("explanation", ["contrastive", "target"])
def test_lrp_conserves_logit_when_biases_are_zero(view, explanation):
    batch = Batch.collate(ragged_rows(view), 0)
    with without_biases(view.model):
        relevance = attribute("lrp", view, batch, explanation=explanation)
    total = relevance.tokens.sum(-1) + relevance.decoder_tokens.sum(-1)
    torch.testing.assert_close(total, relevance.explained, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(relevance.residual, torch.zeros(3, dtype=torch.float64), rtol=0, atol=1e-10)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("family", sorted(VARIANTS))
@pytest.mark.parametrize("composite", [LRP, ATTNLRP], ids=lambda composite: composite.name)
def test_what_is_missing_from_the_sum_is_what_biases_and_softmax_absorb(view, composite):
    """Gradient times value of everything that enters as a constant: positions count as input, all else is absorbed."""
    batch = Batch.collate(ragged_rows(view, lengths=(6, 6, 6))[:2], 0)
    relevance = attribute(composite.name, view, batch, explanation="target")
    outputs = []
    biased = [m for m in view.model.modules() if getattr(m, "bias", None) is not None]  # linear layers and norms
    hooks = [m.register_forward_hook(lambda m, _, y: outputs.append((m, y))) for m in biased]
    logit = forward(view, batch, composite).output["logits"][:, 0].sum()
    gradients = torch.autograd.grad(logit, [y for _, y in outputs], allow_unused=True) if outputs else ()
    for hook in hooks:
        hook.remove()
    absorbed = sum(
        (m.bias * gradient).sum().item()
        for (m, _), gradient in zip(outputs, gradients, strict=True)
        if gradient is not None
    )
    if hasattr(view.model, "final_logits_bias"):
        absorbed += float(view.model.final_logits_bias[0, batch.target_ids].sum())
    missing = -float(relevance.residual.sum())
    softmax = 0 if composite is LRP else _absorbed_by_softmax(view, batch)
    assert composite is LRP or abs(softmax) > 1e-3
    assert missing == pytest.approx(absorbed + softmax, abs=1e-9)


def _absorbed_by_softmax(view, batch):
    """Relevance of weights minus that of their scores."""
    from closelook.lrp_core.readers.attention import around_attention

    kept = []

    def attend(kernel, module, query, key, value, mask, scaling=None, position_bias=None, **_):
        products = query @ key.transpose(-1, -2) * scaling
        x = products if position_bias is None else products + position_bias
        weights = torch.softmax(x if mask is None else x + mask, -1)
        context = weights @ value
        kept.extend((products, weights))
        return context.transpose(1, 2), weights

    around = {layer.attention: attend for layer in view.attentions}
    with around_attention(view, around, stock="eager"):
        logits = forward(view, batch, ATTNLRP).output["logits"]
    gradients = torch.autograd.grad(logits[:, 0].sum(), kept)
    relevance = [(gradient * tensor).sum().item() for gradient, tensor in zip(gradients, kept, strict=True)]
    return sum(relevance[1::2]) - sum(relevance[::2])


@pytest.mark.thinned(2)
@pytest.mark.parametrize("method", ["gradient_x_input", "lrp", "attnlrp"])
def test_head_poolings_equal_the_naive_ones_on_every_attention_layer(view, method):
    from closelook.lrp_core.methods.gradients import READINGS

    batch, reading, outputs = Batch.collate(ragged_rows(view), 0), READINGS[method], {}
    hooks = [
        attention.output.register_forward_pre_hook(lambda _, args, layer=layer: outputs.update({layer: args[0]}))
        for layer, attention in enumerate(view.attentions)
    ]
    logits = forward(view, batch, reading.composite).output["logits"]
    gradients = torch.autograd.grad((logits[:, 0] - logits[:, 1]).sum(), list(outputs.values()))
    for hook in hooks:
        hook.remove()
    result = attribute(method, view, batch, heads=True).heads  # [B, L, H, P]
    assert result.shape[1] == view.n_layers == 2 + 3 + 3
    for (layer, output), gradient in zip(outputs.items(), gradients, strict=True):
        relevance = reading.measure(gradient, output.detach()).unflatten(-1, (view.n_heads, view.head_dim))
        torch.testing.assert_close(result[:, layer], oracles.pool_heads(relevance), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("method", ["attention_rollout", "grad_attention_rollout"])
def test_rollouts_are_those_of_chefer(family, method):
    name, changes = VARIANTS[family]
    view = tiny_model(name, attn="eager", **changes)
    row = ragged_rows(view)[2]
    ours = attribute(method, view, Batch.collate([row], 0))
    maps = _maps(view, row, graded=method == "grad_attention_rollout")
    tokens, seen = oracles_methods.encoder_decoder_rollout(*maps, row["position"])
    torch.testing.assert_close(ours.tokens[0], tokens, rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(ours.decoder_tokens[0], seen, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("itself", ["attended", "zero"])
def test_grad_attention_rollout_can_leave_out_the_identity_of_the_token_that_predicts(view, itself):
    row = ragged_rows(view)[2]
    batch, at = Batch.collate([row], 0), row["position"]
    whole, without = (
        attribute("grad_attention_rollout", view, batch, itself=setting) for setting in ("identity", itself)
    )
    expected = whole.decoder_tokens.clone()
    expected[0, at] = 0 if itself == "zero" else expected[0, at] - 1
    torch.testing.assert_close(without.decoder_tokens, expected, rtol=1e-9, atol=1e-12)
    assert torch.equal(without.tokens, whole.tokens)


def test_gradcam_is_the_last_cross_attention_weighted_by_its_mean_gradient(family):
    name, changes = VARIANTS[family]
    view = tiny_model(name, attn="eager", **changes)
    row = ragged_rows(view)[2]
    ours = attribute("gradcam", view, Batch.collate([row], 0))
    inputs = {name: torch.tensor([row[name]]) for name in ("input_ids", "decoder_input_ids")}
    with torch.enable_grad():
        embeds = view.model.get_input_embeddings()(inputs.pop("input_ids")).requires_grad_()
        out = oracles_methods.stock(view, inputs_embeds=embeds, output_attentions=True, **inputs)
        last = out.cross_attentions[-1]
        (gradient,) = torch.autograd.grad(_contrast(out.logits[0, row["position"]], row), last)
    weight = gradient[0].mean((1, 2))  # [H]
    expected = (last[0, :, row["position"]] * weight[:, None]).mean(0).clamp_min(0)
    torch.testing.assert_close(ours.tokens[0], expected.detach(), rtol=1e-6, atol=1e-8)
    assert ours.decoder_tokens is None


def _contrast(logits, row):
    return logits[row["target_id"]] - logits[row["foil_id"]]


def _maps(view, row, graded):
    """Means over heads of each layer's maps, or of the positive part of maps times gradients: encoder, own, cross."""
    ids = {name: torch.tensor([row[name]]) for name in ("input_ids", "decoder_input_ids")}
    with torch.enable_grad():
        embeds = view.model.get_input_embeddings()(ids.pop("input_ids")).requires_grad_()
        seen = view.model.get_decoder().embed_tokens(ids.pop("decoder_input_ids")).requires_grad_()
        inputs = {"inputs_embeds": embeds, "decoder_inputs_embeds": seen}
        out = oracles_methods.stock(view, **inputs, output_attentions=True)
        groups = (out.encoder_attentions, out.decoder_attentions, out.cross_attentions)
        flat = [attention_map for group in groups for attention_map in group]
        gradients = torch.autograd.grad(_contrast(out.logits[0, row["position"]], row), flat)
    steps = [(m * g).clamp_min(0)[0].mean(0) if graded else m[0].mean(0) for m, g in zip(flat, gradients, strict=True)]
    steps = [step.detach() for step in steps]
    return steps[: len(groups[0])], steps[len(groups[0]) : -len(groups[2])], steps[-len(groups[2]) :]


def test_atman_suppresses_encoder_tokens_where_they_are_keys(view):
    row = ragged_rows(view)[1]
    batch = Batch.collate([row], 0)
    ours = attribute("atman", view, batch, score="logit", suppression=0.7)
    for position in range(len(row["input_ids"])):
        expected = oracles_methods.encoder_decoder_suppressed(view, batch, position, 0.7)
        torch.testing.assert_close(ours.tokens[0, position], ours.explained[0] - expected, rtol=1e-6, atol=1e-8)


def test_occlusion_is_the_drop_without_the_embedding_of_either_side(view):
    row = ragged_rows(view)[2]
    ours = attribute("occlusion", view, Batch.collate([row], 0))
    for half, ids in (("tokens", "input_ids"), ("decoder_tokens", "decoder_input_ids")):
        for position in range(len(row[ids])):
            source = view.token_embedding(torch.tensor([row["input_ids"]]))
            seen = view.model.get_decoder().embed_tokens(torch.tensor([row["decoder_input_ids"]]))
            (source if half == "tokens" else seen)[0, position] = 0
            out = oracles_methods.stock(view, inputs_embeds=source, decoder_inputs_embeds=seen)
            drop = ours.explained[0] - _contrast(out.logits[0, row["position"]], row)
            torch.testing.assert_close(getattr(ours, half)[0, position], drop, rtol=1e-6, atol=1e-6)


def test_deletion_takes_encoder_tokens_and_leaves_what_the_decoder_has_seen(view):
    row = ragged_rows(view)[2]
    removed = torch.zeros(1, len(row["input_ids"])).bool()
    removed[0, [1, 4]] = True
    shorter = {**row, "input_ids": [i for at, i in enumerate(row["input_ids"]) if at not in (1, 4)]}
    with tokens_removed(view, Batch.collate([row], 0), removed, "delete") as rows:
        logits = view.logits(rows)
    torch.testing.assert_close(logits[0, 0], stock(view, shorter)[row["target_id"]], rtol=1e-6, atol=1e-6)


def test_removed_heads_put_out_nothing_in_whatever_layer(view):
    row = ragged_rows(view)[2]
    sample = Batch.collate([row], 0)
    draw = np.random.default_rng(0).integers(0, 2, (6, view.n_layers, view.n_heads)).astype(np.uint8)
    draw[:3, :3] = draw[0, :3]  # masks that agree in the encoder and beyond
    masks = np.unique(draw.reshape(6, -1), axis=0).reshape(-1, view.n_layers, view.n_heads)
    collected = []
    for shared in (True, False):
        with heads_removed(view, list(branches(view, masks, shared=shared))):
            collected.append(logits_at(view, tiled(sample, len(masks)), sample)[1])
    torch.testing.assert_close(collected[0], collected[1], rtol=1e-12, atol=1e-12)
    for mask, logits in zip(masks, collected[0], strict=True):
        copied = view_of(copy.deepcopy(view.model))
        for layer, attention in enumerate(copied.attentions):
            for head in np.flatnonzero(mask[layer] == 0):
                attention.output.weight[:, head * view.head_dim : (head + 1) * view.head_dim] = 0
        torch.testing.assert_close(logits, copied.all_logits(sample)[0], rtol=1e-10, atol=1e-10)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("attn", ["sdpa", "eager"])
def test_model_is_bit_identical_after_every_method(family, attn):
    name, changes = VARIANTS[family]
    view = tiny_model(name, dtype="float32", attn=attn, **changes)
    batch = Batch.collate(ragged_rows(view), 0)
    inputs = {
        "input_ids": batch.input_ids,
        "attention_mask": batch.attention_mask,
        "decoder_input_ids": batch.decoder_input_ids,
    }
    before = view.model(**inputs).logits
    configs = [vars(module.config).copy() for module in view.model.modules() if hasattr(module, "config")]
    for method in APPLY:
        attribute(method, view, batch, **({"checkpoint": True} if method == "lrp" else QUICK.get(method, {})))
        assert torch.equal(view.model(**inputs).logits, before), method
    assert [vars(module.config) for module in view.model.modules() if hasattr(module, "config")] == configs
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in view.model.modules())


def test_checkpointing_changes_no_number(view):
    batch = Batch.collate(ragged_rows(view), 0)
    plain, kept = (attribute("attnlrp", view, batch, heads=True, checkpoint=on) for on in (False, True))
    for name in ("tokens", "decoder_tokens", "heads"):
        torch.testing.assert_close(getattr(kept, name), getattr(plain, name), rtol=1e-12, atol=1e-12)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_rows_of_padding_alone_give_no_nan(family, dtype):
    name, changes = VARIANTS[family]
    view = tiny_model(name, dtype=dtype, attn="eager", **changes)
    batch = Batch.collate(ragged_rows(view), 0)
    batch.attention_mask[1] = 0
    for method in APPLY:
        tokens = attribute(method, view, batch, **QUICK.get(method, {})).tokens
        assert tokens.isfinite().all()
        assert not tokens[1].any()


def test_prediction_is_the_stock_models(view):
    rows = ragged_rows(view)
    result = predicted(view, Batch.collate(rows, 0))[:, 0]
    assert result.tolist() == [int(stock(view, row).argmax()) for row in rows]


@pytest.mark.parametrize("method", REFUSED)
def test_what_needs_one_stack_of_states_is_refused_by_name(view, method):
    with pytest.raises(UnsupportedMethod, match=f"{method} needs .*, which {view.family.name} models do not have"):
        attribute(method, view, Batch.collate(ragged_rows(view), 0))


def test_decoder_prefix_that_ends_the_sequence_is_refused_with_its_row(view):
    rows = ragged_rows(view)
    rows[2]["decoder_input_ids"][1] = view.config.eos_token_id
    with pytest.raises(UnusableRows, match=r"row 2 of the batch: .* hold the end token") as error:
        attribute("attnlrp", view, Batch.collate(rows, 0))
    assert error.value.reason == "ended"
    assert error.value.rows == (2,)


def test_decoder_input_belongs_to_encoder_decoders_alone(view):
    rows = ragged_rows(view)
    with pytest.raises(UserError, match="some rows of the batch have decoder_input_ids and some have none"):
        Batch.collate([rows[0], {**rows[1], "decoder_input_ids": None}], 0)
    bare = Batch.collate([{**row, "decoder_input_ids": None, "position": 0} for row in rows], 0)
    with pytest.raises(UserError, match=r"models need decoder_input_ids: .* at least its start token"):
        attribute("attnlrp", view, bare)
    with pytest.raises(UserError, match="bert models have no decoder: leave decoder_input_ids out"):
        attribute("attnlrp", tiny_model("bert"), Batch.collate(rows, 0))


def test_position_is_one_of_the_decoder(view):
    rows = ragged_rows(view)
    rows[0]["position"] = 2  # the encoder has as many tokens, the decoder has seen one
    with pytest.raises(UnusableRows, match=r"row 0 .* on padding or outside"):
        attribute("attnlrp", view, Batch.collate(rows, 0))


def test_other_heads_and_layouts_are_refused():
    with pytest.raises(UnsupportedModel, match="T5ForSequenceClassification has no language-modelling head"):
        view_of(T5ForSequenceClassification(tiny_config("t5")))
    with pytest.raises(UnsupportedModel, match=r"decoder_attention_heads=encoder_attention_heads .4. only, not 2"):
        tiny_model("bart", decoder_attention_heads=2)
    assert set(BOTH) == {"t5", "bart"}


def test_rows_get_the_start_token_of_the_model_before_the_answer_so_far(view):
    start = view.config.decoder_start_token_id
    rows = rows_for(view, [{"decoder_input_ids": [7, 8], "position": 2}, {"decoder_input_ids": None, "position": 0}])
    assert [row["decoder_input_ids"] for row in rows] == [[start, 7, 8], [start]]
    assert [row["position"] for row in rows] == [2, 0]


def test_positions_that_equal_the_decoders_tokens_are_no_words():
    """BART's decoder begins with the token 2, and counts its positions from 2."""
    view = tiny_model("bart")
    row = {"input_ids": [5, 6, 7], "decoder_input_ids": [2], "position": 0, "target_id": 3}
    batch = Batch.collate([row], view.pad_id)
    relevance = attribute("gradient_x_input", view, batch, explanation="target", embedding="partial")
    token = view.token_embedding(batch.decoder_input_ids).requires_grad_()
    logits = view.model(input_ids=batch.input_ids, decoder_inputs_embeds=token).logits
    (gradient,) = torch.autograd.grad(logits[0, 0, 3], token)
    torch.testing.assert_close(relevance.decoder_tokens, (gradient * token).sum(-1))
