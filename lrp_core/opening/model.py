"""Makes the view of a model in memory."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from accelerate.utils import has_offloaded_params
from torch import nn
from transformers import PreTrainedModel

from closelook.lrp_core.families import family_of, without_head
from closelook.lrp_core.families.generic import GenericFamily, way_out
from closelook.lrp_core.families.images import ImageFamily
from closelook.lrp_core.opening.adapters import without_peft
from closelook.lrp_core.opening.altered import note_altered
from closelook.lrp_core.opening.checkpoint import check_model
from closelook.lrp_core.records.types import Batch, UnsupportedModel, UserError
from closelook.lrp_core.views.encoder_decoder import EncoderDecoderView
from closelook.lrp_core.views.images import ImageView
from closelook.lrp_core.views.view import ModelView

_PROBE = 6  # tokens of the text on which a generic model is tried
_ROUNDING = {torch.bfloat16: 0.1, torch.float16: 0.02, torch.float32: 1e-4, torch.float64: 1e-4}


def view_of(model: nn.Module, family: str | None = None) -> ModelView:
    """The view of a model of transformers, or of peft around one; puts it in evaluation mode and freezes parameters.

    To undo these changes afterwards, call it inside :func:`lrp_core.views.guard.left_as_it_was`. `family` "generic"
    runs the model as a whole, whether a family describes it or not. Raises UnsupportedModel for a quantised model, an
    unknown type, a head that predicts neither tokens nor labels, parts that were removed, and norms without weights;
    raises UserError for weights that were made in inference mode or are on the meta device.
    """
    model = without_peft(model)
    if not isinstance(model, PreTrainedModel):
        raise UnsupportedModel(f"{type(model).__name__} is no model of transformers: give a PreTrainedModel")
    check_model(model)
    if any(parameter.is_inference() for parameter in model.parameters()):
        reason = "was made inside torch.inference_mode, so that no gradients can be taken"
        raise UserError(f"{type(model).__name__} {reason}: make or load it outside")
    empty = next((name for name, weight in model.named_parameters() if weight.is_meta), None)
    if empty is not None and not any(map(has_offloaded_params, model.modules())):
        reason = f"has weights on the meta device, which holds no numbers ({empty})"
        raise UserError(f"{type(model).__name__} {reason}: load them, as from_pretrained does")
    described = family_of(model.config, type(model).__name__, family)
    if isinstance(described, GenericFamily):
        if model.dtype == torch.float64 and model.config._experts_implementation not in (None, "eager"):
            model.set_experts_implementation("eager")  # the only one that computes in float64
        generic = ModelView(model.eval().requires_grad_(False), described)
        _check_outputs(generic)
        return generic
    if described.unembedding is None and model.get_output_embeddings() is None:
        raise UnsupportedModel(without_head(type(model).__name__, described))
    if described.experts is not None and not _calls_parts(model):
        model.set_experts_implementation("eager")
    kind: type[ModelView] = ModelView
    if isinstance(described, ImageFamily):
        kind = ImageView
    if described.decoder is not None:
        kind = EncoderDecoderView
    view = kind(model.eval().requires_grad_(False), described)
    _check_layout(view)
    bare = [norm.module for norm in view.norms() if norm.module.weight is None]
    if bare:
        path = next(name for name, module in model.named_modules() if module is bare[0])
        raise UnsupportedModel(f"{type(model).__name__}: the norm {path} has no weights, which no rule covers")
    note_altered(view)
    return view


@torch.no_grad()
def _check_outputs(view: ModelView) -> None:
    """Raise UnsupportedModel for a generic model with too few outputs, or a causal one that looks ahead."""
    name = type(view.model).__name__
    text = Batch.collate([{"input_ids": [*range(min(_PROBE, view.vocab))], "position": 0, "target_id": 0}], view.pad_id)
    if view.kind.decoder:
        text = replace(text, decoder_input_ids=text.input_ids, decoder_attention_mask=text.attention_mask)
    first = view.all_logits(text)
    if first.shape[-1] < view.n_targets:
        raise UnsupportedModel(
            f"{name} has {first.shape[-1]} outputs for {view.n_targets} tokens or labels: give one for each"
        )
    if view.kind.causal and not view.kind.labels:
        again = view.all_logits(replace(text, input_ids=text.input_ids[:, :1].expand_as(text.input_ids)))
        if (first - again).abs().max() > _ROUNDING[view.dtype] * first.abs().max():
            raise UnsupportedModel(
                f"{name} lets later tokens change earlier predictions, as no causal model does: no method explains it"
            )


def _check_layout(view: ModelView) -> None:
    """Raise UnsupportedModel for a model whose head or layers were replaced or removed, unlike its family or config."""
    name, labels = type(view.model).__name__, view.kind.labels
    try:
        outputs, layers = len(view.unembedding.weight), len(view.attentions)
        view.norms(), view.head_layer
    except AttributeError as error:
        raise UnsupportedModel(
            f"{name} has other parts than {view.family.title} of transformers ({error}): undo the "
            f"change{way_out(view.family)}"
        ) from None
    if layers != view.n_layers:
        raise UnsupportedModel(f"{name} has {layers} layers, but its config says {view.n_layers}: correct the config")
    if outputs < view.n_targets or (labels and outputs > view.n_targets):
        said = f"{view.n_targets} labels: correct config.num_labels"
        if not labels:
            said = f"{view.n_targets} tokens: give a head with a row for each, or correct config.vocab_size"
        raise UnsupportedModel(f"{name} has {outputs} outputs, but its config says {said}")


def _calls_parts(model: Any) -> bool:
    """True if the kernel of a model's experts calls their activation module, where rules apply, in the model's dtype.

    Only the eager kernel supports float64.
    """
    known = ("eager",) if model.dtype == torch.float64 else ("eager", "batched_mm", "grouped_mm")
    return model.config._experts_implementation in known
