"""Maps of layers and methods: every number is there, in its place, beside the paper's where the model is its own."""

import re

import numpy as np
import pytest

from closelook.evaluation.report.results import normxlogit_layers
from closelook.evaluation.report.sections.layers import LayerScore, layer_figures, layer_table, of_layer
from closelook.evaluation.scoring.intervals import Resampling
from closelook.evaluation.scoring.metrics import BY_LAYER, METRICS, shown
from closelook.evaluation.scoring.statistics import compare
from closelook.jobs.methods import METHODS

NAMES = ("alti", "normxlogit")
SCORES = [
    LayerScore("roberta-base", "blimp5", method, layer, metric, 10.0 * layer + at, 7)
    for at, method in enumerate(NAMES)
    for layer in (1, 2)
    for metric in shown(BY_LAYER)
]


def test_every_layer_and_method_has_a_cell_in_every_map_and_the_highest_is_the_darkest():
    (figure,) = layer_figures(SCORES, METHODS)
    assert "over 7 correctly predicted samples" in figure.caption
    assert [figure.svg.count(f">{value:.1f}<") for value in (10, 11, 20, 21)] == [3] * 4
    fills = re.findall("fill: (#[0-9a-f]{6}); stroke: #ffffff", figure.svg)
    assert len(fills) == len(SCORES)
    assert fills.count(min(fills)) == fills.count(max(fills)) == 3, "one of each in every map"


def test_the_table_has_the_numbers_of_the_paper_beside_those_of_its_models():
    table = layer_table(SCORES, METHODS, {})
    assert [row.labels for row in table.rows] == [("roberta-base", "2"), ("roberta-base", "1")]
    cells = dict(zip(((c.group, c.label) for c in table.columns), table.rows[1].cells, strict=True))
    assert (cells["ALTI", "AP"].value, cells["ALTI", "AP"].reference) == (10.0, 24.85)
    assert not cells["NormXLogit", "AP"].mark, "nothing was tested"
    assert cells["NormXLogit", "AP"].reference is None, "the paper has none of the pre-trained model"


def test_intervals_and_tests_of_layers_are_those_of_their_samples():
    draw = np.random.default_rng(0)
    values = np.stack([draw.random((40, 6)), 0.05 + draw.random((40, 6))], 1)  # [N, M, K]
    values[:, 1, 5] = values[:, 0, 5] + 0.5  # of layer 2 and the last metric, beyond any chance
    names = tuple(of_layer(layer, metric) for layer in (1, 2) for metric in shown(BY_LAYER))
    measured = compare(values, NAMES, names, Resampling(2000, 1))
    compared = {("blimp5", "roberta-base"): measured}
    table = layer_table(SCORES, METHODS, compared)
    assert [row.labels[1] for row in table.rows] == ["2", "1"]
    for k, metric in enumerate(shown(BY_LAYER), start=3):  # of layer 2
        named = {c.group: at for at, c in enumerate(table.columns) if c.label == METRICS[metric].label}
        cells = [table.rows[0].cells[named[name]] for name in ("ALTI", "NormXLogit")]
        for method, cell in enumerate(cells):
            drawn = np.random.default_rng(k).integers(0, 40, (4000, 40))
            ends = np.quantile(100 * values[drawn, method, k].mean(1), [0.025, 0.975])
            assert (cell.low, cell.high) == pytest.approx(ends, abs=1)
    assert [cell.mark for cell in cells] == ["", "best"], "of the last metric"


def test_the_paper_has_twelve_layers_of_each_method():
    by_place = {key[1:3] + key[4:] for key in normxlogit_layers()}
    assert len(normxlogit_layers()) == 12 * len(by_place) == 12 * (2 * 3 * 2 + 5 * 2)
    assert normxlogit_layers()["blimp5", "roberta-base-blimp5", "alti", "11", "ap"] == pytest.approx(40.43)
