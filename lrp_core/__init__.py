"""Relevance for transformer language models: families, rules, gradient-family methods, attention rollout."""

from lrp_core.loading import load_model, random_model
from lrp_core.methods import METHODS, attribute
from lrp_core.types import (
    EMBEDDINGS,
    EXPLANATIONS,
    POOLINGS,
    Batch,
    MethodInfo,
    Relevance,
    Request,
    UnsupportedMethod,
    UnsupportedModel,
    UserError,
)
from lrp_core.view import ModelView

__all__ = [
    "EMBEDDINGS",
    "EXPLANATIONS",
    "METHODS",
    "POOLINGS",
    "Batch",
    "MethodInfo",
    "ModelView",
    "Relevance",
    "Request",
    "UnsupportedMethod",
    "UnsupportedModel",
    "UserError",
    "attribute",
    "load_model",
    "random_model",
]
