"""The findings of a verification, one for each check, with machine and versions. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

State = Literal["pass", "fail", "not applicable"]


@dataclass(frozen=True)
class Gap:
    """The distance between two computations of the same numbers, relative to the largest of them, with its bound."""

    subject: str  # of which the numbers are, such as a method
    measured: float
    bound: float

    @property
    def ratio(self) -> float:
        """The share of the bound that was reached; more than 1 fails, and so do numbers that are not finite."""
        if self.measured == 0:
            return 0.0
        return self.measured / self.bound if self.bound > 0 and self.measured == self.measured else float("inf")


@dataclass(frozen=True)
class Finding:
    """The result of one check: the gap that comes nearest to its bound, or lies farthest beyond."""

    check: str  # the claim, in words
    state: State
    subject: str = ""  # of which the numbers are, such as a method
    measured: float | None = None  # how far apart, relative to the largest number
    bound: float | None = None
    detail: str = ""  # why it does not apply; of a failure, where and for what input

    @classmethod
    def of(cls, check: str, gaps: Sequence[Gap], locate: Callable[[int], str] = lambda at: "") -> Finding:
        """The finding of a check from all its gaps, of which there is one at least.

        Of a failure, `locate` says where it begins and for what input; it is called with the index of the worst gap.
        """
        at = max(range(len(gaps)), key=lambda at: gaps[at].ratio)
        worst = gaps[at]
        if worst.ratio > 1:
            return cls(check, "fail", worst.subject, worst.measured, worst.bound, locate(at))
        subject = worst.subject if worst.measured else ""  # else all are equal
        return cls(check, "pass", subject, worst.measured, worst.bound)

    @classmethod
    def without(cls, check: str, reason: str) -> Finding:
        """The finding of a check that does not apply."""
        return cls(check, "not applicable", detail=reason)


@dataclass(frozen=True)
class Cost:
    """The cost of a method for a sample: the peak of live bytes beside the model, and seconds."""

    peak_bytes: int
    seconds: float


@dataclass(frozen=True)
class Verification:
    """The findings about a model on one machine."""

    model: str
    family: str
    kind: str
    dtype: str
    device: str  # of a GPU its name
    findings: tuple[Finding, ...]
    costs: Mapping[str, Cost] = field(default_factory=dict)  # by method
    versions: Mapping[str, str] = field(default_factory=dict)
    identity: str = ""  # of the weights

    @property
    def passed(self) -> bool:
        return all(finding.state != "fail" for finding in self.findings)

    def to_dict(self) -> dict[str, Any]:
        """The record as JSON takes it."""
        return asdict(self)

    @classmethod
    def from_dict(cls, written: Mapping[str, Any]) -> Verification:
        """The record of :meth:`to_dict`. Raises TypeError or KeyError for what is none."""
        findings = tuple(Finding(**finding) for finding in written["findings"])
        costs = {name: Cost(**cost) for name, cost in written["costs"].items()}
        return cls(**{**written, "findings": findings, "costs": costs})
