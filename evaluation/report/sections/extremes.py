"""The size of relevance, and the error of its sum, which show whether rules are unstable (AttnLRP's figure 5)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from closelook.evaluation.report.drawing import POINT, Curve, Line, Looks, Panel, Plot, curve_panels, looks
from closelook.evaluation.report.page import Figure
from closelook.evaluation.report.results import Methods, label, rank
from closelook.evaluation.report.sections.faithfulness import LEFT_OUT
from closelook.evaluation.report.table import NOT_FINITE, Cell, Column, Entry, Table, row_of

LARGEST, MISSING = "largest relevance", "missing from the sum"
_LEAST = 1e-9  # smaller values are drawn at this one, since the scale is logarithmic
_UNIT = "times the explained number"
_SAMPLES = Column("", "samples", digits=0)
_STATISTICS: dict[str, Callable[..., Any]] = {"median": np.median, "maximum": np.max}


@dataclass(frozen=True)
class Extremes:
    """The size of relevance in a cell, in units of the explained number."""

    model: str
    task: str
    dtype: str
    method: str
    largest: np.ndarray  # [N] the largest relevance of a token
    error: np.ndarray  # [N] the difference of the sum of relevance from the explained number
    left_out: int  # samples without these numbers, for instance since their relevance is not finite
    by_layer: np.ndarray | None = None  # [N', L + 1] the largest at each layer boundary; 0 is below the first block

    @property
    def setting(self) -> tuple[str, str, str]:
        """Task, model and precision."""
        return self.task, self.model, self.dtype

    def row(self, methods: Methods) -> tuple[str, tuple[str, ...]]:
        """The section and the labels of a table's row."""
        return self.task, (f"{self.model}, {self.dtype}", label(methods, self.method))


def extremes_figures(extremes: Sequence[Extremes], methods: Methods) -> list[Figure]:
    """The figures of all tokens and of layer boundaries.

    The first has two panels for each model and task, with a line for each method from the median to the maximum over
    samples. The second has a panel for each, with the maximum over samples at each boundary.
    """
    shown = sorted((cell for cell in extremes if len(cell.largest)), key=lambda cell: rank(methods, cell.method))
    look = looks({cell.method for cell in shown}, methods)
    whole, curves = [], []
    for setting in dict.fromkeys(cell.setting for cell in shown):
        cells = [cell for cell in shown if cell.setting == setting]
        title = " · ".join(setting)
        whole += [_whole_panel(cells, part, title, methods, look) for part in (LARGEST, MISSING)]
        for cell in cells:
            if cell.by_layer is not None and len(cell.by_layer):
                most = np.maximum(cell.by_layer.max(axis=0), _LEAST)
                curves.append(Curve(title, cell.method, range(len(most)), most))
    caption = (
        "The largest relevance of any token, and the difference of the sum of relevance from the explained number, "
        "from the median over samples to the maximum (the dot), in units of the explained number. Biases and the "
        "softmax keep a share of the sum under every rule. Unstable rules divide by numbers near 0, so that both "
        "values grow."
    )
    figures = Plot("extremes", "Unstable rules", caption, (_UNIT, "method"), 2, tabled=True).figures(whole, methods)
    caption = (
        "The largest relevance of any token at each boundary between blocks, from above the last block (right) to "
        "below the first block (0), in units of the explained number: the maximum over samples. Samples with a value "
        "that is not finite are left out."
    )
    plot = Plot(
        "extremes_by_layer", "Unstable rules by layer", caption, ("boundary", _UNIT), 2, whole=True, tabled=True
    )
    return figures + plot.figures(curve_panels(curves, methods, axis={"yscale": "log"}), methods)


def _whole_panel(cells: Sequence[Extremes], part: str, title: str, methods: Methods, look: Looks) -> Panel:
    """A panel of LARGEST or MISSING: one below the other, a line for each method from the median to the maximum."""
    lines = []
    for at, cell in enumerate(cells):
        values = cell.largest if part == LARGEST else cell.error
        middle, most = (max(float(statistic(values)), _LEAST) for statistic in _STATISTICS.values())
        bar = ([middle, most], [-at, -at], {"linewidth": 2})
        style = {**look[cell.method], **POINT}
        lines.append(Line(label(methods, cell.method), [most], [-at], style, bars=[bar]))
    ends = [x for line in lines for x in line.bars[0][0]]
    limits = {"xlim": (min(ends) / 4, max(ends) * 4), "ylim": (0.7 - len(cells), 0.7)}  # x shows a power of ten
    return Panel(f"{title} · {part}", lines, {"xscale": "log", "yticks": []} | limits)


EXTREMES = Table(
    "extremes",
    "Unstable rules",
    "Medians and maxima over samples, in units of the explained number. Samples whose relevance is not finite, and "
    "samples whose explained number is 0, are left out.",
    ("model", "method"),
)
BY_LAYER = Table(
    "extremes_by_layer",
    "Unstable rules by layer",
    "The largest relevance of a token at each layer boundary, in units of the explained number: medians and maxima "
    "over samples. Boundary 0 is below the first block. Samples with a value that is not finite are left out.",
    ("model", "method", "boundary"),
)


def extremes_tables(extremes: Sequence[Extremes], methods: Methods) -> tuple[Table, Table]:
    """(the table over all tokens, a row for each method; the table by layer, a row for each boundary, top down)."""
    whole: list[Entry] = []
    by_layer: list[Entry] = []
    for record in sorted(extremes, key=lambda record: (record.setting, rank(methods, record.method))):
        section, labels = record.row(methods)
        cells = _statistics(LARGEST, record.largest) | _statistics(MISSING, record.error)
        cells |= {_SAMPLES: Cell(len(record.largest)), LEFT_OUT: Cell(record.left_out)}
        whole += row_of(section, labels, cells, cells.values())
        if record.by_layer is None or not len(record.by_layer):
            continue
        for boundary in reversed(range(record.by_layer.shape[1])):
            cells = _statistics(LARGEST, record.by_layer[:, boundary])
            cells |= {_SAMPLES: Cell(len(record.by_layer))}
            by_layer += row_of(section, (*labels, str(boundary)), cells, cells.values())
    return EXTREMES.filled(whole), BY_LAYER.filled(by_layer)


def _statistics(group: str, values: np.ndarray) -> dict[Column, Cell]:
    """The median and the maximum of `values`, by column."""
    columns = {name: Column(group, name, significant=3) for name in _STATISTICS}
    if not len(values):
        return {column: Cell(state=NOT_FINITE) for column in columns.values()}
    return {column: Cell(float(_STATISTICS[name](values))) for name, column in columns.items()}
