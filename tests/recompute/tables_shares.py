"""Tables of what becomes of labels and scores without shares of the top tokens, and with those alone."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import numpy as np
import pandas as pd

from tests.recompute import copied, statistics
from tests.recompute.expected import NOT_FINITE, TOLD, UNDEFINED, Expected, number, smallest
from tests.recompute.facts import NAMES, Facts
from tests.recompute.statistics import Range
from tests.recompute.tables_faithfulness import CurveKey, cell_of, curve_key_of, curves, judged, noise_of

Row = Mapping[str, str]
SHARES = range(10, 100, 10)  # percent


@cache
def shared(facts: Facts, curve_key: CurveKey, method: str) -> pd.DataFrame:
    """Effects of removing shares of tokens on each sample: lost probability and correctness at 10 to 90 %."""
    rows = curves(facts)[(*curve_key, method)]
    by_sample: dict[str, dict[str, object]] = {}
    for row in rows[rows["order"].isin(["without_top", "top_only"])].itertuples():
        at = [list(row.percent).index(share) for share in SHARES]
        numbers: dict[str, object] = {"said": np.array(row.logit, np.float64)[at]}
        if row.probability is not None:
            probability = np.array(row.probability, np.float64)
            numbers["lost"] = probability[0] - probability[at]
            numbers["right"] = np.array(row.correct, np.float64)[at]
        sample = by_sample.setdefault(row.sample_id, {})
        sample |= {f"{name} {row.order}": value for name, value in numbers.items()}
    return pd.DataFrame.from_dict(by_sample, orient="index").sort_index()


MEASURES = {
    "AOPC": "lost without_top",
    "Sufficiency": "lost top_only",
    "Accuracy": "right without_top",
    "Sufficiency, accuracy": "right top_only",
    "Pearson r": "said without_top",
    "Sufficiency, r": "said top_only",
}
OVER_RANDOM = " over random"


def share_values(facts: Facts, curve_key: CurveKey, method: str, measure: str) -> np.ndarray | None:
    """[samples, shares] of a measure; None where the task has none."""
    frame = shared(facts, curve_key, method)
    if MEASURES[measure] not in frame or measure.endswith("r") == ("lost without_top" in frame):
        return None
    return np.stack(frame[MEASURES[measure]].to_list())


def gold(facts: Facts, curve_key: CurveKey, method: str) -> np.ndarray:
    cell = cell_of(facts, curve_key, method)
    return np.array([facts.view(cell, sample)["score"] for sample in shared(facts, curve_key, method).index])


def correlation(predictions: np.ndarray, scores: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Mean over shares of Pearson's r of `predictions` [samples, shares] with scores, by weights [draws, samples]."""
    x, y = predictions - predictions.mean(0), scores - scores.mean()
    mean_x, mean_y = weights @ x, (weights @ y)[:, None]
    covariance = weights @ (x * y[:, None]) - mean_x * mean_y
    variances = (weights @ x**2 - mean_x**2) * ((weights @ y**2)[:, None] - mean_y**2)
    constant = variances <= 1e-12 * (x**2).mean(0) * (y**2).mean()
    return np.where(constant, np.nan, covariance / np.sqrt(np.where(constant, 1, variances))).mean(1)


def shares(facts: Facts, row: Row) -> Expected | None:
    if row["model"] not in facts.models and ", " not in row["model"]:
        return None
    try:
        curve_key = curve_key_of(row["model"], row["task"])
    except KeyError:
        return None
    if row["method"] == TOLD:
        return smallest_share(facts, curve_key, row["label"])
    method = NAMES[row["method"]]
    if (*curve_key, method) not in curves(facts):
        return UNDEFINED
    noise = noise_of(facts, curve_key, method)
    if row["label"].endswith(OVER_RANDOM):
        measure = row["label"].removesuffix(OVER_RANDOM)
        if (
            noise
            or "random" not in judged(facts, curve_key)
            or method == "random"
            or measure.endswith("r")
            or share_values(facts, curve_key, method, measure) is None
        ):
            return UNDEFINED
        return share_difference(facts, curve_key, method, measure)
    if noise:
        return Expected(state=noise) if row["label"] != "left out" else UNDEFINED
    if row["label"] == "left out":
        frame = shared(facts, curve_key, method)
        values = np.stack(frame["said without_top"].to_list())
        return number(int((~np.isfinite(values).all(1)).sum()))
    return share_mean(facts, curve_key, method, row["label"])


def smallest_share(facts: Facts, curve_key: CurveKey, measure: str) -> Expected:
    """Of the means over shares; nobody knows it of r, which is of all samples at once."""
    if measure not in MEASURES or measure.endswith("r"):
        return UNDEFINED
    values = [share_values(facts, curve_key, method, measure) for method in judged(facts, curve_key)]
    known = [of_method.mean(1) for of_method in values if of_method is not None]
    return smallest(np.stack(known, axis=1)) if known else UNDEFINED


def share_mean(facts: Facts, curve_key: CurveKey, method: str, measure: str) -> Expected:
    values = share_values(facts, curve_key, method, measure)
    if values is None:
        return UNDEFINED
    if measure.endswith("r"):
        scores = gold(facts, curve_key, method)
        value = float(correlation(values, scores, np.full((1, len(scores)), 1 / len(scores)))[0])
        if np.isnan(value):  # where predictions do not vary at some share
            return NOT_FINITE
        drawn = statistics.percentile_of(lambda w: correlation(values, scores, w), len(scores), facts.draws)
        return number(value, len(scores), drawn)
    bounds = (0.0 if MEASURES[measure].startswith("right") else -1.0, 1.0)
    means = values.mean(1)
    return number(means.mean(), len(means), facts.interval(means, bounds))


@cache
def share_pairs(facts: Facts, curve_key: CurveKey, measure: str) -> dict[tuple[str, str], Range]:
    """Adjusted p between methods, by sign flips."""
    values = {}
    for method in judged(facts, curve_key):
        of_samples = share_values(facts, curve_key, method, measure).mean(1)
        values[method] = pd.Series(of_samples, shared(facts, curve_key, method).index)
    return facts.pairs_of(values)


def share_difference(facts: Facts, curve_key: CurveKey, method: str, measure: str) -> Expected:
    first, second = (share_values(facts, curve_key, name, measure) for name in (method, "random"))
    p = share_pairs(facts, curve_key, measure)[method, "random"]
    values = first.mean(1) - second.mean(1)
    return number(values.mean(), len(values), statistics.of_differences(values), p)


def shares_overview(facts: Facts, row: Row) -> Expected | None:
    """As `shares`, a column a model."""
    if ": " in row["group"]:
        return copied.of_a_paper(row, row["group"])
    curve_key = curve_key_of(row["group"])
    method = NAMES.get(row["method"])
    if (*curve_key, method) not in curves(facts):
        return UNDEFINED
    if noise := noise_of(facts, curve_key, method):
        return Expected(state=noise)
    return share_mean(facts, curve_key, method, row["label"])


TABLES = {"shares": shares, "shares_overview": shares_overview}
