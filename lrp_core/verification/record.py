"""Records of a verification: a finding for each check, with machine and versions. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

State = Literal["pass", "fail", "nothing to compare", "not applicable"]


@dataclass(frozen=True)
class Gap:
    """The distance between two computations of the same numbers, relative to the largest of them, with its bound."""

    subject: str  # what the numbers belong to, such as a method
    measured: float  # the distance
    bound: float  # the largest distance that passes

    @property
    def is_told(self) -> bool:
        """False if any distance up to the largest number would pass: what is compared is nothing but rounding."""
        return not (self.bound >= 1 and self.ratio <= 1)

    @property
    def ratio(self) -> float:
        """The distance divided by its bound: more than 1 fails. Infinite for numbers that are not finite."""
        if self.measured == 0:
            return 0.0
        return self.measured / self.bound if self.bound > 0 and self.measured == self.measured else float("inf")


@dataclass(frozen=True)
class Finding:
    """The result of one check, which reports the gap with the largest ratio to its bound."""

    check: str  # the claim, in words
    state: State
    subject: str = ""  # what the numbers belong to, such as a method
    measured: float | None = None  # the distance, relative to the largest number
    bound: float | None = None
    detail: str = ""  # why the check does not apply

    @classmethod
    def of(cls, check: str, gaps: Sequence[Gap]) -> Finding:
        """The finding of a check from its gaps, at least one."""
        told = [gap for gap in gaps if gap.is_told]
        if not told:
            only = max(gaps, key=lambda gap: gap.bound)
            reason = "rounding is as large as the numbers that are compared"
            return cls(check, "nothing to compare", only.subject, only.measured, only.bound, reason)
        worst = max(told, key=lambda gap: gap.ratio)
        if worst.ratio > 1:
            return cls(check, "fail", worst.subject, worst.measured, worst.bound)
        subject = worst.subject if worst.measured else ""  # no gap at all: every subject is equally good
        return cls(check, "pass", subject, worst.measured, worst.bound)

    @classmethod
    def without(cls, check: str, reason: str) -> Finding:
        """The finding of a check that does not apply, for this reason."""
        return cls(check, "not applicable", detail=reason)


@dataclass(frozen=True)
class Verification:
    """The findings about a model on one machine."""

    model: str
    family: str
    kind: str
    dtype: str
    device: str  # "cpu", or the name of a GPU
    findings: tuple[Finding, ...]
    versions: Mapping[str, str] = field(default_factory=dict)  # by package
    identity: str = ""  # a hash of the weights

    @property
    def passed(self) -> bool:
        """True if no check failed; checks that do not apply do not count."""
        return all(finding.state != "fail" for finding in self.findings)

    def to_dict(self) -> dict[str, Any]:
        """The record as a dictionary that JSON can store."""
        return asdict(self)
