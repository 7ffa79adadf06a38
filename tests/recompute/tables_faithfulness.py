"""Tables of areas under curves as tokens go, and of evidence beside them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import numpy as np
import pandas as pd
from scipy import stats

from tests.recompute import copied, statistics
from tests.recompute.expected import TOLD, UNDEFINED, Expected, Left, number, smallest
from tests.recompute.facts import NAMES, Facts, Setting
from tests.recompute.statistics import Range
from tests.recompute.tables_scores import PERCENT, Cell

Row = Mapping[str, str]
WAYS = {"zeroed": "zero", "masked": "mask", "deleted": "delete", "resampled": "resample"}
INVERTED = ", inverted"
OF_CONTRAST = ", target − foil"
CurveKey = tuple[str, str, str]  # model, task, perturbation (with `_contrast` where that is followed)


def curve_key_of(text: str, task: str | None = None) -> CurveKey:
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
        if not any(entry[:2] == (model, task) for entry in kept)
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
    return next(embedding for embedding in ("partial", "full", "none") if embedding in set(rows["embedding"]))


def setting_of(facts: Facts, curve_key: CurveKey, method: str) -> Setting:
    """The relevance that the curves of a method follow."""
    rows = curves(facts).get((*curve_key, method))
    embedding = "full" if rows is None else _embedding(rows)
    return Setting(explanation="contrastive" if curve_key[2].endswith("_contrast") else "target", embedding=embedding)


def cell_of(facts: Facts, curve_key: CurveKey, method: str) -> Cell:
    return curve_key[0], curve_key[1], facts.dtype(curve_key[0], curve_key[1]), method


@cache
def areas(facts: Facts, curve_key: CurveKey, method: str) -> pd.DataFrame:
    """Areas under both curves of each sample, and their difference, by sample; NaN where a curve is not finite."""
    rows = curves(facts).get((*curve_key, method))
    if rows is None:
        return pd.DataFrame()
    by_sample: dict[str, dict[str, float]] = {}
    for row in rows[rows["order"].isin(["morf", "lerf"])].itertuples():
        gone = np.array(row.removed, np.float64)
        by_sample.setdefault(row.sample_id, {})[row.order] = statistics.trapezoids(
            np.array(row.logit, np.float64), gone / gone[-1]
        )
    if not by_sample:
        return pd.DataFrame()
    frame = pd.DataFrame.from_dict(by_sample, orient="index").sort_index()
    if method == "random":  # either order is a random one
        frame["morf"] = frame["lerf"] = (frame["morf"] + frame["lerf"]) / 2
    return frame.assign(delta=frame["lerf"] - frame["morf"])


@cache
def judged(facts: Facts, curve_key: CurveKey) -> list[str]:
    """Methods whose curves of a model, task and way are more than rounding."""
    methods = sorted(key[3] for key in curves(facts) if key[:3] == curve_key)
    return [method for method in methods if not noise_of(facts, curve_key, method)]


def noise_of(facts: Facts, curve_key: CurveKey, method: str) -> str:
    """The state of a method's numbers if its curves follow what is, or may be, rounding; else empty."""
    return facts.noise(cell_of(facts, curve_key, method), setting_of(facts, curve_key, method))


@cache
def against_zero(facts: Facts) -> dict[tuple[CurveKey, str], Range]:
    """Adjusted p of every ΔA against 0; Holm's family is the table."""
    curve_keys = sorted({key[:3] for key in curves(facts)})
    judging = [
        (curve_key, method) for curve_key in curve_keys for method in judged(facts, curve_key) if method != "random"
    ]
    named = [(curve_key, method) for curve_key, method in judging if len(areas(facts, curve_key, method))]
    deltas = [areas(facts, curve_key, method)["delta"].dropna().to_numpy()[:, None] for curve_key, method in named]
    return dict(zip(named, statistics.holm([facts.sign_flip(values)[0] for values in deltas]), strict=True))


def faithfulness(facts: Facts, row: Row) -> Expected | None:
    """Areas and their difference; of random orders the mean of both areas, and no difference."""
    curve_key = curve_key_of(row["model"], row["task"])
    column = {"ΔA": "delta", "A MoRF": "morf", "A LeRF": "lerf"}.get(row["label"])
    if row["method"] == TOLD:
        if column is None:
            return UNDEFINED
        tables = {name: areas(facts, curve_key, name).dropna() for name in judged(facts, curve_key)}
        known = [table[column].rename(name) for name, table in tables.items() if len(table)]
        return smallest(pd.concat(known, axis=1, join="inner").to_numpy())
    inverted = row["method"].endswith(INVERTED)
    method = NAMES[row["method"].removesuffix(INVERTED)]
    if (*curve_key, method) not in curves(facts):
        return UNDEFINED
    if noise := noise_of(facts, curve_key, method):
        return Expected(state=noise) if row["label"] != "left out" else UNDEFINED
    frame = areas(facts, curve_key, method)
    if row["label"] == "left out":
        return number(int(frame["delta"].isna().sum()))
    frame = frame.dropna()
    if (column, method) == ("delta", "random"):
        return number(0.0, len(frame))
    if inverted:
        column = {"morf": "lerf", "lerf": "morf", "delta": "delta"}[column]
    values = frame[column].to_numpy() * (-1 if inverted and column == "delta" else 1)
    p = against_zero(facts)[curve_key, method] if column == "delta" else None
    return number(values.mean(), len(values), facts.interval(values), p, scale=10)


