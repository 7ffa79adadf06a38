"""Tables of areas under curves as tokens go, and of evidence beside them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from itertools import combinations

import numpy as np
import pandas as pd
from scipy import stats

from tests.recompute import copied, statistics
from tests.recompute.expected import NOISE, TOLD, UNDEFINED, Expected, Left, number, smallest
from tests.recompute.facts import NAMES, Facts, Setting
from tests.recompute.statistics import Range
from tests.recompute.tables_scores import PERCENT, Cell

Row = Mapping[str, str]
WAYS = {"zeroed": "zero", "masked": "mask", "deleted": "delete", "resampled": "resample"}
INVERTED = ", inverted"
OF_CONTRAST = ", target − foil"
Place = tuple[str, str, str]  # model, task, perturbation (with `_contrast` where that is followed)


def place_of(text: str, task: str | None = None) -> Place:
    """The model, task and way of "bert, zeroed" or "sva · bert, zeroed"."""
    if " · " in text:
        task, text = text.split(" · ", 1)
    contrast = text.endswith(OF_CONTRAST)
    model, way = text.removesuffix(OF_CONTRAST).rsplit(", ", 1)
    assert task is not None
    return model, task, WAYS[way] + "_contrast" * contrast


@cache
def curves(facts: Facts) -> dict[tuple[str, str, str, str], pd.DataFrame]:
    """Curves by model, task, perturbation and method, of the relevance that is told: of token embeddings, if it is."""
    frame = facts.root.frame("curves")
    if not len(frame):
        return {}
    areas_of_it = frame["explanation"].map({"target": "target", "contrastive": "contrast"})
    frame = frame[(areas_of_it == frame["score"]) | (frame["explanation"] == "none")]
    explained = frame[frame["explanation"] != "none"]
    kept = set(zip(explained["model"], explained["task"], explained["score"], strict=True))
    kept |= {
        (model, task, "target")
        for model, task in zip(frame["model"], frame["task"], strict=True)
        if not any(one[:2] == (model, task) for one in kept)
    }
    frame = frame[[(row.model, row.task, row.score) in kept for row in frame[["model", "task", "score"]].itertuples()]]
    frame = frame[
        [row.dtype == facts.dtype(row.model, row.task) for row in frame[["model", "task", "dtype"]].itertuples()]
    ]
    frame = frame.assign(way=frame["perturbation"] + frame["score"].map({"target": "", "contrast": "_contrast"}))
    by_method = dict(iter(frame.groupby(["model", "task", "way", "method"], sort=False)))
    return {key: rows[rows["embedding"] == _embedding(rows)] for key, rows in by_method.items()}


def _embedding(rows: pd.DataFrame) -> str:
    """The first that there is: token embeddings, their sum with positions, or no choice."""
    return next(one for one in ("partial", "full", "none") if one in set(rows["embedding"]))


def setting_of(facts: Facts, place: Place, method: str) -> Setting:
    """The relevance that the curves of a method follow."""
    rows = curves(facts).get((*place, method))
    embedding = "full" if rows is None else _embedding(rows)
    return Setting(explanation="contrastive" if place[2].endswith("_contrast") else "target", embedding=embedding)


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
    if method == "random":  # either order is a random one
        frame["morf"] = frame["lerf"] = (frame["morf"] + frame["lerf"]) / 2
    return frame.assign(delta=frame["lerf"] - frame["morf"])


@cache
def judged(facts: Facts, place: Place) -> list[str]:
    """Methods with curves at a place that are more than rounding."""
    methods = sorted(key[3] for key in curves(facts) if key[:3] == place)
    return [one for one in methods if not facts.noise(cell_of(facts, place, one), setting_of(facts, place, one))]


@cache
def against_zero(facts: Facts) -> dict[tuple[Place, str], Range]:
    """Adjusted p of every ΔA against 0; Holm's family is the table."""
    places = sorted({key[:3] for key in curves(facts)})
    judging = [(place, method) for place in places for method in judged(facts, place) if method != "random"]
    named = [(place, method) for place, method in judging if len(areas(facts, place, method))]
    deltas = [areas(facts, place, method)["delta"].dropna().to_numpy()[:, None] for place, method in named]
    return dict(zip(named, statistics.holm([facts.sign_flip(one)[0] for one in deltas]), strict=True))


