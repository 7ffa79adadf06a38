"""Tables and figures of what happens as tokens, heads and neurons go."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from itertools import combinations

import numpy as np
import pandas as pd
from scipy import stats

from tests.recompute import statistics
from tests.recompute.expected import NOISE, UNDEFINED, Expected, number
from tests.recompute.facts import NAMES, Facts, Setting
from tests.recompute.statistics import Range
from tests.recompute.tables_scores import PERCENT, Cell

Row = Mapping[str, str]
WAYS = {"zeroed": "zero", "masked": "mask", "deleted": "delete"}
SHARES = range(10, 100, 10)  # percent
INVERTED = ", inverted"
Place = tuple[str, str, str]  # model, task, perturbation


def place_of(text: str, task: str | None = None) -> Place:
    """The model, task and way of "bert, zeroed" or "sva · bert, zeroed"."""
    if " · " in text:
        task, text = text.split(" · ", 1)
    model, way = text.rsplit(", ", 1)
    assert task is not None
    return model, task, WAYS[way]


@cache
def curves(facts: Facts) -> dict[tuple[str, str, str, str], pd.DataFrame]:
    """Curves by model, task, perturbation and method: of the target, with full embeddings where there is a choice."""
    frame = facts.root.frame("curves")
    if not len(frame):
        return {}
    frame = frame[frame["explanation"].isin(["target", "none"]) & frame["embedding"].isin(["full", "none"])]
    frame = frame[
        [row.dtype == facts.dtype(row.model, row.task) for row in frame[["model", "task", "dtype"]].itertuples()]
    ]
    return dict(iter(frame.groupby(["model", "task", "perturbation", "method"], sort=False)))


def cell_of(facts: Facts, place: Place, method: str) -> Cell:
    return place[0], place[1], facts.dtype(place[0], place[1]), method


@cache
def areas(facts: Facts, place: Place, method: str) -> pd.DataFrame:
    """Areas under both curves of each sample, and their difference, by sample; NaN where a curve is not finite."""
    rows = curves(facts).get((*place, method))
    if rows is None:
        return pd.DataFrame()
    found: dict[str, dict[str, float]] = {}
    for row in rows[rows["order"].isin(["morf", "lerf"])].itertuples():
        gone = np.array(row.removed, np.float64)
        found.setdefault(row.sample_id, {})[row.order] = statistics.trapezoids(
            np.array(row.logit, np.float64), gone / gone[-1]
        )
    if not found:
        return pd.DataFrame()
    frame = pd.DataFrame.from_dict(found, orient="index").sort_index()
    return frame.assign(delta=frame["lerf"] - frame["morf"])


@cache
def judged(facts: Facts, place: Place) -> list[str]:
    """Methods with curves at a place that are more than rounding."""
    methods = sorted(key[3] for key in curves(facts) if key[:3] == place)
    return [one for one in methods if not facts.noise(cell_of(facts, place, one), Setting(explanation="target"))]


@cache
def against_zero(facts: Facts) -> dict[tuple[Place, str], Range]:
    """Adjusted p of every ΔA against 0; Holm's family is the table."""
    places = sorted({key[:3] for key in curves(facts)})
    named = [(place, method) for place in places for method in judged(facts, place) if len(areas(facts, place, method))]
    deltas = [areas(facts, place, method)["delta"].dropna().to_numpy()[:, None] for place, method in named]
    return dict(zip(named, statistics.holm([facts.sign_flip(one)[0] for one in deltas]), strict=True))


@cache
def area_pairs(facts: Facts, place: Place) -> dict[tuple[str, str], Range]:
    """Adjusted p of ΔA between methods of a place."""
    pairs = list(combinations(judged(facts, place), 2))
    ps = []
    for a, b in pairs:
        one, other = areas(facts, place, a)["delta"].dropna(), areas(facts, place, b)["delta"].dropna()
        common = one.index.intersection(other.index)
        ps.append(facts.sign_flip((one[common] - other[common]).to_numpy()[:, None])[0])
    adjusted = dict(zip(pairs, statistics.holm(ps), strict=True))
    return adjusted | {(b, a): p for (a, b), p in adjusted.items()}


