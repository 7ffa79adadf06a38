"""The rule of each kind of layer as a record, and a method as a choice of rules."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class ActivationRule:
    """A rule of activations: `constant` if the ratio g(z)/z is held constant, so that relevance passes as it is."""

    name: str
    constant: bool


TRUE_ACTIVATION = ActivationRule("true gradient", constant=False)
IDENTITY = ActivationRule("identity", constant=True)


@dataclass(frozen=True)
class BilinearRule:
    """A product gate * signal passes `share` of its gradient to each factor that it serves."""

    name: str
    share: float
    serves_gate: bool  # else the gate is held constant

    @property
    def query_key(self) -> float:
        """Share of queries and keys: attention weights gate the values, and are themselves a product of two equals."""
        return self.share * self.share if self.serves_gate else 0.0


TRUE_PRODUCT = BilinearRule("true gradient", share=1.0, serves_gate=True)
SIGNAL_TAKES_ALL = BilinearRule("signal takes all", share=1.0, serves_gate=False)  # Ali et al. 2022; Close Look C.4
UNIFORM = BilinearRule("uniform", share=0.5, serves_gate=True)  # AttnLRP proposition 3.2; Close Look C.1


@dataclass(frozen=True)
class LinearRule:
    """`backward(dy, x, y, weight, bias)` is the gradient at x [..., in] that the rule makes of dy at y [..., out].

    `weight` is [out, in], `bias` [out] or None. Without a function it is the true gradient, which costs nothing.
    One that `reads_sizes` gets |weight| as a sixth argument, which the scope keeps memory for.
    """

    name: str
    backward: Callable[..., Tensor] | None = None
    reads_sizes: bool = False


TRUE_LINEAR = LinearRule("true gradient")


@dataclass(frozen=True)
class LinearRules:
    """The rule of each group of linear layers, by AttnLRP's names (figures 12 to 16)."""

    convolution: LinearRule = TRUE_LINEAR  # of patches
    linear: LinearRule = TRUE_LINEAR  # outside of attention: MLPs, and the head with the unembedding
    input_projection: LinearRule = TRUE_LINEAR  # to queries, keys and values
    output_projection: LinearRule = TRUE_LINEAR  # of attention

    def of(self, group: str) -> LinearRule:
        rule: LinearRule = getattr(self, group)
        return rule

    @cached_property
    def ruled(self) -> tuple[str, ...]:
        """Groups that do not pass their true gradient."""
        return tuple(group for group in GROUPS if self.of(group).backward is not None)


GROUPS = tuple(group.name for group in fields(LinearRules))


@dataclass(frozen=True)
class NormalizationRule:
    """A rule of norms: `constant` if the standard deviation is held constant, which makes the norm linear."""

    name: str
    constant: bool


TRUE_NORM = NormalizationRule("true gradient", constant=False)
CONSTANT_DEVIATION = NormalizationRule("constant deviation", constant=True)


@dataclass(frozen=True)
class SoftmaxRule:
    """`backward(ds, x, s, hidden)` is the gradient at scores x [..., T] that the rule makes of ds at s = softmax(x).

    Scores are scaled, and 0 where `hidden` (None: nowhere) says that they are masked. Without a function it is the true
    gradient, which costs nothing.
    """

    name: str
    backward: Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor] | None = None


TRUE_SOFTMAX = SoftmaxRule("true gradient")


@dataclass(frozen=True)
class Composite:
    """The rule of each kind of layer; what is left out passes its true gradient.

    `bilinear` is for products of a gate and a signal: attention weights and values, the branches of gated MLPs.

    >>> Composite("mine", normalization=CONSTANT_DEVIATION, activation=IDENTITY).is_linear
    True
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
        """True if norms and activations pass gradients as linear layers do, so that surrogates can stand for them."""
        return self.normalization.constant and self.activation.constant
