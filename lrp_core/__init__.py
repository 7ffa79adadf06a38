"""Relevance for transformer language models: families and kinds of models, rules, interventions, methods.

Names are imported when first used, so that code that needs only the errors does not wait for torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lrp_core.lazy import lazily

if TYPE_CHECKING:
    from lrp_core.families import Family
    from lrp_core.methods import METHODS, attribute
    from lrp_core.methods.record import Method
    from lrp_core.opening.loading import load_model, random_model
    from lrp_core.opening.model import view_of
    from lrp_core.records.capabilities import Capability
    from lrp_core.records.explained import EXPLANATIONS, without_sum
    from lrp_core.records.option import Option
    from lrp_core.records.types import (
        EMBEDDINGS,
        POOLINGS,
        Batch,
        Relevance,
        Request,
        UnsupportedMethod,
        UnsupportedModel,
        UnusableRows,
        UserError,
        span_row,
    )
    from lrp_core.views.view import ModelView

__all__ = [
    "EMBEDDINGS",
    "EXPLANATIONS",
    "METHODS",
    "POOLINGS",
    "Batch",
    "Capability",
    "Family",
    "Method",
    "ModelView",
    "Option",
    "Relevance",
    "Request",
    "UnsupportedMethod",
    "UnsupportedModel",
    "UnusableRows",
    "UserError",
    "attribute",
    "load_model",
    "random_model",
    "span_row",
    "view_of",
    "without_sum",
]

_HOMES = {
    "EMBEDDINGS": "lrp_core.records.types",
    "EXPLANATIONS": "lrp_core.records.explained",
    "METHODS": "lrp_core.methods",
    "POOLINGS": "lrp_core.records.types",
    "Batch": "lrp_core.records.types",
    "Capability": "lrp_core.records.capabilities",
    "Family": "lrp_core.families",
    "Method": "lrp_core.methods.record",
    "ModelView": "lrp_core.views.view",
    "Option": "lrp_core.records.option",
    "Relevance": "lrp_core.records.types",
    "Request": "lrp_core.records.types",
    "UnsupportedMethod": "lrp_core.records.types",
    "UnsupportedModel": "lrp_core.records.types",
    "UnusableRows": "lrp_core.records.types",
    "UserError": "lrp_core.records.types",
    "attribute": "lrp_core.methods",
    "load_model": "lrp_core.opening.loading",
    "random_model": "lrp_core.opening.loading",
    "span_row": "lrp_core.records.types",
    "view_of": "lrp_core.opening.model",
    "without_sum": "lrp_core.records.explained",
}
__getattr__, __dir__ = lazily(__name__, _HOMES)
