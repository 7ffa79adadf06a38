"""A method as a choice of rules: what every kind of nonlinearity does to the gradient that passes it.

Gradient x input with these modified gradients is layer-wise relevance propagation (Close Look, appendix C). The forward
values never change, so one forward serves every composite: the rules look at the current one while gradients flow.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Composite:
    """Rules of one method. A product gate * signal passes `gate` and `signal` of its gradient to these two."""

    name: str
    linear: bool  # norms keep their standard deviation constant, activations g their g(z)/z
    signal: float
    gate: float

    @property
    def query_key(self) -> float:
        """Factor for queries and keys: the weights gate the values, and are themselves a product of two equals."""
        return self.gate * self.signal


PLAIN = Composite("plain", linear=False, signal=1.0, gate=1.0)
LRP = Composite("lrp", linear=True, signal=1.0, gate=0.0)  # signal-take-all (Ali et al. 2022; Close Look C.4)
ATTNLRP = Composite("attnlrp", linear=True, signal=0.5, gate=0.5)  # uniform (AttnLRP proposition 3.2; Close Look C.1)


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
    def gates_closed(self) -> bool:
        """Whether no composite sends anything to gates, so that their gradient need not be recorded."""
        return all(composite.gate == 0 for composite in self.planned)

    @property
    def signals_open(self) -> bool:
        """Whether all composites leave the gradient of signals as it is."""
        return all(composite.signal == 1 for composite in self.planned)
