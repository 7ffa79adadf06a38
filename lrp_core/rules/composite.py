"""A method as a choice of rules: what every kind of layer does to the gradient that passes it.

Gradient x input with these modified gradients is layer-wise relevance propagation (Close Look, appendix C). The forward
values never change, so one forward serves every composite: the rules look at the current one while gradients flow.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from lrp_core import composites as names
from lrp_core.rules.activation import IDENTITY, ActivationRule
from lrp_core.rules.activation import TRUE_GRADIENT as TRUE_ACTIVATION
from lrp_core.rules.bilinear import SIGNAL_TAKES_ALL, UNIFORM, BilinearRule
from lrp_core.rules.bilinear import TRUE_GRADIENT as TRUE_PRODUCT
from lrp_core.rules.contributions import ZPLUS, alpha_beta_rule, gamma_rule
from lrp_core.rules.linear import TRUE_GRADIENT as TRUE_LINEAR
from lrp_core.rules.linear import LinearRule, LinearRules
from lrp_core.rules.normalization import CONSTANT_DEVIATION, NormalizationRule
from lrp_core.rules.normalization import TRUE_GRADIENT as TRUE_NORM
from lrp_core.rules.softmax import SOFTMAX_RULES, SoftmaxRule
from lrp_core.rules.softmax import TRUE_GRADIENT as TRUE_SOFTMAX


@dataclass(frozen=True)
class Composite:
    """The rule of each kind of layer; what is left out passes its true gradient.

    `bilinear` is for products of a gate and a signal: attention weights and values, the branches of gated MLPs.
    """

    name: str  # enough for a hash
    linear: LinearRules = field(default=LinearRules(), hash=False)
    bilinear: BilinearRule = field(default=TRUE_PRODUCT, hash=False)
    softmax: SoftmaxRule = field(default=TRUE_SOFTMAX, hash=False)
    normalization: NormalizationRule = field(default=TRUE_NORM, hash=False)
    activation: ActivationRule = field(default=TRUE_ACTIVATION, hash=False)
    constant_logits_bias: bool = False  # whether the rule of the unembedding does not see its bias

    @property
    def is_linear(self) -> bool:
        """Whether norms and activations pass gradients as linear layers do, so that surrogates can stand for them."""
        return self.normalization.constant and self.activation.constant


PLAIN = Composite("plain")
#: Ali et al. 2022; Close Look C.3 to C.5
LRP = Composite("lrp", bilinear=SIGNAL_TAKES_ALL, normalization=CONSTANT_DEVIATION, activation=IDENTITY)
#: AttnLRP 3.3; Close Look C.1, C.3, C.5, C.6
ATTNLRP = Composite("attnlrp", bilinear=UNIFORM, normalization=CONSTANT_DEVIATION, activation=IDENTITY)

_LINEAR: dict[str, Callable[[float], LinearRule]] = {
    names.EPSILON: lambda _: TRUE_LINEAR,
    names.GAMMA: gamma_rule,
    names.ZPLUS: lambda _: ZPLUS,
    names.ALPHA_BETA: alpha_beta_rule,
}


@lru_cache
def changed(base: Composite, written: str) -> Composite:
    """`base` with the rules of a composite in canonical form (see `lrp_core.composites`) for what that names."""
    spec = names.Spec.of(written)
    rules = dict(spec.rules)
    linear = {
        group: _LINEAR[rule.name](rule.number or 0) for group, rule in rules.items() if group in names.LINEAR_GROUPS
    }
    changes: dict[str, Any] = {"linear": replace(base.linear, **linear)} if linear else {}
    if names.SOFTMAX in rules:
        changes["softmax"] = SOFTMAX_RULES[rules[names.SOFTMAX].name]
    if names.NORM in rules:
        changes["normalization"] = TRUE_NORM
    if names.ACTIVATION in rules:
        changes["activation"] = TRUE_ACTIVATION
    if names.LOGITS_BIAS in rules:
        changes["constant_logits_bias"] = True
    return replace(base, name=f"{base.name} with {spec}", **changes) if changes else base


#: Rivals of AttnLRP that explode (its table 3 and figure 5); for comparison.
IDENTITY_SOFTMAX = replace(ATTNLRP, name=names.IDENTITY_SOFTMAX, softmax=SOFTMAX_RULES[names.IDENTITY])
DISTRIBUTED_BIAS = replace(ATTNLRP, name=names.DISTRIBUTED_BIAS_SOFTMAX, softmax=SOFTMAX_RULES[names.DISTRIBUTED_BIAS])
COMPOSITES = {composite.name: composite for composite in (PLAIN, LRP, ATTNLRP, IDENTITY_SOFTMAX, DISTRIBUTED_BIAS)}
