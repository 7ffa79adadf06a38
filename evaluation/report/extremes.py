"""The size of relevance, and how far its sum is off: rules that are unstable beside others (AttnLRP's figure 5)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from evaluation.report.drawing import POINT, Line, Panel, Plot, looks
from evaluation.report.page import Figure
from evaluation.report.results import Methods, label, rank
from evaluation.report.table import NOT_FINITE, Cell, Column, Entry, Table

LARGEST, MISSING = "largest relevance", "missing from the sum"
_LEAST = 1e-9  # that a scale of powers of ten shows
_UNIT = "times the explained number"
_STATISTICS: dict[str, Callable[..., Any]] = {"median": np.median, "maximum": np.max}


@dataclass(frozen=True)
class Extremes:
    """Relevance of the samples of a cell, in units of the explained number."""

    model: str
    task: str
    dtype: str
    method: str
    largest: np.ndarray  # [N] of the tokens
    error: np.ndarray  # [N] what the sum misses
    left_out: int  # samples whose relevance is not finite, or that are lost otherwise
    by_layer: np.ndarray | None = None  # [N', L + 1] the largest at each boundary; 0 is below the first block

    @property
    def setting(self) -> tuple[str, str, str]:
        return self.task, self.model, self.dtype

    def row(self, methods: Methods) -> tuple[str, tuple[str, ...]]:
        return self.task, (f"{self.model}, {self.dtype}", label(methods, self.method))


def extremes_figures(extremes: Sequence[Extremes], methods: Methods) -> list[Figure]:
    """Two panels for each model and task, a line a method from the median to the maximum, by powers of ten; and a panel
    by layers, with the maximum over samples, and their median, dashed.
    """
    shown = sorted((one for one in extremes if len(one.largest)), key=lambda one: rank(methods, one.method))
    look = looks({one.method for one in shown}, methods)
    look = {name: {"color": own["color"]} for name, own in look.items()}
    whole, by_layer = [], []
    for setting in dict.fromkeys(one.setting for one in shown):
        own = [one for one in shown if one.setting == setting]
        title = " · ".join(setting)
        for part in (LARGEST, MISSING):
            lines = []
            for at, one in enumerate(own):
                values = one.largest if part == LARGEST else one.error
                middle, most = (max(float(reduced(values)), _LEAST) for reduced in _STATISTICS.values())
                bar = ([middle, most], [-at, -at], {"linewidth": 2})
                lines.append(Line(label(methods, one.method), [most], [-at], look[one.method] | POINT, bars=[bar]))
            ends = [x for line in lines for x in line.bars[0][0]]
            limits = {"xlim": (min(ends) / 4, max(ends) * 4), "ylim": (0.7 - len(own), 0.7)}  # always a power of ten
            whole.append(Panel(f"{title} · {part}", lines, {"xscale": "log", "yticks": []} | limits))
        lines = []
        for one in own:
            if one.by_layer is not None and len(one.by_layer):
                middle, most = (np.maximum(reduced(one.by_layer, 0), _LEAST) for reduced in _STATISTICS.values())
                colour, boundaries = look[one.method], range(len(most))
                lines.append(Line(label(methods, one.method), boundaries, most, colour))
                lines.append(Line("", boundaries, middle, colour | {"linestyle": "dashed", "linewidth": 1}))
        if lines:
            by_layer.append(Panel(title, lines, {"yscale": "log"}))
    caption = (
        "The largest relevance of any token, and what the sum of relevance and the explained number differ by, from "
        "the median over samples to the maximum (the dot), in units of the explained number. Biases and the softmax "
        "keep a share of the sum under every rule; unstable rules divide by scores near 0, and both numbers grow."
    )
    figures = Plot("extremes", "Unstable rules", caption, (_UNIT, "method"), 2).figures(whole, methods)
    caption = (
        "The largest relevance of any token where it crosses from block to block, from the top (right) down to the "
        "first (0): the maximum over samples and, dashed, the median, in units of the explained number."
    )
    plot = Plot("extremes_by_layer", "Unstable rules by layer", caption, ("boundary", _UNIT), 2, whole=True)
    return figures + plot.figures(by_layer, methods)


EXTREMES = Table(
    "extremes",
    "Unstable rules",
    "In units of the explained number, over samples. Left out are samples whose relevance is not finite, or of 0.",
    ("model", "method"),
)
BY_LAYER = Table(
    "extremes_by_layer",
    "Unstable rules by layer",
    "The largest relevance of a token at each boundary of layers, in units of the explained number, over samples; "
    "0 is below the first block.",
    ("model", "method", "boundary"),
)


def extremes_tables(extremes: Sequence[Extremes], methods: Methods) -> tuple[Table, Table]:
    """A method a row, and a boundary of layers a row, from the top down: medians and maxima over samples."""
    whole, by_layer = [], []
    for one in sorted(extremes, key=lambda one: (one.setting, rank(methods, one.method))):
        section, labels = one.row(methods)
        cells = _statistics(LARGEST, one.largest) | _statistics(MISSING, one.error)
        cells |= {_count("samples"): Cell(len(one.largest)), _count("left out"): Cell(one.left_out)}
        whole += [Entry(section, labels, column, cell) for column, cell in cells.items()]
        layers = np.zeros((0, 0)) if one.by_layer is None or not len(one.by_layer) else one.by_layer
        for boundary in reversed(range(layers.shape[1])):
            cells = _statistics(LARGEST, layers[:, boundary]) | {_count("samples"): Cell(len(layers))}
            row = (section, (*labels, str(boundary)))
            by_layer += [Entry(*row, column, cell) for column, cell in cells.items()]
    return EXTREMES.filled(whole), BY_LAYER.filled(by_layer)


def _count(name: str) -> Column:
    return Column("", name, digits=0)


def _statistics(group: str, values: np.ndarray) -> dict[Column, Cell]:
    columns = {name: Column(group, name, significant=3) for name in _STATISTICS}
    if not len(values):
        return {column: Cell(state=NOT_FINITE) for column in columns.values()}
    return {column: Cell(float(_STATISTICS[name](values))) for name, column in columns.items()}
