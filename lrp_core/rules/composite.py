"""A method as a choice of rules: what every kind of layer does to the gradient that passes it.

Gradient x input with these modified gradients is layer-wise relevance propagation (Close Look, appendix C). The forward
values never change, so one forward serves every composite: the rules look at the current one while gradients flow.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from lrp_core.rules.activation import IDENTITY, ActivationRule
from lrp_core.rules.activation import TRUE_GRADIENT as TRUE_ACTIVATION
from lrp_core.rules.bilinear import SIGNAL_TAKES_ALL, UNIFORM, BilinearRule
from lrp_core.rules.bilinear import TRUE_GRADIENT as TRUE_PRODUCT
from lrp_core.rules.linear import LinearRules
from lrp_core.rules.normalization import CONSTANT_DEVIATION, NormalizationRule
from lrp_core.rules.normalization import TRUE_GRADIENT as TRUE_NORM
from lrp_core.rules.softmax import TRUE_GRADIENT as TRUE_SOFTMAX
from lrp_core.rules.softmax import SoftmaxRule


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

    @property
    def is_linear(self) -> bool:
        """Whether norms and activations pass gradients as linear layers do, so that surrogates can stand for them."""
        return self.normalization.constant and self.activation.constant


PLAIN = Composite("plain")
#: Ali et al. 2022; Close Look C.3 to C.5
LRP = Composite("lrp", bilinear=SIGNAL_TAKES_ALL, normalization=CONSTANT_DEVIATION, activation=IDENTITY)
#: AttnLRP 3.3; Close Look C.1, C.3, C.5, C.6
ATTNLRP = Composite("attnlrp", bilinear=UNIFORM, normalization=CONSTANT_DEVIATION, activation=IDENTITY)
COMPOSITES = {composite.name: composite for composite in (PLAIN, LRP, ATTNLRP)}