def faithfulness(facts: Facts, row: Row) -> Expected | None:
    """Areas, their difference, and that over random relevance."""
    place = place_of(row["model"], row["task"])
    inverted = row["method"].endswith(INVERTED)
    method = NAMES[row["method"].removesuffix(INVERTED)]
    if (*place, method) not in curves(facts):
        return UNDEFINED
    column = {"ΔA": "delta", "A MoRF": "morf", "A LeRF": "lerf"}.get(row["label"])
    if facts.noise(cell_of(facts, place, method), Setting(explanation="target")):
        return NOISE if row["label"] != "left out" else UNDEFINED
    frame = areas(facts, place, method)
    if row["label"] == "left out":
        return number(int(frame["delta"].isna().sum()))
    frame = frame.dropna()
    if column is None:
        alone = inverted or method == "random" or "random" not in judged(facts, place)
        return UNDEFINED if alone else differences(facts, place, method, "random")
    if inverted:
        column = {"morf": "lerf", "lerf": "morf", "delta": "delta"}[column]
    values = frame[column].to_numpy() * (-1 if inverted and column == "delta" else 1)
    p = against_zero(facts)[place, method] if column == "delta" else None
    return number(values.mean(), len(values), facts.interval(values), p, scale=10)


def differences(facts: Facts, place: Place, method: str, other: str) -> Expected:
    one, two = areas(facts, place, method)["delta"].dropna(), areas(facts, place, other)["delta"].dropna()
    common = one.index.intersection(two.index)
    values = (one[common] - two[common]).to_numpy()
    p = area_pairs(facts, place)[method, other]
    return number(values.mean(), len(values), facts.interval(values), p, scale=10)


def faithfulness_pairs(facts: Facts, row: Row) -> Expected | None:
    place = place_of(row["model"], row["task"])
    methods = [NAMES[row[name]] for name in ("method", "label")]
    if methods[0] == methods[1]:
        return UNDEFINED
    known = [one for one in methods if (*place, one) in curves(facts)]
    if any(one not in judged(facts, place) for one in known):
        return NOISE
    return differences(facts, place, *methods) if len(known) == 2 else UNDEFINED


def faithfulness_overview(facts: Facts, row: Row) -> Expected | None:
    """ΔA as in its table, and the IoU of the same relevance; columns of papers have no recomputation."""
    if ", " not in row["group"]:
        return None
    place = place_of(row["group"])
    method = NAMES[row["method"].removesuffix(INVERTED)]
    inverted = row["method"].endswith(INVERTED)
    cell = cell_of(facts, place, method)
    if (*place, method) not in curves(facts):
        return UNDEFINED
    without = row["label"] == "IoU" and not len(facts.scored(cell, Setting(explanation="target")))
    if facts.noise(cell, Setting(explanation="target")):
        return UNDEFINED if without else NOISE
    if row["label"] == "ΔA":
        values = areas(facts, place, method)["delta"].dropna().to_numpy() * (-1 if inverted else 1)
        return number(values.mean(), len(values), facts.interval(values), scale=10)
    frame = facts.scored(cell, Setting(explanation="target"))
    if not len(frame) or inverted:
        return UNDEFINED if not inverted else None
    values = frame["iou"].to_numpy()
    return number(values.mean(), len(values), facts.interval(values, (0.0, 1.0)))


@cache
def shared(facts: Facts, place: Place, method: str) -> pd.DataFrame:
    """What shares of tokens gone do to each sample: means over 10 to 90 % of a probability lost and of being right."""
    rows = curves(facts)[(*place, method)]
    found: dict[str, dict[str, object]] = {}
    for row in rows[rows["order"].isin(["without_top", "top_only"])].itertuples():
        at = [list(row.percent).index(share) for share in SHARES]
        numbers: dict[str, object] = {"said": np.array(row.logit, np.float64)[at]}
        if row.probability is not None:
            probability = np.array(row.probability, np.float64)
            numbers["lost"] = probability[0] - probability[at]
            numbers["right"] = np.array(row.correct, np.float64)[at]
        sample = found.setdefault(row.sample_id, {})
        sample |= {f"{name} {row.order}": value for name, value in numbers.items()}
    return pd.DataFrame.from_dict(found, orient="index").sort_index()


MEASURES = {
    "AOPC": "lost without_top",
    "Sufficiency": "lost top_only",
    "Accuracy": "right without_top",
    "Sufficiency, accuracy": "right top_only",
    "Pearson r": "said without_top",
    "Sufficiency, r": "said top_only",
}
OVER_RANDOM = " over random"


