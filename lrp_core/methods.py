"""Every method of this package by name."""

from __future__ import annotations

import difflib
from typing import Any

from lrp_core import explicit, gradients, random_baseline, rollout
from lrp_core.types import Batch, MethodInfo, Relevance, UnsupportedMethod
from lrp_core.view import ModelView

METHODS: dict[str, MethodInfo] = {
    info.name: info
    for info in (
        MethodInfo("gradient_l1", 1, "gradients", gradients.explain_many, embeddings=("none",), conserves=False),
        MethodInfo("gradient_l2", 1, "gradients", gradients.explain_many, embeddings=("none",), conserves=False),
        MethodInfo("gradient_x_input", 1, "gradients", gradients.explain_many),
        MethodInfo("lrp", 1, "gradients", gradients.explain_many),
        MethodInfo("attnlrp", 1, "gradients", gradients.explain_many),
        MethodInfo("attnlrp_explicit", 1, "explicit", explicit.explain_many),
        MethodInfo(
            "attention_rollout", 1, "rollout", rollout.explain_many, ("none",), ("none",), conserves=False, heads=False
        ),
        MethodInfo(
            "random", 1, "random", random_baseline.explain_many, ("none",), ("none",), conserves=False, heads=False
        ),
    )
}


def attribute(method: str, view: ModelView, batch: Batch, **options: Any) -> Relevance:
    """One method on one batch, with the options of `MethodInfo`'s call. Raises UnsupportedMethod for unknown names."""
    if method not in METHODS:
        near = difflib.get_close_matches(method, METHODS, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"choose {' or '.join(METHODS)}"
        raise UnsupportedMethod(f"no method {method!r} here; {hint}")
    return METHODS[method](view, batch, **options)
