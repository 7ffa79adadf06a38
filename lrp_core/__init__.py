"""Relevance for transformer language models: families and kinds of models, rules, interventions, methods.

Names are imported when first used, so that code that needs only the errors does not wait for torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lrp_core.lazy import lazily

if TYPE_CHECKING:
    from lrp_core.capabilities import Capability
    from lrp_core.explained import EXPLANATIONS
    from lrp_core.families import Family
    from lrp_core.loading import load_model, random_model
    from lrp_core.method import Method
    from lrp_core.methods import METHODS, attribute
    from lrp_core.opening import view_of
    from lrp_core.option import Option
    from lrp_core.types import (
        EMBEDDINGS,
        POOLINGS,
        Batch,
        Relevance,
        Request,
        UnsupportedMethod,
        UnsupportedModel,
        UnusableRows,
        UserError,
    )
    from lrp_core.view import ModelView

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
    "view_of",
]

_HOMES = {
    **dict.fromkeys(__all__, "types"),
    **dict.fromkeys(("load_model", "random_model"), "loading"),
    **dict.fromkeys(("METHODS", "attribute"), "methods"),
    "Capability": "capabilities",
    "EXPLANATIONS": "explained",
    "Family": "families",
    "Method": "method",
    "ModelView": "view",
    "Option": "option",
    "view_of": "opening",
}
__getattr__ = lazily(__name__, _HOMES)
