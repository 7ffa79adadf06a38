"""Rules on operations give what the rules on described models give: every family under every composite."""

import pytest
import torch

from closelook.lrp_core import Batch, Request
from closelook.lrp_core.methods.gradients import explain_many
from closelook.lrp_core.operations import explain_operations
from closelook.lrp_core.rules import ATTNLRP, LRP, PLAIN, changed
from tests.tiny import BOTH, FEWER, IMAGES, MORE, T5_RELU, TINY, picture_rows, ragged_rows, tiny_classifier, tiny_model

pytestmark = pytest.mark.numeric

COMPOSITES = {
    composite.name: composite
    for composite in (
        PLAIN,
        LRP,
        ATTNLRP,
        changed(LRP, "norm gradient"),
        changed(ATTNLRP, "activation gradient"),
        *(changed(ATTNLRP, f"softmax {rule}") for rule in ("zplus", "constant", "identity", "distributed_bias")),
        *(changed(LRP, f"linear {rule}") for rule in ("gamma 0.05", "zplus", "alpha_beta 2")),
        changed(ATTNLRP, "input_projection gamma 0.25"),
        changed(ATTNLRP, "output_projection zplus"),
        changed(ATTNLRP, "linear gamma 0.05, softmax zplus"),
    )
}
ROUTED = ("mixtral", "qwen2_moe")  # routing is constant under rules on operations
CLASSIFIERS = ("bert", "roberta", "distilbert", "electra", "albert", "modernbert", "deberta-v2", "gpt2", "llama", "opt")


def inputs_of(view, batch):
    """The keyword arguments of the stock model."""
    if batch.pixel_values is not None:
        return {"pixel_values": batch.pixel_values.to(view.dtype)}
    inputs = {"input_ids": batch.input_ids, "attention_mask": batch.attention_mask}
    if batch.decoder_input_ids is not None:
        inputs |= {"decoder_input_ids": batch.decoder_input_ids, "decoder_attention_mask": batch.decoder_attention_mask}
    return inputs | view.kind.forward_options


def number(logits, batch, explanation):
    """The explained number of each row, from its logits [B, V]."""
    target = logits.gather(-1, batch.target_ids[:, None])[:, 0]
    if explanation == "contrastive":
        return target - logits.gather(-1, batch.foil_ids[:, None])[:, 0]
    if explanation == "log_prob":
        return target - logits.logsumexp(-1)
    return target


def readout(view, batch, explanation):
    """From the output of the stock model to the explained number of each row."""

    def read(output):
        logits = output.logits
        if not view.kind.labels and not view.kind.images:
            logits = logits[torch.arange(len(logits)), batch.position]
        return number(logits, batch, explanation)

    return read


def assert_same(view, rows, composite, explanation="contrastive"):
    batch = Batch.collate(rows, view.pad_id)
    read = readout(view, batch, explanation)
    ours = explain_operations(view.model, inputs_of(view, batch), read, [composite])
    relevance = ours.relevance[composite]
    for embedding in ("full", "partial"):
        request = Request("attnlrp", explanation, embedding)
        described = explain_many(view, batch, [request], composite=composite)[request]
        torch.testing.assert_close(ours.numbers, described.explained, rtol=1e-12, atol=1e-12)
        tokens = getattr(relevance["patches" if view.kind.images else "input_ids"], embedding)
        expected = described.tokens if batch.pixel_values is None else described.tokens[:, -tokens.shape[1] :]
        assert_equal(tokens * batch.attention_mask if batch.pixel_values is None else tokens, expected)
        if described.decoder_tokens is not None:
            decoder = getattr(relevance["decoder_input_ids"], embedding) * batch.decoder_attention_mask
            assert_equal(decoder, described.decoder_tokens)


def assert_equal(ours, described):
    """Equal to 1e-12 of the largest number, or of 1 where a norm leaves rounding alone."""
    largest = float(described.abs().max())
    torch.testing.assert_close(ours, described, rtol=0, atol=1e-12 * (1 + largest))


@pytest.mark.parametrize("name", COMPOSITES)
@pytest.mark.parametrize("family", [*TINY, *MORE, *BOTH])
def test_composites_on_operations_equal_those_of_described_models(family, name):
    if family in ROUTED and COMPOSITES[name].linear.ruled:
        pytest.skip("described experts have no rules of linear layers")
    if family in ROUTED and COMPOSITES[name].bilinear.serves_gate and name != "plain":
        pytest.skip("routing is constant under rules on operations")
    view = tiny_model(family, attn="eager" if "softmax" in name else "sdpa")
    assert_same(view, ragged_rows(view), COMPOSITES[name])


@pytest.mark.parametrize("name", ["lrp", "attnlrp"])
def test_the_old_t5_is_explained_alike(name):
    view = tiny_model("t5", **T5_RELU)
    assert_same(view, ragged_rows(view), COMPOSITES[name])


@pytest.mark.parametrize("name", ["lrp", "attnlrp"])
@pytest.mark.parametrize("family", [family for family in CLASSIFIERS if family not in FEWER])
def test_classifiers_are_explained_alike(family, name):
    view = tiny_classifier(family)
    assert_same(view, ragged_rows(view), COMPOSITES[name], "target")


@pytest.mark.parametrize("name", COMPOSITES)
@pytest.mark.parametrize("family", IMAGES)
def test_images_are_explained_alike(family, name):
    view = tiny_model(family, attn="eager" if "softmax" in name else "sdpa")
    assert_same(view, picture_rows(view), COMPOSITES[name], "target")
