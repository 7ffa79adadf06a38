"""Tables of scores against evidence: 1 to 7, 9, beside random, pairs, and the leaderboard."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from itertools import permutations

import numpy as np
import pandas as pd

from tests.recompute import copied, statistics, tables_controls, tables_costs, tables_faithfulness
from tests.recompute.expected import TOLD, UNDEFINED, Expected, Left, number, smallest
from tests.recompute.facts import METRICS, NAMES, Facts, Setting
from tests.recompute.statistics import Range

Row = Mapping[str, str]
Cell = tuple[str, str, str, str]
PERCENT = (0.0, 100.0)


def cell_of(facts: Facts, row: Row, label: str, dtype: str | None = None) -> Cell | None:
    """The cell of a row; "A/B" is whichever of two methods the model has."""
    dtype = dtype or facts.dtype(row["model"], row["task"])
    labels = [label] if label in NAMES else label.split("/")
    cells = [(row["model"], row["task"], dtype, NAMES[name]) for name in labels if name in NAMES]
    return next((cell for cell in cells if cell in facts.cells), None)


def score(facts: Facts, cell: Cell | None, setting: Setting, label: str) -> Expected:
    """The mean of a metric in percent over correctly predicted samples."""
    frame = facts.scored(cell, setting) if cell else pd.DataFrame()
    if cell is None or not len(frame):
        return UNDEFINED
    if noise := facts.noise(cell, setting):
        return Expected(state=noise)
    values = 100 * frame[METRICS[label]].to_numpy()
    return number(float(values.mean()), len(values), scale=100)


def table1(facts: Facts, row: Row) -> Expected:
    return score(facts, cell_of(facts, row, row["group"]), Setting(), row["label"])


def table2(facts: Facts, row: Row) -> Expected:
    cell = cell_of(facts, row, row["group"])
    if cell and "contrastive" not in set(facts.cells[cell]["explanation"]):
        return UNDEFINED
    return score(facts, cell, Setting(explanation=row["side"]), row["label"])


def table3(facts: Facts, row: Row) -> Expected:
    tokens = {"without": "non_special", "with": "all"}[row["side"]]
    return score(facts, cell_of(facts, row, row["group"]), Setting(tokens=tokens), row["label"])


def table4(facts: Facts, row: Row) -> Expected:
    return score(facts, cell_of(facts, row, row["group"]), Setting(scope=row["side"]), row["label"])


def table5(facts: Facts, row: Row) -> Expected:
    dtype = row["default"] if row["side"] == "default" else row["side"]
    return score(facts, cell_of(facts, row, row["group"], dtype), Setting(), row["label"])


def table6(facts: Facts, row: Row) -> Expected:
    return score(facts, cell_of(facts, row, row["group"]), Setting(embedding=row["side"]), row["label"])


@cache
def methods_of(facts: Facts, model: str, task: str) -> dict[str, Cell]:
    """Cells of a model and task at its first precision by method, those with scored samples alone."""
    dtype = facts.dtype(model, task)
    cells = {cell[3]: cell for cell in facts.cells if cell[:3] == (model, task, dtype)}
    return {name: cell for name, cell in sorted(cells.items()) if len(facts.scored(cell))}


@cache
def paired_tests(facts: Facts, model: str, task: str) -> dict[tuple[str, str, str], Range]:
    """Adjusted p of each pair of methods by metric; the family is the pairs of one model, task and metric."""
    cells = methods_of(facts, model, task)
    cells = {name: cell for name, cell in cells.items() if not facts.noise(cell)}
    adjusted = {}
    if not cells:
        return adjusted
    common = sorted(set.intersection(*(set(facts.scored(cell).index) for cell in cells.values())))
    for name in METRICS.values():
        values = np.stack([facts.scored(cell).loc[common, name].to_numpy() for cell in cells.values()], axis=1)
        slack = np.array([facts.slack(cell, name)[0] for cell in cells.values()])
        shifts = (0, -slack, slack) if slack.any() else (0,)
        sizes = np.abs(values).sum(axis=0)
        tests = [statistics.max_t(values + shift, facts.flips, sizes) for shift in shifts]
        for a, b in tests[0]:
            p = statistics.hull([test[a, b] for test in tests])
            first, second = (list(cells)[at] for at in (a, b))
            adjusted[first, second, name] = adjusted[second, first, name] = p
    return adjusted


def table1_random(facts: Facts, row: Row) -> Expected | None:
    """The mean of a metric with its interval, and its difference from random relevance."""
    metric = METRICS[row["group"]]
    if row["method"] == TOLD:
        return smallest_score(facts, row, metric)
    cell = cell_of(facts, row, row["method"])
    if cell is None:
        return UNDEFINED
    if row["label"] != "%" and cell[3] == "random":
        return UNDEFINED
    if noise := facts.noise(cell):
        return Expected(state=noise)
    values = 100 * facts.scored(cell)[metric].to_numpy()
    random = (*cell[:3], "random")
    if metric.endswith("_shuffled"):
        return number(values.mean(), len(values), scale=100)
    if row["label"] == "%":
        compared = [candidate for candidate in methods_of(facts, *cell[:2]).values() if not facts.noise(candidate)]
        frames = [facts.scored(candidate)[metric] for candidate in (cell, *compared)]
        values = 100 * pd.concat(frames, axis=1, join="inner").to_numpy()[:, 0]
        expected = number(values.mean(), len(values), facts.interval(values, PERCENT), scale=100)
        return expected.widened(*facts.slack(cell, metric))
    differences, p = over_random(facts, cell, metric)
    if differences is None:
        return UNDEFINED
    expected = number(differences.mean(), len(differences), statistics.of_differences(differences, 100), p, scale=100)
    return expected.widened(*facts.slack(random, metric))


def smallest_score(facts: Facts, row: Row, metric: str) -> Expected | Left:
    """Of the scores of all methods that say more than rounding, on the samples that all have."""
    if row["label"] != "%" or metric.endswith("_shuffled"):
        return UNDEFINED
    cells = [cell for cell in methods_of(facts, row["model"], row["task"]).values() if not facts.noise(cell)]
    if any(facts.slack(cell, metric)[0] for cell in cells):
        return Left("smallest differences where chance is drawn")
    scores = [facts.scored(cell)[metric].rename(cell[3]) for cell in cells]
    return smallest(100 * pd.concat(scores, axis=1, join="inner").to_numpy(), scale=100)


def over_random(facts: Facts, cell: Cell, metric: str) -> tuple[np.ndarray | None, Range | None]:
    """Differences in points from chance, or from random relevance on the same samples, with their adjusted p."""
    frame = facts.scored(cell)
    random = facts.scored((*cell[:3], "random"))
    if not len(random):
        return None, None
    common = frame.index.intersection(random.index)
    p = paired_tests(facts, cell[0], cell[1]).get((cell[3], "random", metric))
    return 100 * (frame.loc[common, metric] - random.loc[common, metric]).to_numpy(), p


def table9(facts: Facts, row: Row) -> Expected | Left | None:
    """The share of samples whose target is above the foil, or whose label is predicted."""
    if row["group"] == "model":
        return copied.size(facts, row)
    model, task = row["model"], row["label"]
    if task not in facts.root.config["tasks"]:
        return None
    cells = [cell for cell in facts.cells if cell[:3] == (model, task, facts.dtype(model, task))]
    if not cells:
        return UNDEFINED
    rows = facts.cells[cells[0]].drop_duplicates("sample_id")
    views = [facts.view(cells[0], sample) for sample in rows["sample_id"]]
    if all(view["foil_id"] is None and view["label"] is None for view in views):
        return number(float("nan"), 0)
    values = [facts.correct(cells[0], record) for record in rows.itertuples()]
    return number(100 * float(np.mean(values)), len(values), scale=100)


@cache
def groups(facts: Facts, model: str, task: str) -> dict[str, tuple[int, int]]:
    """The least and the largest group that each method may be of, as far as p are draws."""
    cells = {name: cell for name, cell in methods_of(facts, model, task).items() if not facts.noise(cell)}
    means, p = {name: facts.scored(cell)["pg"].mean() for name, cell in cells.items()}, paired_tests(facts, model, task)
    by_end = []
    for end in ("least", "most"):
        left, at, numbers = sorted(means), 1, {}
        while left:
            beaten = {b for a, b in permutations(left, 2) if means[a] > means[b] and getattr(p[a, b, "pg"], end) < 0.05}
            numbers |= dict.fromkeys(set(left) - beaten, at)
            left, at = sorted(beaten), at + 1
        by_end.append(numbers)
    return {name: (min(of_end[name] for of_end in by_end), max(of_end[name] for of_end in by_end)) for name in means}


def leaderboard(facts: Facts, row: Row) -> Expected | None:
    """The group of a method on a model and task, and its PG."""
    cell = cell_of(facts, row, row["method"])
    if cell is None:
        return UNDEFINED
    if row["label"] == "group":
        least, most = groups(facts, cell[0], cell[1])[cell[3]]
        return Expected({"value": Range(float(least), least, most)})
    if row["label"] == "PG":
        values = 100 * facts.scored(cell)["pg"].to_numpy()
        return number(values.mean(), len(values), facts.interval(values, PERCENT), scale=100)
    if row["label"] == "ΔA":
        return tables_faithfulness.on_common_samples(facts, cell[0], cell[1], cell[3])
    if row["label"] == "ms a sample":
        return tables_costs.milliseconds(facts, cell[0], cell[1], cell[3])
    return tables_controls.failed(facts, cell[0], cell[1], cell[3])


TABLES = {
    "table1": table1,
    "table1_random": table1_random,
    "table2": table2,
    "table3": table3,
    "table4": table4,
    "table5": table5,
    "table6": table6,
    "table7": table6,
    "table9": table9,
    "leaderboard": leaderboard,
}
