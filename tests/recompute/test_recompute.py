"""A small run has its stored numbers; every number of its report is recomputed, and one changed number is noticed."""

from __future__ import annotations

import shutil
from itertools import permutations
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy import stats

from tests.golden import numbers_of, small_run, stored
from tests.jobs.conftest import blank_figures  # noqa: F401  # no number is read from a drawing
from tests.jobs.inline import without_ray
from tests.recompute import metrics, statistics
from tests.recompute.__main__ import main, recompute
from tests.recompute.expected import UNWRITTEN, Compared

#: Of a column's magnitude, and of each value: what is left of numbers near 1 that cancel is rounding. See
#: `tests/test_parity.py` for how far processors differ.
TOLERANCE, ROUNDING = 1e-4, 1e-6


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    """A run of few samples through every product, with its report."""
    folder = tmp_path_factory.mktemp("recompute")
    with without_ray():
        small_run(folder)
    return folder


def test_every_product_and_table_of_a_small_run_has_its_stored_numbers(root: Path) -> None:
    """Numbers that a run stored before a change of code stay valid after it."""
    now, before = numbers_of(root), stored("numbers")
    assert now.keys() == before.keys()
    for artifact, columns in before.items():
        assert now[artifact].keys() == columns.keys(), artifact
        for column, (count, total, magnitude) in columns.items():
            where = f"{artifact}: {column}"
            assert now[artifact][column][0] == count, where
            allowed = TOLERANCE * magnitude + ROUNDING * count
            assert now[artifact][column][1] == pytest.approx(total, rel=0, abs=allowed), where


@pytest.fixture(scope="module")
def results(root: Path) -> dict[str, Compared]:
    """The comparison of every table, figure and product of the run."""
    return recompute(root)


@pytest.mark.nightly  # by day, `.ci/run` computes the report of `smoke` again
def test_every_number_of_a_report_is_that_of_an_independent_recomputation(results: dict[str, Compared]) -> None:
    assert [line for compared in results.values() for line in compared.differences] == []
    assert [name for name, compared in results.items() if compared.reasons[UNWRITTEN]] == []
    assert sum(compared.recomputed for compared in results.values()) > 10_000


def changed(file: Path, column: str, of: dict[str, str]) -> None:
    """Add 1 to the last number of a column in the first row `of` a Parquet file, or turn its last truth."""
    table = pq.ParquetFile(file).read()
    rows = table.to_pylist()
    row = next(row for row in rows if of.items() <= row.items())
    numbers = row[column] if isinstance(row[column], list) else [row[column]]
    numbers[-1] = not numbers[-1] if isinstance(numbers[-1], bool) else numbers[-1] + 1
    row[column] = numbers if isinstance(row[column], list) else numbers[0]
    pq.write_table(pa.Table.from_pylist(rows, schema=table.schema), file)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("product", "column", "where"),
    [
        ("relevance/model=gpt2/task=sva/dtype=float32/method=lrp", "relevance", "table1_random"),
        ("curves/model=gpt2/task=sva/dtype=float32/method=lrp", "logit", "faithfulness"),
        ("curves/model=bert-sentiment/task=sentiment/dtype=float32/method=lrp", "probability", "shares"),
        ("pruning/model=gpt2/task=sva/dtype=float32", "areas", "pruning_area"),
        ("knockouts/model=gpt2/task=sva/dtype=float32/method=lrp", "explained", "knockouts"),
        ("layers/model=bert/task=sva/dtype=float32/method=alti", "relevance", "layers"),
        ("neurons/model=gpt2/task=sva/dtype=float32/method=lrp", "boundaries", "boundaries"),
        ("runtime/model=gpt2/task=sva/dtype=float32", "wall_s", "runtime"),
    ],
)
def test_one_changed_number_that_is_stored_ends_with_1(
    root: Path, results: dict[str, Compared], tmp_path: Path, capsys, product, column, where
) -> None:
    assert not any(compared.differences for name, compared in results.items() if name.startswith(where))
    copy = tmp_path / "root"
    shutil.copytree(root, copy)
    of = (
        {"embedding": "partial", "explanation": "target"} if product.startswith("curves") else {}
    )  # which tables of curves tell
    changed(sorted((copy / product).glob("*.parquet"))[0], column, of)
    assert main([str(copy), "--only", where]) == 1
    assert f"{where}" in capsys.readouterr().out.splitlines()[0]


