"""How large relevance gets, and how far its sum is off: rules that are unstable beside others (AttnLRP's figure 5)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import numpy as np
from matplotlib.axes import Axes

from evaluation.report.drawing import figure, spare_colours
from evaluation.report.page import Figure
from evaluation.report.results import Methods, label, rank
from evaluation.report.table import Cell, Column, Row, Table

LARGEST, MISSING = "largest relevance", "missing from the sum"
_LEAST = 1e-9  # that a scale of powers of ten shows


@dataclass(frozen=True)
class Extremes:
    """The largest relevance of a token of each sample, and what the sum misses, in units of the explained number."""

    model: str
    task: str
    dtype: str
    method: str
    largest: np.ndarray  # [N]
    error: np.ndarray  # [N]
    left_out: int  # samples whose relevance is not finite, or that are lost otherwise


@dataclass(frozen=True)
class ByLayer:
    """The largest relevance of a token at each boundary of layers, in units of the explained number."""

    model: str
    task: str
    dtype: str
    method: str
    largest: np.ndarray  # [N, L + 1]; 0 is below the first block


_Place = tuple[str, str, str]  # task, model and precision
_Measured = TypeVar("_Measured", Extremes, ByLayer)


def extremes_figure(extremes: Sequence[Extremes], methods: Methods) -> list[Figure]:
    """Two panels for each model and task, a line a method from the median to the maximum, by powers of ten."""
    shown = _by_place(extremes, methods)
    colours = _colours(shown, methods)

    def draw(axis: Axes, place: _Place, part: str) -> None:
        own, ends = shown[place], []
        for at, one in enumerate(own):
            colour = colours[one.method]
            values = one.largest if part == LARGEST else one.error
            middle, most = (max(float(reduced(values)), _LEAST) for reduced in (np.median, np.max))
            axis.hlines([-at], [middle], [most], color=colour, linewidth=2)
            axis.plot([most], [-at], marker="o", linestyle="none", color=colour, label=label(methods, one.method))
            ends += [middle, most]
        axis.set_xscale("log")
        axis.set_xlim(min(ends) / 4, max(ends) * 4)  # always with a power of ten
        axis.minorticks_off()
        axis.set_yticks([])
        axis.set_ylim(0.7 - len(own), 0.7)
        axis.set_title(f"{' · '.join(place)} · {part}", fontsize=9, loc="left")

    caption = (
        "The largest relevance of any token, and what the sum of relevance and the explained number differ by, from "
        "the median over samples to the maximum (the dot), in units of the explained number. Biases and the softmax "
        "keep a share of the sum under every rule; unstable rules divide by scores near 0, and both numbers grow."
    )
    axes = ("times the explained number", "method")
    panels = [partial(draw, place=place, part=part) for place in shown for part in (LARGEST, MISSING)]
    return [figure("extremes", "Unstable rules", caption, panels, 2, axes, methods)] if panels else []


def extremes_table(extremes: Sequence[Extremes], methods: Methods) -> Table:
    """A method a row: medians and maxima over samples."""
    rows = [
        Row(
            one.task,
            (f"{one.model}, {one.dtype}", label(methods, one.method)),
            (*_middle_and_most(one.largest), *_middle_and_most(one.error), Cell(len(one.largest)), Cell(one.left_out)),
        )
        for one in sorted(extremes, key=lambda one: (one.task, one.model, one.dtype, rank(methods, one.method)))
    ]
    numbers = tuple(Column(group, name, significant=3) for group in (LARGEST, MISSING) for name in _NAMES)
    return Table(
        "extremes",
        "Unstable rules",
        "In units of the explained number, over samples. Left out are samples whose relevance is not finite, or of 0.",
        ("model", "method"),
        (*numbers, Column("", "samples", digits=0), Column("", "left out", digits=0)),
        tuple(rows),
    )


def layers_figure(layers: Sequence[ByLayer], methods: Methods) -> list[Figure]:
    """A panel for each model and task, a line a method: the maximum over samples, and their median, dashed."""
    shown = _by_place(layers, methods)
    colours = _colours(shown, methods)

    def draw(axis: Axes, place: _Place) -> None:
        for one in shown[place]:
            colour = colours[one.method]
            middle, most = (np.maximum(reduced(one.largest, 0), _LEAST) for reduced in (np.median, np.max))
            axis.plot(range(len(most)), most, color=colour, label=label(methods, one.method))
            axis.plot(range(len(most)), middle, color=colour, linestyle="dashed", linewidth=1)
        axis.set_yscale("log")
        axis.set_title(" · ".join(place), fontsize=9, loc="left")

    caption = (
        "The largest relevance of any token where it crosses from block to block, from the top (right) down to the "
        "first (0): the maximum over samples and, dashed, the median, in units of the explained number."
    )
    axes = ("boundary", "times the explained number")
    panels = [partial(draw, place=place) for place in shown]
    return [figure("extremes_by_layer", "Unstable rules by layer", caption, panels, 2, axes, methods)] if panels else []


def layers_table(layers: Sequence[ByLayer], methods: Methods) -> Table:
    """A boundary of layers a row, from the top down: median and maximum over samples."""
    rows = [
        Row(
            one.task,
            (f"{one.model}, {one.dtype}", label(methods, one.method), str(boundary)),
            (*_middle_and_most(one.largest[:, boundary]), Cell(len(one.largest))),
        )
        for one in sorted(layers, key=lambda one: (one.task, one.model, one.dtype, rank(methods, one.method)))
        for boundary in reversed(range(one.largest.shape[1] if len(one.largest) else 0))
    ]
    return Table(
        "extremes_by_layer",
        "Unstable rules by layer",
        "The largest relevance of a token at each boundary of layers, in units of the explained number, over samples; "
        "0 is below the first block.",
        ("model", "method", "boundary"),
        (*(Column(LARGEST, name, significant=3) for name in _NAMES), Column("", "samples", digits=0)),
        tuple(rows),
    )


def _by_place(every: Sequence[_Measured], methods: Methods) -> dict[_Place, list[_Measured]]:
    """What has samples, by place, in the order of the methods."""
    shown: dict[_Place, list[_Measured]] = {}
    for one in sorted((one for one in every if len(one.largest)), key=lambda one: rank(methods, one.method)):
        shown.setdefault((one.task, one.model, one.dtype), []).append(one)
    return shown


def _colours(shown: Mapping[_Place, Sequence[Extremes | ByLayer]], methods: Methods) -> dict[str, str | None]:
    """The colours in which methods are drawn, by their names."""
    names = {one.method for own in shown.values() for one in own}
    spare = spare_colours(names, methods)
    return {name: methods[name].colour or spare.get(name) for name in names}


_NAMES = ("median", "maximum")


def _middle_and_most(values: np.ndarray) -> tuple[Cell, Cell]:
    if not len(values):
        return Cell(state="not finite"), Cell(state="not finite")
    return Cell(float(np.median(values))), Cell(float(np.max(values)))
