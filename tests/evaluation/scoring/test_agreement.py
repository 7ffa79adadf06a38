"""Agreement of methods: rank correlations by sample, and the tree that groups methods."""

import numpy as np
import pytest
from scipy.stats import spearmanr

from closelook.evaluation.report.sections.agreement import agreement_figures, agreement_table
from closelook.evaluation.scoring.agreement import agreement_of
from closelook.jobs.methods import METHODS

SAMPLES = ["a", "b", "c"]


def some_maps() -> dict[str, dict[str, np.ndarray]]:
    """LRP and AttnLRP alike, gradients apart."""
    draw = np.random.default_rng(0)
    base = {sample: draw.normal(size=9) for sample in SAMPLES}
    alike = {sample: values + 0.01 * draw.normal(size=9) for sample, values in base.items()}
    return {"lrp": base, "gradient_l2": {sample: draw.random(9) for sample in SAMPLES}, "attnlrp": alike}


def test_correlations_are_spearmans_averaged_over_samples():
    maps = some_maps()
    agreement = agreement_of(maps, SAMPLES)
    assert agreement.n == 3
    for row, name in enumerate(agreement.methods):
        for column, other in enumerate(agreement.methods):
            each = [spearmanr(maps[name][sample], maps[other][sample]).statistic for sample in SAMPLES]
            assert agreement.mean[row, column] == pytest.approx(np.mean(each))


def test_samples_without_an_order_do_not_count():
    maps = some_maps()
    maps["lrp"] |= {"a": np.ones(9), "b": np.full(9, np.nan)}
    assert agreement_of(maps, SAMPLES).n == 1
    assert agreement_of(maps, ["a", "b"]) is None
    assert agreement_of({"lrp": maps["lrp"]}, SAMPLES) is None
    short = {name: {"a": of_method["a"][:1]} for name, of_method in maps.items()}
    assert agreement_of(short, ["a"]) is None, "a single token has no order"


def test_methods_that_agree_are_neighbours_and_join_first():
    agreement = agreement_of(some_maps(), SAMPLES)
    order, branches = agreement.tree()
    assert abs(order.index("lrp") - order.index("attnlrp")) == 1
    heights = [max(y) for _, y in branches]
    assert heights[0] == pytest.approx(1 - agreement.mean[0, 2])
    mean_of_rest = 1 - (agreement.mean[0, 1] + agreement.mean[2, 1]) / 2
    assert heights[1] == pytest.approx(mean_of_rest)


def test_the_report_has_a_map_a_tree_and_a_table():
    agreements = {("gpt2", "sva"): agreement_of(some_maps(), SAMPLES)}
    drawn, tree = agreement_figures(agreements, METHODS)
    assert all(METHODS[name].label in drawn.svg and METHODS[name].label in tree.svg for name in some_maps())
    rows = {row.labels[1]: row.cells for row in agreement_table(agreements, METHODS).rows}
    assert set(rows) == {"LRP", "AttnLRP", "Gradient l2"}
    assert sorted(cell.state for cell in rows["LRP"]) == ["done", "done", "undefined"]
    assert agreement_figures({}, METHODS) == []