@cache
def first_way(facts: Facts, model: str, task: str) -> CurveKey | None:
    """The first way of the configuration in which tokens of a task go, with the number that its scores explain."""
    settings = facts.root.config["perturb"] or {}
    known = {key[:3] for key in curves(facts) if key[:2] == (model, task)}
    cells = (frame for cell, frame in facts.cells.items() if cell[:3] == (model, task, facts.dtype(model, task)))
    contrastive = any("contrastive" in set(frame["explanation"]) for frame in cells)
    for way in settings.get("ways") or ["zero"]:
        curve_key = (model, task, f"{way}_contrast" if contrastive else way)
        if curve_key in known:
            return curve_key
    return None


def on_common_samples(facts: Facts, model: str, task: str, method: str) -> Expected:
    """ΔA over the samples that all methods have."""
    curve_key = first_way(facts, model, task)
    every = {name: areas(facts, curve_key, name) for name in judged(facts, curve_key)} if curve_key else {}
    every = {name: frame["delta"] for name, frame in every.items() if len(frame)}
    if method not in every:
        return UNDEFINED
    deltas = pd.concat(every, axis=1).dropna()
    values = deltas[method].to_numpy()
    return number(values.mean(), len(values), facts.interval(values), scale=10)


def faithfulness_overview(facts: Facts, row: Row) -> Expected | None:
    """ΔA as in its table, and the IoU of the same relevance."""
    if ": " in row["group"]:
        return copied.of_a_paper(row, row["group"])
    curve_key = curve_key_of(row["group"])
    method = NAMES[row["method"].removesuffix(INVERTED)]
    inverted = row["method"].endswith(INVERTED)
    cell = cell_of(facts, curve_key, method)
    if (*curve_key, method) not in curves(facts):
        return UNDEFINED
    without = row["label"] == "IoU" and not len(facts.scored(cell, setting_of(facts, curve_key, method)))
    if noise := noise_of(facts, curve_key, method):
        return UNDEFINED if without else Expected(state=noise)
    if row["label"] == "ΔA":
        values = areas(facts, curve_key, method)["delta"].dropna().to_numpy() * (-1 if inverted else 1)
        if method == "random":
            return number(0.0, len(values))
        return number(values.mean(), len(values), facts.interval(values), scale=10)
    frame = facts.scored(cell, setting_of(facts, curve_key, method))
    if not len(frame) or inverted:
        return UNDEFINED if not inverted else None
    values = frame["iou"].to_numpy()
    return number(values.mean(), len(values), facts.interval(values, (0.0, 1.0)))


def evidence_faithfulness(facts: Facts, row: Row) -> Expected | Left:
    """PG and ΔA of a method: of one explanation and on the samples that all methods have."""
    curve_key, method = curve_key_of(row["model"], row["task"]), NAMES[row["method"]]
    if row["label"] == "forwards":
        explained = facts.cells[cell_of(facts, curve_key, method)]["explanation"]
        return copied.forwards(method, explained.nunique())
    sides = both(facts, curve_key, method)
    if row["label"] == "samples":
        return number(len(sides["PG"]))
    values = sides[row["label"]]
    bounds = PERCENT if row["label"] == "PG" else None
    return number(values.mean(), len(values), facts.interval(values, bounds), scale=100 if bounds else 10)


@cache
def both(facts: Facts, curve_key: CurveKey, method: str) -> dict[str, np.ndarray]:
    cell = cell_of(facts, curve_key, method)
    deltas = areas(facts, curve_key, method)["delta"].dropna()
    frame = facts.scored(cell, setting_of(facts, curve_key, method))
    common = deltas.index.intersection(frame.index)
    frame, deltas = frame.loc[common], deltas[common]
    return {"PG": 100 * frame["pg"].to_numpy(), "ΔA": deltas.to_numpy()}


def ranked(facts: Facts, curve_key: CurveKey) -> list[str]:
    """Methods that both rankings have, but for random relevance."""
    methods = [method for method in judged(facts, curve_key) if len(both(facts, curve_key, method)["PG"])]
    return [method for method in methods if method != "random"]


def evidence_faithfulness_ranks(facts: Facts, row: Row) -> Expected | None:
    curve_key = curve_key_of(row["model"], row["task"])
    methods = ranked(facts, curve_key)
    if row["label"] == "methods":
        return number(len(methods))
    sides = [np.stack([both(facts, curve_key, method)[name] for method in methods]) for name in ("PG", "ΔA")]  # [M, N]
    if row["label"] == "samples":
        return number(sides[0].shape[1])
    if row["label"] != "rank correlation":
        return None

    def correlation(weights: np.ndarray) -> np.ndarray:
        return np.array([spearman(*(side @ weight for side in sides)) for weight in weights])

    n = sides[0].shape[1]
    value = float(correlation(np.full((1, n), 1 / n))[0])
    if np.isnan(value):
        return UNDEFINED
    return number(value, n, statistics.percentile_of(correlation, n, facts.draws))


def spearman(first: np.ndarray, second: np.ndarray) -> float:
    """NaN where either side has no order."""
    ranks = [stats.rankdata(np.round(values, 9)) for values in (first, second)]
    return float("nan") if min(map(np.ptp, ranks)) == 0 else float(np.corrcoef(*ranks)[0, 1])


TABLES = {
    "faithfulness": faithfulness,
    "faithfulness_overview": faithfulness_overview,
    "evidence_faithfulness": evidence_faithfulness,
    "evidence_faithfulness_ranks": evidence_faithfulness_ranks,
}
