"""Records of the rules of each kind of layer, and of a composite, which chooses a rule for each kind."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class FactorRule:
    """A rule of activations g or of norms, which multiply their input by a factor that depends on it.

    With `constant` the factor is held constant: the ratio g(z)/z, so that relevance passes unchanged, or the standard
    deviation, so that the norm is linear.
    """

    name: str
    constant: bool


TRUE_FACTOR = FactorRule("true gradient", constant=False)
IDENTITY = FactorRule("identity", constant=True)
CONSTANT_DEVIATION = FactorRule("constant deviation", constant=True)


@dataclass(frozen=True)
class BilinearRule:
    """A rule of products gate * signal: the signal, and the gate if `serves_gate`, get `share` times their gradient."""

    name: str
    share: float
    serves_gate: bool  # False: the gate is held constant and gets none

    @property
    def query_key(self) -> float:
        """The factor on the gradients of queries and keys: their product makes the weights, which gate the values."""
        return self.share * self.share if self.serves_gate else 0.0


TRUE_PRODUCT = BilinearRule("true gradient", share=1.0, serves_gate=True)
SIGNAL_TAKES_ALL = BilinearRule("signal takes all", share=1.0, serves_gate=False)  # Ali et al. 2022; Close Look C.4
UNIFORM = BilinearRule("uniform", share=0.5, serves_gate=True)  # AttnLRP proposition 3.2; Close Look C.1


@dataclass(frozen=True)
class LinearRule:
    """A rule of linear layers. `backward(dy, x, y, weight, bias)` gives the gradient at x [..., in] from dy [..., out].

    y [..., out] is the layer's output, `weight` [out, in], `bias` [out] or None. A rule without a function is the true
    gradient, which costs nothing more. With `reads_sizes` the function gets |weight| as a sixth argument, in memory
    that all layers share.
    """

    name: str
    backward: Callable[..., Tensor] | None = None
    reads_sizes: bool = False


TRUE_LINEAR = LinearRule("true gradient")


@dataclass(frozen=True)
class LinearRules:
    """The rule of each group of linear layers; AttnLRP has these groups in its figures 13 to 16."""

    convolution: LinearRule = TRUE_LINEAR  # of image patches
    linear: LinearRule = TRUE_LINEAR  # outside of attention: MLPs, the head and the unembedding
    input_projection: LinearRule = TRUE_LINEAR  # to queries, keys and values
    output_projection: LinearRule = TRUE_LINEAR  # of attention

    def of(self, group: str) -> LinearRule:
        """The rule of the group of that name."""
        rule: LinearRule = getattr(self, group)
        return rule

    @cached_property
    def ruled(self) -> tuple[str, ...]:
        """The groups whose rule is not the true gradient."""
        return tuple(group for group in LINEAR_GROUPS if self.of(group).backward is not None)


LINEAR_GROUPS = tuple(group.name for group in fields(LinearRules))


@dataclass(frozen=True)
class SoftmaxRule:
    """A rule of attention's softmax. `backward(ds, x, s, hidden)` gives the gradient at scores x [..., T] from ds.

    s = softmax(x) are the weights and ds their gradient, both [..., T]. Scores are scaled; they are 0 where the mask
    `hidden` is True (None: nothing is masked). A rule without a function is the true gradient, at no further cost.
    """

    name: str
    backward: Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor] | None = None


TRUE_SOFTMAX = SoftmaxRule("true gradient")


@dataclass(frozen=True)
class Composite:
    """The rules of all kinds of layers. A kind that is left out has its true gradient.

    `bilinear` is for products of a gate and a signal: attention weights and values, the two branches of gated MLPs.

    >>> Composite("mine", normalization=CONSTANT_DEVIATION, activation=IDENTITY).is_linear
    True
    """

    name: str
    linear: LinearRules = LinearRules()
    bilinear: BilinearRule = TRUE_PRODUCT
    softmax: SoftmaxRule = TRUE_SOFTMAX
    normalization: FactorRule = TRUE_FACTOR
    activation: FactorRule = TRUE_FACTOR
    constant_logits_bias: bool = False  # the rule of the unembedding leaves its bias out
    stabiliser: float = 0.0  # is added to the size of every sum that relevance is divided by

    @property
    def is_linear(self) -> bool:
        """True if norms and activations are linear under the rules."""
        return self.normalization.constant and self.activation.constant