@cache
def area_pairs(facts: Facts, place: Place) -> dict[tuple[str, str], Range]:
    """Adjusted p of ΔA between methods of a place."""
    pairs = list(combinations(judged(facts, place), 2))
    n, ps = 0, []
    for a, b in pairs:
        one, other = areas(facts, place, a)["delta"].dropna(), areas(facts, place, b)["delta"].dropna()
        common = one.index.intersection(other.index)
        n = len(common)
        ps.append(facts.sign_flip((one[common] - other[common]).to_numpy()[:, None])[0])
    adjusted = dict(zip(pairs, statistics.holm_of_pairs(ps, n), strict=True))
    return adjusted | {(b, a): p for (a, b), p in adjusted.items()}


def faithfulness(facts: Facts, row: Row) -> Expected | None:
    """Areas and their difference; of random orders the mean of both areas, and no difference."""
    place = place_of(row["model"], row["task"])
    column = {"ΔA": "delta", "A MoRF": "morf", "A LeRF": "lerf"}.get(row["label"])
    if row["method"] == TOLD:
        if column is None:
            return UNDEFINED
        tables = {name: areas(facts, place, name).dropna() for name in judged(facts, place)}
        known = [table[column].rename(name) for name, table in tables.items() if len(table)]
        return smallest(pd.concat(known, axis=1, join="inner").to_numpy())
    inverted = row["method"].endswith(INVERTED)
    method = NAMES[row["method"].removesuffix(INVERTED)]
    if (*place, method) not in curves(facts):
        return UNDEFINED
    if facts.noise(cell_of(facts, place, method), setting_of(facts, place, method)):
        return NOISE if row["label"] != "left out" else UNDEFINED
    frame = areas(facts, place, method)
    if row["label"] == "left out":
        return number(int(frame["delta"].isna().sum()))
    frame = frame.dropna()
    if (column, method) == ("delta", "random"):
        return number(0.0, len(frame))
    if inverted:
        column = {"morf": "lerf", "lerf": "morf", "delta": "delta"}[column]
    values = frame[column].to_numpy() * (-1 if inverted and column == "delta" else 1)
    p = against_zero(facts)[place, method] if column == "delta" else None
    return number(values.mean(), len(values), facts.interval(values), p, scale=10)


@cache
def first_way(facts: Facts, model: str, task: str) -> Place | None:
    """The first way of the configuration in which tokens of a task go, with the number that its scores explain."""
    settings = facts.root.config["perturb"] or {}
    known = {key[:3] for key in curves(facts) if key[:2] == (model, task)}
    cells = (frame for cell, frame in facts.cells.items() if cell[:3] == (model, task, facts.dtype(model, task)))
    contrastive = any("contrastive" in set(frame["explanation"]) for frame in cells)
    for way in settings.get("ways") or ["zero"]:
        place = (model, task, f"{way}_contrast" if contrastive else way)
        if place in known:
            return place
    return None


def on_common_samples(facts: Facts, model: str, task: str, method: str) -> Expected:
    """ΔA over the samples that all methods have."""
    place = first_way(facts, model, task)
    every = {one: areas(facts, place, one) for one in judged(facts, place)} if place else {}
    every = {one: frame["delta"] for one, frame in every.items() if len(frame)}
    if method not in every:
        return UNDEFINED
    deltas = pd.concat(every, axis=1).dropna()
    values = deltas[method].to_numpy()
    return number(values.mean(), len(values), facts.interval(values), scale=10)