def share_values(facts: Facts, place: Place, method: str, measure: str) -> np.ndarray | None:
    """[samples, shares] of a measure; None where the task has none."""
    frame = shared(facts, place, method)
    if MEASURES[measure] not in frame or measure.endswith("r") == ("lost without_top" in frame):
        return None
    return np.stack(frame[MEASURES[measure]].to_list())


def gold(facts: Facts, place: Place, method: str) -> np.ndarray:
    cell = cell_of(facts, place, method)
    return np.array([facts.view(cell, sample)["score"] for sample in shared(facts, place, method).index])


def correlation(said: np.ndarray, scores: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Mean over shares of Pearson's r of `said` [samples, shares] with scores, by weights [draws, samples]."""
    x, y = said - said.mean(0), scores - scores.mean()
    mean_x, mean_y = weights @ x, (weights @ y)[:, None]
    covariance = weights @ (x * y[:, None]) - mean_x * mean_y
    variances = (weights @ x**2 - mean_x**2) * ((weights @ y**2)[:, None] - mean_y**2)
    constant = variances <= 1e-12 * (x**2).mean(0) * (y**2).mean()
    return np.where(constant, np.nan, covariance / np.sqrt(np.where(constant, 1, variances))).mean(1)


def shares(facts: Facts, row: Row) -> Expected | None:
    if row["model"] not in facts.models and ", " not in row["model"]:
        return None
    try:
        place = place_of(row["model"], row["task"])
    except KeyError:
        return None
    method = NAMES[row["method"]]
    if (*place, method) not in curves(facts):
        return UNDEFINED
    noise = method not in judged(facts, place)
    if row["label"].endswith(OVER_RANDOM):
        measure = row["label"].removesuffix(OVER_RANDOM)
        if (
            noise
            or "random" not in judged(facts, place)
            or method == "random"
            or share_values(facts, place, method, measure) is None
        ):
            return UNDEFINED
        return share_difference(facts, place, method, measure)
    if noise:
        return NOISE if row["label"] != "left out" else UNDEFINED
    if row["label"] == "left out":
        frame = shared(facts, place, method)
        values = np.stack(frame["said without_top"].to_list())
        return number(int((~np.isfinite(values).all(1)).sum()))
    return share_mean(facts, place, method, row["label"])


def share_mean(facts: Facts, place: Place, method: str, measure: str) -> Expected:
    values = share_values(facts, place, method, measure)
    if values is None:
        return UNDEFINED
    if measure.endswith("r"):
        scores = gold(facts, place, method)
        value = np.mean([np.corrcoef(values[:, at], scores)[0, 1] for at in range(values.shape[1])])
        drawn = statistics.percentile_of(lambda w: correlation(values, scores, w), len(scores), facts.draws)
        return number(value, len(scores), drawn)
    bounds = (0.0, 1.0) if MEASURES[measure].startswith("right") else None
    means = values.mean(1)
    return number(means.mean(), len(means), facts.interval(means, bounds))


@cache
def share_pairs(facts: Facts, place: Place, measure: str) -> dict[tuple[str, str], Range]:
    """Adjusted p between methods of a place, by sign flips; of r, by swapping what is said under both."""
    pairs = list(combinations(judged(facts, place), 2))
    ps = []
    for a, b in pairs:
        one, two = share_values(facts, place, a, measure), share_values(facts, place, b, measure)
        if measure.endswith("r"):
            ps.append(swapped(one, two, gold(facts, place, a), facts.flips))
        else:
            ps.append(facts.sign_flip((one.mean(1) - two.mean(1))[:, None])[0])
    adjusted = dict(zip(pairs, statistics.holm(ps), strict=True))
    return adjusted | {(b, a): p for (a, b), p in adjusted.items()}


def swapped(one: np.ndarray, two: np.ndarray, scores: np.ndarray, draws: int) -> Range:
    """Two-sided p of a difference of mean r, as what is said of samples is swapped at random."""
    keep = (statistics.flips(len(scores)) > 0)[:, :, None]
    y = scores - scores.mean()

    def mean_r(said: np.ndarray) -> np.ndarray:
        x = said - said.mean(1, keepdims=True)
        return ((x * y[None, :, None]).sum(1) / np.sqrt((x**2).sum(1) * (y**2).sum())).mean(1)

    drawn = mean_r(np.where(keep, one, two)) - mean_r(np.where(keep, two, one))
    observed = (mean_r(one[None]) - mean_r(two[None]))[0]
    return statistics.p_range(float((np.abs(drawn) >= abs(observed) - 1e-9).mean()), len(scores), draws)


def share_difference(facts: Facts, place: Place, method: str, measure: str) -> Expected:
    one, two = (share_values(facts, place, name, measure) for name in (method, "random"))
    p = share_pairs(facts, place, measure)[method, "random"]
    if measure.endswith("r"):
        scores = gold(facts, place, method)
        whole = np.full((1, len(scores)), 1 / len(scores))

        def difference(weights: np.ndarray) -> np.ndarray:
            return correlation(one, scores, weights) - correlation(two, scores, weights)

        drawn = statistics.percentile_of(difference, len(scores), facts.draws)
        return number(float(difference(whole)[0]), len(scores), drawn, p)
    values = one.mean(1) - two.mean(1)
    return number(values.mean(), len(values), facts.interval(values), p)


def shares_overview(facts: Facts, row: Row) -> Expected | None:
    """As `shares`, a column a model."""
    try:
        place = place_of(row["group"])
    except (KeyError, ValueError):
        return None
    method = NAMES.get(row["method"])
    if (*place, method) not in curves(facts):
        return UNDEFINED
    if method not in judged(facts, place):
        return NOISE
    return share_mean(facts, place, method, row["label"])


def extremes(facts: Facts, row: Row) -> Expected | None:
    """Largest relevance and what is missing from the sum, in units of the explained number."""
    model, dtype = row["model"].rsplit(", ", 1)
    cell = (model, row["task"], dtype, NAMES[row["method"]])
    rows = facts.variant(cell, Setting())
    explained = np.abs(rows["explained"].to_numpy(np.float64))
    peaks = np.array([np.abs(np.array(one, np.float64)).max() for one in rows["relevance"]])
    kept = np.isfinite(peaks) & (peaks > 0) & (explained > 0)
    if row["label"] == "samples":
        return number(int(kept.sum()))
    if row["label"] == "left out":
        return number(int((~kept).sum()))
    missing = row["group"] == "missing from the sum"
    values = (np.abs(rows["residual"].to_numpy(np.float64)) if missing else peaks)[kept] / explained[kept]
    return number({"median": np.median, "maximum": np.max}[row["label"]](values))


@cache
def knocked(facts: Facts) -> dict[tuple[str, str, str], pd.DataFrame]:
    """Drops of the explained number by model, task and ranking: a row a sample, a column a count of neurons."""
    frame = facts.root.frame("knockouts")
    tables = {}
    for (model, task, ranking), rows in frame.groupby(["model", "task", "ranking"], sort=False):
        drops = {
            one.sample_id: dict(zip(one.removed, one.explained[0] - np.array(one.explained, np.float64), strict=True))
            for one in rows.itertuples()
        }
        tables[model, task, ranking] = pd.DataFrame.from_dict(drops, orient="index").sort_index()
    return tables


@cache
def knocked_pairs(facts: Facts, model: str, task: str, count: int) -> dict[tuple[str, str], Range]:
    rankings = {key[2]: table for key, table in knocked(facts).items() if key[:2] == (model, task)}
    pairs = list(combinations(sorted(rankings), 2))
    ps = []
    for a, b in pairs:
        one, two = rankings[a][count].dropna(), rankings[b][count].dropna()
        common = one.index.intersection(two.index)
        ps.append(facts.sign_flip((one[common] - two[common]).to_numpy()[:, None])[0])
    adjusted = dict(zip(pairs, statistics.holm(ps), strict=True))
    return adjusted | {(b, a): p for (a, b), p in adjusted.items()}


def knockouts(facts: Facts, row: Row) -> Expected | None:
    key = (row["model"], row["task"], NAMES[row["ranking"]])
    if key not in knocked(facts) or not row["label"].isdigit():
        return None
    count = int(row["label"])
    values = knocked(facts)[key][count].dropna().to_numpy()
    p = knocked_pairs(facts, *key[:2], count).get((key[2], "random"))
    return number(values.mean(), len(values), facts.interval(values), p, scale=10)


@cache
def pruned(facts: Facts) -> dict[tuple[str, str, str, str, str], list[pd.DataFrame]]:
    """Pruning curves by model, task, method, pooling and order, a frame a seed."""
    frame = facts.root.frame("pruning")
    keys = ["model", "task", "method", "pooling", "order"]
    frame = frame[
        [row.dtype == facts.dtype(row.model, row.task) for row in frame[["model", "task", "dtype"]].itertuples()]
    ]
    curves = {}
    for key, rows in frame.groupby(keys, sort=False):
        runs = [run.sort_values("step") for _, run in rows.groupby("seed", dropna=False)]
        curves[key] = runs
    return curves


POOLINGS = {"ReLU dim": "relu_dim", "ReLU per token": "relu_token", "no ReLU": "none"}
ORDERS = {"least relevant heads first": "least_first", "most relevant heads first": "most_first"}


def pruning_runs(facts: Facts, model: str, task: str, method: str, pooling: str, order: str) -> list[pd.DataFrame]:
    """The curves of a method; random orders have neither pooling nor a direction."""
    if method != "random":
        return pruned(facts).get((model, task, method, pooling, order), [])
    return [run for key, runs in pruned(facts).items() if key[:3] == (model, task, "random") for run in runs]


def removed_heads(run: pd.DataFrame) -> np.ndarray:
    return np.cumsum([len(heads) for heads in run["pruned_heads"]]).astype(np.float64)


def pruning_area(facts: Facts, row: Row) -> Expected | None:
    """The mean accuracy over the share of heads removed, percent."""
    method = NAMES[row["method"]]
    runs = pruning_runs(facts, row["model"], row["task"], method, POOLINGS[row["label"]], ORDERS[row["group"]])
    if not runs:
        return UNDEFINED
    values = []
    for run in runs:
        gone = removed_heads(run)
        values.append(statistics.trapezoids(run["accuracy"].to_numpy(), gone / gone[-1]))
    return number(100 * float(np.mean(values)), scale=100)


def evidence_faithfulness(facts: Facts, row: Row) -> Expected | None:
    """PG and ΔA of a method: of one explanation and on the same samples where rules say so."""
    place, method = place_of(row["model"], row["task"]), NAMES[row["method"]]
    if row["label"] not in ("PG", "ΔA"):
        return None
    values = both(facts, place, method)[row["label"]]
    bounds = PERCENT if row["label"] == "PG" else None
    return number(values.mean(), len(values), facts.interval(values, bounds), scale=100 if bounds else 10)


@cache
def both(facts: Facts, place: Place, method: str) -> dict[str, np.ndarray]:
    cell = cell_of(facts, place, method)
    deltas = areas(facts, place, method)["delta"].dropna()
    same = facts.rules.same_explanation
    frame = facts.scored(cell, Setting(explanation="target") if same else Setting())
    if same:
        common = deltas.index.intersection(frame.index)
        frame, deltas = frame.loc[common], deltas[common]
    return {"PG": 100 * frame["pg"].to_numpy(), "ΔA": deltas.to_numpy()}


def ranked(facts: Facts, place: Place) -> list[str]:
    """Methods that both rankings have; random relevance is no method where rules say so."""
    methods = [one for one in judged(facts, place) if len(facts.scored(cell_of(facts, place, one)))]
    return [one for one in methods if one != "random" or not facts.rules.same_explanation]


def evidence_faithfulness_ranks(facts: Facts, row: Row) -> Expected | None:
    place = place_of(row["model"], row["task"])
    methods = ranked(facts, place)
    if row["label"] == "methods":
        return number(len(methods))
    if row["label"] != "rank correlation":
        return None
    means = [[float(both(facts, place, one)[name].mean()) for one in methods] for name in ("PG", "ΔA")]
    ranks = [stats.rankdata(np.round(one, 9)) for one in means]
    if min(map(np.ptp, ranks)) == 0:
        return UNDEFINED
    return number(float(np.corrcoef(*ranks)[0, 1]))


TABLES = {
    "faithfulness": faithfulness,
    "faithfulness_pairs": faithfulness_pairs,
    "faithfulness_overview": faithfulness_overview,
    "shares": shares,
    "shares_overview": shares_overview,
    "extremes": extremes,
    "knockouts": knockouts,
    "pruning_area": pruning_area,
    "evidence_faithfulness": evidence_faithfulness,
    "evidence_faithfulness_ranks": evidence_faithfulness_ranks,
}
