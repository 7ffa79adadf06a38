"""The size of relevance, and the error of its sum, which show whether rules are unstable (AttnLRP's figure 5)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from closelook.evaluation.report.drawing import POINT, Line, Looks, Panel, Plot, looks
from closelook.evaluation.report.page import Figure
from closelook.evaluation.report.results import Methods, label, rank
from closelook.evaluation.report.sections.faithfulness import LEFT_OUT
from closelook.evaluation.report.table import NOT_FINITE, Cell, Column, Entry, Table, fills, row_of

LARGEST, MISSING = "largest relevance", "missing from the sum"
_LEAST = 1e-9  # smaller values are drawn at this one, since the scale is logarithmic
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

    @property
    def setting(self) -> tuple[str, str, str]:
        """Task, model and precision."""
        return self.task, self.model, self.dtype


def extremes_figure(extremes: Sequence[Extremes], methods: Methods) -> list[Figure]:
    """Two panels for each model and task, with a line for each method from the median to the maximum over samples."""
    shown = sorted((cell for cell in extremes if len(cell.largest)), key=lambda cell: rank(methods, cell.method))
    look, panels = looks({cell.method for cell in shown}, methods), []
    for setting in dict.fromkeys(cell.setting for cell in shown):
        cells = [cell for cell in shown if cell.setting == setting]
        panels += [_panel(cells, part, " · ".join(setting), methods, look) for part in (LARGEST, MISSING)]
    caption = (
        "The largest relevance of any token, and the difference of the sum of relevance from the explained number, "
        "from the median over samples to the maximum (the dot), in units of the explained number. Biases and the "
        "softmax keep a share of the sum under every rule. Unstable rules divide by numbers near 0, so that both "
        "values grow."
    )
    axes = ("times the explained number", "method")
    return Plot("extremes", "Unstable rules", caption, axes, 2, tabled=True).figures(panels, methods)


def _panel(cells: Sequence[Extremes], part: str, title: str, methods: Methods, look: Looks) -> Panel:
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


@fills(EXTREMES)
def extremes_table(extremes: Sequence[Extremes], methods: Methods) -> Iterator[Entry]:
    """A row for each method."""
    for record in sorted(extremes, key=lambda record: (record.setting, rank(methods, record.method))):
        cells = _statistics(LARGEST, record.largest) | _statistics(MISSING, record.error)
        cells |= {_SAMPLES: Cell(len(record.largest)), LEFT_OUT: Cell(record.left_out)}
        labels = (f"{record.model}, {record.dtype}", label(methods, record.method))
        yield from row_of(record.task, labels, cells, cells.values())


def _statistics(group: str, values: np.ndarray) -> dict[Column, Cell]:
    """The median and the maximum of `values`, by column."""
    columns = {name: Column(group, name, significant=3) for name in _STATISTICS}
    if not len(values):
        return {column: Cell(state=NOT_FINITE) for column in columns.values()}
    return {column: Cell(float(_STATISTICS[name](values))) for name, column in columns.items()}
