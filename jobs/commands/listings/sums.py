"""What the relevance of each method sums to, as measured: `sums.csv`, which `python -m tests.sums` writes."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from closelook.lrp_core.methods.record import Method

FILE = Path(__file__).with_name("sums.csv")


@dataclass(frozen=True)
class MeasuredSum:
    """The sum of a method's relevance, in percent of the explained number: medians over the texts of `tests.sums`.

    For a method with a baseline, it is in percent of the explained number's change from there.
    """

    model: str  # of the demo
    as_trained: float
    without_biases: float  # with all biases of the model zero


@cache
def measured_sums() -> Mapping[str, MeasuredSum]:
    """By method, the sums that were measured."""
    with FILE.open(encoding="utf-8", newline="") as lines:
        rows = list(csv.DictReader(lines))
    return {
        row["method"]: MeasuredSum(row["model"], float(row["as_trained"]), float(row["without_biases"])) for row in rows
    }


def percent(method: Method) -> str:
    """The measured sum of a method's relevance on a model as trained; empty for methods whose relevance has no sum."""
    if not method.conserves:
        return ""
    measured = measured_sums().get(method.name)
    return "not measured" if measured is None else f"{measured.as_trained:.0f} %"


def in_words(method: Method) -> str:
    """What the relevance of a method sums to, in words."""
    if not method.conserves:
        return "nothing: its relevance is no share of the explained number"
    measured = measured_sums().get(method.name)
    if measured is None:
        return "not measured; the rest of the explained number is reported as the residual"
    where = f"of the explained number on {measured.model}, a model of the demo"
    return f"{measured.as_trained:.0f} % {where}; {measured.without_biases:.0f} % with all of its biases zero"
