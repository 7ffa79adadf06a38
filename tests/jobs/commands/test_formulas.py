"""Texts, ids and labels of others are no formulas in the CSV files that closelook writes."""

import csv

import numpy as np
import pytest

import closelook as front
from closelook.evaluation.report.drawing import Line, Panel, Plot
from closelook.evaluation.report.frame import frame_csv, numbers
from closelook.evaluation.report.table import Cell, Column, Row, Table

FORMULAS = ["=HYPERLINK(1)", "+1", "-2+3", "@SUM(1)", "\t=1+1", "\r=1+1"]


def is_number(cell):
    try:
        float(cell)
    except ValueError:
        return False
    return True


def formulas_in(text):
    """The cells, of CSV, that a spreadsheet would take for formulas."""
    cells = [cell for row in csv.reader(text.splitlines(keepends=True)) for cell in row]
    return [cell for cell in cells if cell.startswith(("=", "+", "-", "@", "\t", "\r")) and not is_number(cell)]


def test_no_cell_of_saved_explanations_is_a_formula(tmp_path):
    front.explain(["= 1", "@ b"], model="demo/gpt2", target="1").save(tmp_path / "both.csv")
    assert formulas_in((tmp_path / "both.csv").read_bytes().decode()) == []


@pytest.mark.parametrize("formula", FORMULAS)
def test_no_cell_of_a_report_is_a_formula(formula):
    row = Row(formula, (formula, formula), (Cell(-1.5),))
    table = Table("t", "title", "caption", ("model", "method"), (Column("", formula, "1"),), (row,))
    line = Line(formula, np.array([1.0]), np.array([-2.0]), {"color": "#000000"})
    [figure] = Plot("f", "title", "caption", ("x", "y")).figures([Panel(formula, [line])], {})
    frame = frame_csv(numbers([table], {figure.name: figure.points}))
    assert formulas_in(frame) == []
    assert "-1.5" in frame
