"""Maps of layers and methods: every number is there, in its place, beside the paper's where the model is its own."""

import re

import pytest

from closelook.evaluation.report.results import normxlogit_layers
from closelook.evaluation.report.sections.layers import LayerScore, layer_figures, layer_table
from closelook.evaluation.scoring.metrics import BY_LAYER, shown
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


def test_the_paper_has_twelve_layers_of_each_method():
    by_place = {key[1:3] + key[4:] for key in normxlogit_layers()}
    assert len(normxlogit_layers()) == 12 * len(by_place) == 12 * (2 * 3 * 2 + 5 * 2)
    assert normxlogit_layers()["blimp5", "roberta-base-blimp5", "alti", "11", "ap"] == pytest.approx(40.43)
