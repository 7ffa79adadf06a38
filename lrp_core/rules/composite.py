"""A method as a choice of rules: what every kind of nonlinearity does to the gradient that passes it.

Gradient x input with these modified gradients is layer-wise relevance propagation (Close Look, appendix C). The forward
values never change, so one forward serves every composite: the rules look at the current one while gradients flow.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Composite:
    """Rules of one method. A product gate * signal passes `share` of its gradient to each factor that it serves."""

    name: str
    linear: bool  # norms keep their standard deviation constant, activations g their g(z)/z
    share: float
    gates: bool  # whether products serve their gate, or keep it constant

    @property
    def query_key(self) -> float:
        """Share of queries and keys: attention weights gate the values, and are themselves a product of two equals."""
        return self.share * self.share if self.gates else 0.0


PLAIN = Composite("plain", linear=False, share=1.0, gates=True)
LRP = Composite("lrp", linear=True, share=1.0, gates=False)  # signal-take-all (Ali et al. 2022; Close Look C.4)
ATTNLRP = Composite("attnlrp", linear=True, share=0.5, gates=True)  # uniform (AttnLRP proposition 3.2; Close Look C.1)


@dataclass
class Switch:
    """The composites a graph is built for, and the one the next backward pass follows."""

    planned: tuple[Composite, ...]
    current: Composite

    @property
    def plain_too(self) -> bool:
        """Whether rules must keep what the true gradient needs."""
        return not all(composite.linear for composite in self.planned)

    @property
    def fixed(self) -> bool:
        """Whether there is nothing to switch: rules are then written into the graph, whose backward runs no Python."""
        return len(self.planned) == 1 and self.current.linear


def with_value(surrogate: Tensor, value: Tensor) -> Tensor:
    """The number `value` with the gradient of `surrogate`, of the same shape and dtype; nothing is copied.

    So rules are written as Close Look's appendix C prints them, and the model still computes its stock values.
    """
    surrogate.data = value.detach()
    return surrogate
