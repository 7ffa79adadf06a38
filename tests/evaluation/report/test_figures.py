"""Curves are read as drawn, and equal data give equal pictures."""

import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest

from evaluation.report.cost_tables import areas, cost_table, explicit_against_modified
from evaluation.report.figures import curves_of, pruning_figures, runtime_figures
from evaluation.scoring.runtime import costs


def points(method="attnlrp", pooling="relu_token", order="least_first", seed=None, task="sva", shares=(1.0, 0.8, 0.5)):
    place = {"model": "gpt2", "task": task, "method": method, "pooling": pooling, "order": order, "seed": seed}
    for step, share in enumerate(shares):
        yield place | {"step": step, "pruned_heads": [step] if step else [], "accuracy": share, "n": 10}


def random_points(task="sva"):
    for seed, end in enumerate((0.5, 0.3)):
        yield from points("random", "none", "random", seed, task, (1.0, 0.6, end))


def test_curves_count_removed_heads_and_random_is_a_mean_with_its_extremes():
    ranked, drawn = curves_of([*points(), *random_points()])
    np.testing.assert_array_equal(ranked.removed, [0, 1, 2])
    np.testing.assert_allclose(ranked.accuracy, [100, 80, 50])
    assert ranked.low is None
    np.testing.assert_allclose((drawn.accuracy, drawn.low, drawn.high), [[100, 60, 40], [100, 60, 30], [100, 60, 50]])


def test_points_may_come_in_any_order():
    shuffled = list(points())[::-1]
    np.testing.assert_allclose(curves_of(shuffled)[0].accuracy, [100, 80, 50])


def test_figures_2_to_5_by_task_and_pooling():
    rows = [row for task in ("ra", "sva", "qa") for pooling in ("relu_dim", "relu_token", "none")
            for row in points(pooling=pooling, task=task)]  # fmt: skip
    rows += [*random_points(), *points(order="most_first")]
    figures = pruning_figures(curves_of(rows))
    titles = [figure.title.split(".")[0] for figure in figures]
    assert titles == ["Figure 2", "Figure 3", "Figure 4", "Ours", "Figure 5"]
    figure4 = figures[2].svg
    for text in ("gpt2 · ReLU dim", "gpt2 · ReLU per token", "gpt2 · no ReLU", "AttnLRP", "Random"):
        assert text in figure4, "text stays text"


def test_pictures_are_well_formed_and_the_same_each_time():
    first, again = (pruning_figures(curves_of([*points(), *random_points()])) for _ in range(2))
    assert [figure.svg for figure in first] == [figure.svg for figure in again]
    ElementTree.fromstring(first[0].svg)
    assert first[0].uri.startswith("data:image/svg+xml;base64,")


def test_runtime_figure_needs_rows_and_shows_memory_where_it_is_known():
    place = {"task": "sva", "model": "gpt2", "dtype": "float32", "device": "cpu", "method": "gradients"}
    rows = [place | {"stage": "method", "wall_s": n / 9, "length": n, "batch": 2, "peak_bytes": None} for n in (8, 30)]
    assert runtime_figures([]) == []
    [figure] = runtime_figures(rows)
    assert "peak bytes" not in figure.svg
    known = [row | {"peak_bytes": 1 << 20, "device": "H200"} for row in rows]
    second, _ = runtime_figures([*rows, *known])
    assert "peak bytes" in second.svg
    assert (second.name, second.title) == ("runtime_0", "Time and memory against length, H200")
    assert cost_table(costs(rows)).rows[0].labels == ("gpt2", "gradients", "method", "cpu", "≤ 8")


def test_area_is_the_mean_accuracy_over_the_share_of_heads():
    table = areas(curves_of([*points(), *random_points()]))
    assert [row.labels for row in table.rows] == [("gpt2", "AttnLRP"), ("gpt2", "Random")]
    assert table.rows[0].cells[0].value == pytest.approx((100 + 80) / 4 + (80 + 50) / 4)


def test_table_8_holds_the_papers_rows_and_ours_when_measured():
    assert {row.section for row in explicit_against_modified([]).rows} == {"Close Look"}
    assert "not run" in explicit_against_modified([]).caption
    rows = [{"part": "table_8", "geometry": "gpt2", "method": method, "median": at, "unit": "ms"}
            for at, method in enumerate(("gradient_x_input", "attnlrp", "attnlrp_explicit"), start=1)]  # fmt: skip
    ratios = {"gpt2: explicit / attnlrp backward": {"value": 1.5, "target": 1.15, "better": "higher"}}
    ours = explicit_against_modified([{"device": "CPU", "rows": rows, "ratios": ratios}]).rows[0]
    assert (ours.section, ours.labels) == ("ours", ("gpt2", "CPU"))
    assert [cell.value for cell in ours.cells] == [1, 3, 2, 1.5]
