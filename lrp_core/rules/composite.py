"""A method as a choice of rules: what every kind of layer does to the gradient that passes it.

Gradient x input with these modified gradients is layer-wise relevance propagation (Close Look, appendix C). The forward
values never change, so one forward serves every composite: the rules look at the current one while gradients flow.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

from lrp_core import composites as names
from lrp_core.rules.contributions import ZPLUS, alpha_beta_rule, gamma_rule
from lrp_core.rules.records import (
    CONSTANT_DEVIATION,
    IDENTITY,
    SIGNAL_TAKES_ALL,
    TRUE_ACTIVATION,
    TRUE_LINEAR,
    TRUE_NORM,
    UNIFORM,
    Composite,
    LinearRule,
)
from lrp_core.rules.softmax import SOFTMAX_RULES

PLAIN = Composite("plain")
#: Ali et al. 2022; Close Look C.3 to C.5
LRP = Composite("lrp", bilinear=SIGNAL_TAKES_ALL, normalization=CONSTANT_DEVIATION, activation=IDENTITY)
#: AttnLRP 3.3; Close Look C.1, C.3, C.5, C.6
ATTNLRP = Composite("attnlrp", bilinear=UNIFORM, normalization=CONSTANT_DEVIATION, activation=IDENTITY)

_WITHOUT_NUMBER = {names.EPSILON: TRUE_LINEAR, names.ZPLUS: ZPLUS}
_WITH_NUMBER = {names.GAMMA: gamma_rule, names.ALPHA_BETA: alpha_beta_rule}
#: What the rule of a group that is not its default changes of a composite.
_CHANGES: dict[str, dict[str, Any]] = {
    names.NORM: {"normalization": TRUE_NORM},
    names.ACTIVATION: {"activation": TRUE_ACTIVATION},
    names.LOGITS_BIAS: {"constant_logits_bias": True},
}


@lru_cache
def changed(base: Composite, written: str) -> Composite:
    """`base` with the rules of a composite in canonical form (see `lrp_core.composites`) for what that names."""
    spec = names.Spec.of(written)
    if not spec.rules:
        return base
    linear: dict[str, LinearRule] = {}
    changes: dict[str, Any] = {}
    for group, rule in spec.rules:
        if group in names.LINEAR_GROUPS:
            linear[group] = _linear_rule(rule)
        elif group == names.SOFTMAX:
            changes["softmax"] = SOFTMAX_RULES[rule.name]
        else:
            changes |= _CHANGES[group]
    return replace(base, name=f"{base.name} with {spec}", linear=replace(base.linear, **linear), **changes)


def _linear_rule(rule: names.Rule) -> LinearRule:
    if rule.number is None:
        return _WITHOUT_NUMBER[rule.name]
    return _WITH_NUMBER[rule.name](rule.number)


#: Rivals of AttnLRP that explode (its table 3 and figure 5); for comparison.
IDENTITY_SOFTMAX = replace(ATTNLRP, name=names.IDENTITY_SOFTMAX, softmax=SOFTMAX_RULES[names.IDENTITY])
DISTRIBUTED_BIAS = replace(ATTNLRP, name=names.DISTRIBUTED_BIAS_SOFTMAX, softmax=SOFTMAX_RULES[names.DISTRIBUTED_BIAS])
COMPOSITES = {composite.name: composite for composite in (PLAIN, LRP, ATTNLRP, IDENTITY_SOFTMAX, DISTRIBUTED_BIAS)}
