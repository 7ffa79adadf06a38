"""Gradient-, attention- and perturbation-based methods and baselines, a module each, and the table of them by name.

A new method is a module here, with its function and its record, and a line in the table.
"""

from __future__ import annotations

from typing import Any

from lrp_core.method import Method
from lrp_core.methods import (
    atman,
    attention_gradients,
    explicit,
    gradients,
    kernel_shap,
    occlusion,
    path_gradients,
    random_baseline,
    rollout,
)
from lrp_core.registry import Registry
from lrp_core.types import Batch, Relevance, UnsupportedMethod, nearest
from lrp_core.view import ModelView

METHODS: Registry[Method] = Registry(
    "method",
    *gradients.METHODS,
    explicit.METHOD,
    *path_gradients.METHODS,
    rollout.METHOD,
    *attention_gradients.METHODS,
    atman.METHOD,
    occlusion.METHOD,
    kernel_shap.METHOD,
    random_baseline.METHOD,
)


def attribute(method: str, view: ModelView, batch: Batch, **options: Any) -> Relevance:
    """One method on one batch, with the options of `Method`'s call. Raises UnsupportedMethod for unknown names."""
    if method not in METHODS:
        raise UnsupportedMethod(f"no method {method!r} here{nearest(method, METHODS)}")
    return METHODS[method](view, batch, **options)
