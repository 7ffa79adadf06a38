"""Rules on operations give what the rules of described families give, by one forward for all composites."""

import pytest
import torch

from closelook.lrp_core import Batch
from closelook.lrp_core.methods.gradients import explain_many
from closelook.lrp_core.operations import explain_operations
from closelook.lrp_core.readers.readout import rows_for
from closelook.lrp_core.records.types import Request
from closelook.lrp_core.rules import ATTNLRP, LRP, PLAIN, changed
from tests.tiny import BOTH, IMAGES, MORE, TINY, picture_rows, ragged_rows, tiny_classifier, tiny_model

METHODS = {"lrp": LRP, "attnlrp": ATTNLRP, "gradient_x_input": PLAIN}
ROUTED = ("mixtral", "qwen2_moe")  # routing is constant under rules on operations


def explained(view, rows, composites):
    batch = Batch.collate(rows_for(view, rows), view.pad_id)
    inputs = {"input_ids": batch.input_ids, "attention_mask": batch.attention_mask}
    if batch.token_type_ids is not None:
        inputs["token_type_ids"] = batch.token_type_ids
    if batch.decoder_input_ids is not None:
        inputs["decoder_input_ids"] = batch.decoder_input_ids
        inputs["decoder_attention_mask"] = batch.decoder_attention_mask
    if batch.pixel_values is not None:
        inputs = {"pixel_values": batch.pixel_values.to(view.dtype)}
    if view.kind.causal or batch.decoder_input_ids is not None:
        inputs["use_cache"] = False
    every = torch.arange(len(batch))

    def readout(output):
        logits = output.logits if output.logits.dim() == 2 else output.logits[every, batch.position]
        foils = 0 if batch.foil_ids is None else logits[every, batch.foil_ids]
        return logits[every, batch.target_ids] - foils

    return batch, explain_operations(view.model, inputs, readout, composites)


def tokens_of(result, composite, embedding, batch):
    """Relevance laid out like `Batch.every_id`, 0 on padding."""
    streams = result.relevance[composite]
    parts = [
        getattr(streams[name], embedding) for name in ("input_ids", "patches", "decoder_input_ids") if name in streams
    ]
    return torch.cat(parts, 1) * batch.every_mask


def assert_same(view, composites, options=()):
    rows = picture_rows(view) if view.family.name == "vit" else ragged_rows(view)
    batch, result = explained(view, rows, list(composites.values()))
    explanation = "target" if batch.foil_ids is None else "contrastive"
    for method, composite in composites.items():
        for embedding in ("full", "partial"):
            request = Request(method, explanation, embedding, options)
            expected = explain_many(view, batch, [request])[request]
            parts = [part for part in (expected.tokens, expected.decoder_tokens) if part is not None]
            tokens = torch.cat(parts, 1)
            torch.testing.assert_close(
                tokens_of(result, composite, embedding, batch),
                tokens,
                rtol=0,
                atol=1e-11 * float(tokens.abs().max() + 1),
            )
            torch.testing.assert_close(result.numbers, expected.explained, rtol=0, atol=1e-12)


@pytest.mark.parametrize("attn", ["eager", "sdpa"])
@pytest.mark.parametrize("family", [*TINY, *MORE, *BOTH, *IMAGES])
def test_a_described_family_has_the_same_relevance_without_its_description(family, attn):
    methods = {name: rules for name, rules in METHODS.items() if name != "attnlrp" or family not in ROUTED}
    assert_same(tiny_model(family, attn=attn), methods)


@pytest.mark.parametrize("family", ["bert", "gpt2", "llama"])
def test_a_classifier_has_the_same_relevance(family):
    assert_same(tiny_classifier(family), METHODS)


COMPOSITES = (
    "softmax zplus",
    "softmax constant",
    "softmax identity",
    "softmax distributed_bias",
    "norm gradient",
    "activation gradient",
    "linear gamma 0.05",
    "linear zplus, logits_bias constant",
    "input_projection alpha_beta 2",
    "output_projection gamma 0.25",
    "linear gamma 0.05, input_projection zplus, output_projection zplus, softmax zplus",
)


@pytest.mark.parametrize("spec", COMPOSITES)
@pytest.mark.parametrize("family", ["gpt2", "llama", "bert", "t5", "bart", "vit"])
def test_a_composite_of_rules_has_the_same_relevance(family, spec):
    if family == "vit":
        spec = f"convolution gamma 0.25, {spec}"
    assert_same(tiny_model(family), {"attnlrp": changed(ATTNLRP, spec)}, (("composite", spec),))