def differences(facts: Facts, place: Place, method: str, other: str) -> Expected:
    one, two = areas(facts, place, method)["delta"].dropna(), areas(facts, place, other)["delta"].dropna()
    common = one.index.intersection(two.index)
    values = (one[common] - two[common]).to_numpy()
    p = area_pairs(facts, place)[method, other]
    return number(values.mean(), len(values), statistics.of_differences(values), p, scale=10)


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
    """ΔA as in its table, and the IoU of the same relevance."""
    if ": " in row["group"]:
        return copied.of_a_paper(row, row["group"])
    place = place_of(row["group"])
    method = NAMES[row["method"].removesuffix(INVERTED)]
    inverted = row["method"].endswith(INVERTED)
    cell = cell_of(facts, place, method)
    if (*place, method) not in curves(facts):
        return UNDEFINED
    without = row["label"] == "IoU" and not len(facts.scored(cell, setting_of(facts, place, method)))
    if facts.noise(cell, setting_of(facts, place, method)):
        return UNDEFINED if without else NOISE
    if row["label"] == "ΔA":
        values = areas(facts, place, method)["delta"].dropna().to_numpy() * (-1 if inverted else 1)
        if method == "random":
            return number(0.0, len(values))
        return number(values.mean(), len(values), facts.interval(values), scale=10)
    frame = facts.scored(cell, setting_of(facts, place, method))
    if not len(frame) or inverted:
        return UNDEFINED if not inverted else None
    values = frame["iou"].to_numpy()
    return number(values.mean(), len(values), facts.interval(values, (0.0, 1.0)))


def evidence_faithfulness(facts: Facts, row: Row) -> Expected | Left:
    """PG and ΔA of a method: of one explanation and on the samples that all methods have."""
    place, method = place_of(row["model"], row["task"]), NAMES[row["method"]]
    if row["label"] == "forwards":
        explained = facts.cells[cell_of(facts, place, method)]["explanation"]
        return copied.forwards(method, explained.nunique())
    sides = both(facts, place, method)
    if row["label"] == "samples":
        return number(len(sides["PG"]))
    values = sides[row["label"]]
    bounds = PERCENT if row["label"] == "PG" else None
    return number(values.mean(), len(values), facts.interval(values, bounds), scale=100 if bounds else 10)


@cache
def both(facts: Facts, place: Place, method: str) -> dict[str, np.ndarray]:
    cell = cell_of(facts, place, method)
    deltas = areas(facts, place, method)["delta"].dropna()
    frame = facts.scored(cell, setting_of(facts, place, method))
    common = deltas.index.intersection(frame.index)
    frame, deltas = frame.loc[common], deltas[common]
    return {"PG": 100 * frame["pg"].to_numpy(), "ΔA": deltas.to_numpy()}


def ranked(facts: Facts, place: Place) -> list[str]:
    """Methods that both rankings have, but for random relevance."""
    methods = [one for one in judged(facts, place) if len(both(facts, place, one)["PG"])]
    return [one for one in methods if one != "random"]


def evidence_faithfulness_ranks(facts: Facts, row: Row) -> Expected | None:
    place = place_of(row["model"], row["task"])
    methods = ranked(facts, place)
    if row["label"] == "methods":
        return number(len(methods))
    sides = [np.stack([both(facts, place, one)[name] for one in methods]) for name in ("PG", "ΔA")]  # [M, N]
    if row["label"] == "samples":
        return number(sides[0].shape[1])
    if row["label"] != "rank correlation":
        return None

    def correlation(weights: np.ndarray) -> np.ndarray:
        return np.array([spearman(*(side @ one for side in sides)) for one in weights])

    n = sides[0].shape[1]
    value = float(correlation(np.full((1, n), 1 / n))[0])
    if np.isnan(value):
        return UNDEFINED
    return number(value, n, statistics.percentile_of(correlation, n, facts.draws))


def spearman(one: np.ndarray, other: np.ndarray) -> float:
    """NaN where either side has no order."""
    ranks = [stats.rankdata(np.round(values, 9)) for values in (one, other)]
    return float("nan") if min(map(np.ptp, ranks)) == 0 else float(np.corrcoef(*ranks)[0, 1])


TABLES = {
    "faithfulness": faithfulness,
    "faithfulness_pairs": faithfulness_pairs,
    "faithfulness_overview": faithfulness_overview,
    "evidence_faithfulness": evidence_faithfulness,
    "evidence_faithfulness_ranks": evidence_faithfulness_ranks,
}
