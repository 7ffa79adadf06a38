"""Tables and figures of controls: correlations under random weights, and the verdicts on methods."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import numpy as np
import pandas as pd

from tests.recompute import statistics
from tests.recompute.expected import UNDEFINED, Expected, number
from tests.recompute.facts import NAMES, Facts

BAR = 0.2
RESAMPLES = 1000
PLANTED = {
    "Position only, planted": "position_only",
    "Constant, planted": "constant",
    "Frequency, planted": "frequency",
}
COLUMNS = {"correlation": "signed", "of absolute values": "absolute", "between two random models": "architecture"}


@cache
def rows_of(facts: Facts, model: str, task: str, method: str) -> pd.DataFrame:
    """The correlations of every sample and depth of a method."""
    frame = facts.root.frame("randomisation")
    if not len(frame):
        return frame
    return frame[(frame["model"] == model) & (frame["task"] == task) & (frame["method"] == method)]


def mean(values: pd.Series, bounds: tuple[float, float] = (-1.0, 1.0)) -> Expected:
    known = values.dropna().to_numpy(np.float64)
    if not len(known):
        return UNDEFINED
    interval = statistics.specified_interval(known, RESAMPLES, bounds)
    return number(known.mean(), len(known), interval)


def verdict(rows: pd.DataFrame, method: str) -> str:
    """Random relevance within the range of chance, others not surely above the bar; maps without order fail."""
    last = rows[rows["last"]]
    known = last[last["signed"].notna()]
    if method == "random":
        error = np.sqrt((1 / (known["tokens"] - 1)).sum()) / len(known)
        return "passes" if abs(known["signed"].mean()) <= 3.2905 * error else "fails"
    if last["flat"].all():
        return "fails"
    if len(known) < 10:
        return "too few samples"
    low = statistics.specified_interval(known["signed"].to_numpy(np.float64), RESAMPLES, (-1.0, 1.0))[0]
    if low.least > BAR or low.most <= BAR:
        return "fails" if low.least > BAR else "passes"
    return ""  # the draws decide


def controls(facts: Facts, row: Mapping[str, str]) -> Expected | None:
    method = PLANTED.get(row["method"]) or NAMES[row["method"]]
    rows = rows_of(facts, row["model"], row["task"], method)
    last = rows[rows["last"]]
    if row["label"] == "samples":
        return number(int(last["signed"].notna().sum()))
    if row["label"] == "verdict":
        outcome = verdict(rows, method) or row["state"]
        planted = {"fails": "caught", "passes": "not caught"} if method in PLANTED.values() else {}
        return Expected(state=planted.get(outcome, outcome))
    return mean(last[COLUMNS[row["label"]]])


def failed(facts: Facts, model: str, task: str, method: str) -> Expected | None:
    """The control that a method fails, as the leaderboard names it."""
    rows = rows_of(facts, model, task, method)
    outcome = verdict(rows, method) if len(rows) else "passes"
    if not outcome:
        return None
    return Expected(state="chance" if method == "random" else "randomisation") if outcome == "fails" else UNDEFINED


def by_depth(facts: Facts, at: Mapping[str, str]) -> Expected | None:
    """The mean correlation of a method at a depth; the figure `controls`."""
    model, task = at["panel"].split(" · ")
    rows = rows_of(facts, model, task, NAMES[at["line"]])
    steps = sorted(rows["step"].unique())
    expected = mean(rows.loc[rows["step"] == steps[round(float(at["x"]))], "signed"])
    numbers = {"x": statistics.Range.exact(float(at["x"])), "value": expected.numbers["value"]}
    return Expected(numbers | {end: expected.numbers[end] for end in ("low", "high")})


def of_method(facts: Facts, product: str, row: Mapping[str, str]) -> pd.DataFrame:
    """The rows of a control of the method of a table's row."""
    frame = facts.root.frame(product)
    method = PLANTED.get(row["method"]) or NAMES[row["method"]]
    return frame[(frame["model"] == row["model"]) & (frame["task"] == row["task"]) & (frame["method"] == method)]


def shapley(facts: Facts, row: Mapping[str, str]) -> Expected | None:
    rows = of_method(facts, "shapley", row)
    if row["label"] == "samples":
        return number(int(rows["correlation"].notna().sum()))
    column, bounds = {"rank correlation": ("correlation", (-1.0, 1.0)), "error": ("error", (0.0, 1.0))}[row["label"]]
    return mean(rows[column], bounds)


TABLES = {"controls": controls, "shapley": shapley}
