"""Makes the view of a model in memory."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from lrp_core.families import family_of, without_head
from lrp_core.families.generic import GenericFamily
from lrp_core.families.images import ImageFamily
from lrp_core.opening.adapters import beside_base
from lrp_core.opening.checkpoint import check_model
from lrp_core.opening.rebuilt import separated, unrolled
from lrp_core.records.capabilities import RULES
from lrp_core.records.types import UnsupportedModel, UserError
from lrp_core.rules.activation import activation
from lrp_core.views.encoder_decoder import EncoderDecoderView
from lrp_core.views.generic import GenericView
from lrp_core.views.images import ImageView
from lrp_core.views.view import ModelView


def view_of(model: nn.Module, family: str | None = None) -> ModelView:
    """The view of a model of transformers, or of peft around one; puts it in evaluation mode and freezes parameters.

    To undo these changes afterwards, call it inside :func:`lrp_core.views.guard.left_as_it_was`. `family` "generic"
    runs the model as a whole, whether a family describes it or not. Raises UnsupportedModel for a quantised model, an
    unknown type, a head that predicts neither tokens nor labels, norms without weights, and activations without a rule;
    raises UserError for weights that were made in inference mode.
    """
    model = beside_base(model)
    if not isinstance(model, PreTrainedModel):
        raise UnsupportedModel(f"{type(model).__name__} is no model of transformers: give a PreTrainedModel")
    check_model(model)
    if any(parameter.is_inference() for parameter in model.parameters()):
        reason = "was made inside torch.inference_mode, so that no gradients can be taken"
        raise UserError(f"{type(model).__name__} {reason}: make or load it outside")
    described = family_of(model.config, type(model).__name__, family)
    if isinstance(described, GenericFamily):
        return GenericView(model.eval().requires_grad_(False), described).check()
    if described.unembedding is None and model.get_output_embeddings() is None:
        raise UnsupportedModel(without_head(type(model).__name__, described))
    if described.experts is not None and not _calls_parts(model):
        model.set_experts_implementation("eager")
    kind: type[ModelView] = ModelView
    if isinstance(described, ImageFamily):
        kind = ImageView
    if described.decoder is not None:
        kind = EncoderDecoderView
    model = separated(unrolled(model.eval().requires_grad_(False), described), described)
    view = kind(model, described)
    bare = [norm.module for norm in view.norms() if norm.module.weight is None]
    if bare:
        path = next(name for name, module in model.named_modules() if module is bare[0])
        raise UnsupportedModel(f"{type(model).__name__}: the norm {path} has no weights, which no rule covers")
    if RULES in described.capabilities:
        activation(view.activation_name)
        activation(view.head_activation_name)
    return view


def _calls_parts(model: Any) -> bool:
    """True if the kernel of a model's experts calls their activation module, where rules apply, in the model's dtype.

    Only the eager kernel supports float64.
    """
    known = ("eager",) if model.dtype == torch.float64 else ("eager", "batched_mm", "grouped_mm")
    return model.config._experts_implementation in known