def test_one_changed_number_of_the_report_ends_with_1(root: Path, tmp_path: Path, capsys) -> None:
    copy = tmp_path / "root"
    shutil.copytree(root, copy)
    assert main([str(copy), "--only", "table2"]) == 0
    table = copy / "report" / "numbers.csv"
    frame = pd.read_csv(table, dtype=str, keep_default_na=False)
    at = frame.index[(frame["table"] == "table2") & (frame["state"] == "done")][0]
    frame.loc[at, "value"] = str(float(frame.loc[at, "value"]) + 0.1)
    frame.to_csv(table, index=False)
    capsys.readouterr()
    assert main([str(copy), "--only", "table2"]) == 1
    assert frame.loc[at, "id"] in capsys.readouterr().out


def test_ties_are_expectations_over_their_orders() -> None:
    rng = np.random.default_rng(0)
    breaks = [1e-6 * np.array(order) for order in permutations(range(6))]
    for _ in range(20):
        r, g = rng.integers(-1, 3, 6).astype(float), rng.random(6) < 0.4
        if not g.any():
            continue
        for name in ("pg", "pg2", "rra", "iou"):
            if name != "iou" or not ((r == 0).any() and int((r > 0).sum()) < g.sum()):  # zeros would turn positive
                mean = np.mean([metrics.SPECIFIED[name](r + shift, g) for shift in breaks])
                assert metrics.SPECIFIED[name](r, g) == pytest.approx(mean), (name, r, g)


def test_chance_in_closed_form_is_the_mean_over_random_relevance() -> None:
    rng = np.random.default_rng(0)
    for n, g in ((5, 1), (6, 2), (9, 4), (4, 4)):
        evidence = np.arange(n) < g
        draws = [rng.standard_normal(n) for _ in range(2000)]
        for name, metric in metrics.SPECIFIED.items():
            exact = statistics.chance(name, n, g)
            drawn = [metric(relevance, evidence) for relevance in draws]
            if exact is not None:
                error = 5 * np.std(drawn) / np.sqrt(len(drawn)) + 1e-9
                assert exact == pytest.approx(np.mean(drawn), abs=error), (name, n, g)


def test_clopper_pearson_is_that_of_scipy() -> None:
    for successes, n in ((30, 30), (0, 20), (57, 60), (1, 40)):
        exact = stats.binomtest(successes, n).proportion_ci(method="exact")
        assert statistics.clopper_pearson(successes, n) == pytest.approx((exact.low, exact.high))


def test_permutation_chance_of_distinct_values_is_chance_in_closed_form() -> None:
    r = np.array([0.4, -1.0, 2.0, 0.1, -0.3, 1.5])
    for name in ("pg", "pg2", "rra", "ap", "mrr"):
        for g in (1, 2, 3):
            drawn = statistics.permutation_chance(metrics.SPECIFIED[name], r, np.arange(6) < g)
            assert drawn.value == pytest.approx(statistics.chance(name, 6, g)), (name, g)


def test_equal_methods_seldom_have_a_winner_and_a_better_one_is_mostly_named() -> None:
    rng = np.random.default_rng(0)
    worlds = rng.standard_normal((400, 60, 5))
    winners = [len(statistics.top_group(world, 10_000)) == 1 for world in worlds]
    assert np.mean(winners) <= 0.07
    worlds = worlds[:100]
    worlds[:, :, 2] += 0.8 * np.sqrt(2)  # standard deviations of the paired difference
    named = [statistics.top_group(world, 10_000) == [2] for world in worlds]
    assert np.mean(named) >= 0.8


@pytest.mark.thinned(3)
@pytest.mark.parametrize("n", [20, 30, 60])
def test_intervals_as_specified_cover_as_they_say(n: int) -> None:
    rng = np.random.default_rng(n)
    worlds = {
        "share": (0.85, (0.0, 1.0), lambda: (rng.random(n) < 0.85).astype(float)),
        "mixture": (0.925, (0.0, 1.0), lambda: np.where(rng.random(n) < 0.85, 1.0, rng.random(n))),
        "normal": (0.0, None, lambda: rng.standard_normal(n)),
        "lognormal": (np.exp(0.125), None, lambda: rng.lognormal(0, 0.5, n)),
    }
    for name, (mean, bounds, draw) in worlds.items():
        ends = [statistics.specified_interval(draw(), 1000, bounds) for _ in range(300)]
        covered = np.mean([low.value <= mean <= high.value for low, high in ends])
        assert covered >= 0.93 - 2 * np.sqrt(0.93 * 0.07 / 300), name
