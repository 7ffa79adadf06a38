"""Plots as SVG, from specifications: panels of lines under one legend, wide and once more for narrow screens.

Figures are built without pyplot's global state, text stays text, and equal data give equal bytes.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import cycle
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from evaluation.report.heatmap import colour
from evaluation.report.page import Figure
from evaluation.report.results import Methods, rank

#: Okabe and Ito's colours, which methods without a colour of their own take in turn, dashed.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7a6a00", "#000000")
GREY = "#8a8577"
POINT = {"marker": "o", "linestyle": "none"}
DASHED = {"color": GREY, "linestyle": "--"}  # of what others are held against
_STYLE: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "closelook",
    "font.family": "sans-serif",
    "font.size": 9,
    "lines.linewidth": 1.3,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": GREY,
    "axes.grid": True,
    "axes.titlesize": 9,
    "axes.titlelocation": "left",
    "axes.titley": 1.0,  # else all tick labels are measured to stay below the title
    "axes.facecolor": "none",
    "figure.facecolor": "none",
    "axes.axisbelow": True,
    "grid.color": "#ece8de",
    "xtick.color": "#63696e",
    "ytick.color": "#63696e",
    "legend.frameon": False,
}
ACROSS = 3  # panels of a figure
_EDGES = (0.6, 0.2)  # inches beside all panels
_CELL, _NARROW_MAP, _NUMBER = 0.46, 2.7, 0.29  # inches: of a map's cell and a whole map, and of a number with a decimal
_LEGEND_COLUMNS = {1: 2, 2: 4, 3: 7}  # by panels across
_LEGEND_LINE = 0.2  # inches


Numbers = Sequence[float] | np.ndarray
Bar = tuple[Numbers, Numbers, Mapping[str, Any]]


@dataclass(frozen=True)
class Line:
    """A line, or points, of a panel: coordinates [N], the ends of a band around them, and the look for matplotlib.

    `bars` are straight lines beside it, which are no data: ends in x, ends in y, look.
    """

    label: str
    x: Numbers
    y: Numbers
    look: Mapping[str, Any]
    low: Numbers | None = None
    high: Numbers | None = None
    bars: Sequence[Bar] = ()

    def draw(self, axis: Axes) -> None:
        for x, y, look in self.bars:
            axis.plot(x, y, color=self.look["color"], solid_capstyle="butt", **look)
        axis.plot(self.x, self.y, label=self.label, **self.look)
        if self.low is not None and self.high is not None:
            axis.fill_between(self.x, self.low, self.high, color=self.look["color"], alpha=0.12, linewidth=0)

    def points(self) -> Iterable[list[Any]]:
        """Name, x, y and the ends of the band, "" where there is none, of each point."""
        gaps = [math.nan] * len(self.x)
        bands = (gaps if self.low is None else self.low, gaps if self.high is None else self.high)
        for x, y, low, high in zip(self.x, self.y, *bands, strict=True):
            ends = [float(low), float(high)] if math.isfinite(low) and math.isfinite(high) else ["", ""]
            yield [self.label, float(x), float(y), *ends]


@dataclass(frozen=True)
class Panel:
    """One plot of a figure. `axis` are properties of its axes, as `Axes.set` takes them."""

    title: str
    lines: Sequence[Line]
    axis: Mapping[str, Any] = field(default_factory=dict)

    def size(self, narrow: bool) -> tuple[float, float]:
        """Width and height in inches, with the title and the axes' numbers."""
        return (2.7 if narrow else 3.2, 2.26)

    def draw(self, axis: Axes, narrow: bool) -> None:
        for line in self.lines:
            line.draw(axis)
        axis.set(**self.axis)


@dataclass(frozen=True)
class Grid:
    """A map as a panel: `values` [R, C], NaN where there are none, darker the higher, with their numbers."""

    title: str
    values: np.ndarray
    rows: Sequence[str]
    columns: Sequence[str]
    lines: Sequence[Line] = ()

    def size(self, narrow: bool) -> tuple[float, float]:
        width = _NARROW_MAP if narrow else 0.3 + _CELL * len(self.columns)
        return (width, 1.2 + 0.2 * len(self.rows))

    def draw(self, axis: Axes, narrow: bool) -> None:
        colours = LinearSegmentedColormap.from_list("map", [colour(0), colour(0.85)])
        axis.pcolormesh(self.values, cmap=colours, edgecolors="white", linewidth=1)
        axis.invert_yaxis()
        axis.grid(False)
        axis.set_xticks(np.arange(len(self.columns)) + 0.5, self.columns, rotation=38, ha="right")
        axis.set_yticks(np.arange(len(self.rows)) + 0.5, self.rows)
        digits = 0 if narrow and _NARROW_MAP / len(self.columns) < _NUMBER else 1
        for (row, column), value in np.ndenumerate(self.values):
            text = f"{round(value, digits) + 0.0:.{digits}f}" if math.isfinite(value) else "–"
            look: dict[str, Any] = {
                "ha": "center",
                "va": "center",
                "fontsize": 8,
                "in_layout": False,
            }  # cells have their sizes anyhow
            axis.text(column + 0.5, row + 0.5, text, **look)


@dataclass(frozen=True)
class Plot:
    """The specification of a figure."""

    name: str
    title: str
    caption: str
    axes: tuple[str, str]  # names of x and y
    across: int = ACROSS  # panels in a row
    whole: bool = False  # x are whole numbers
    alike: bool = True  # panels have the same y
    powers: bool = False  # both axes are logarithmic, with ticks at powers of two, and at 1, 2 and 5 of each ten

    def figures(self, panels: Sequence[Panel | Grid], methods: Methods) -> list[Figure]:
        """The drawn figure, whose legend has the order of `methods`; none without panels."""
        if not panels:
            return []
        order = [methods[name].label for name in sorted(methods, key=partial(rank, methods))]
        across = min(self.across, len(panels))
        wide = self._svg(panels, across, order)
        narrow = wide if across == 1 else self._svg(panels, 1, order)
        data = self._data(panels) if any(panel.lines for panel in panels) else ""
        return [Figure(self.name, self.title, self.caption, *wide, *narrow, data)]

    def _svg(self, panels: Sequence[Panel | Grid], across: int, order: Sequence[str]) -> tuple[str, int]:
        """(picture, width in pixels) with so many panels `across`."""
        down, narrow = math.ceil(len(panels) / across), across == 1
        with matplotlib.rc_context(_STYLE):
            canvas = Canvas(layout="constrained")
            grid = list(canvas.subplots(down, across, squeeze=False, sharey=self.alike).flat)
            for at, axis in enumerate(grid):
                if at >= len(panels):
                    axis.remove()
                    continue
                axis.set_title(panels[at].title)
                panels[at].draw(axis, narrow)
                self._scale(axis)
                axis.set_xlabel(self.axes[0] if at + across >= len(panels) else "")
                axis.set_ylabel(self.axes[1] if at % across == 0 else "")
            handles = {str(line.get_label()): line for axis in grid[: len(panels)] for line in axis.get_lines()}
            labels = {line.label: None for panel in panels for line in panel.lines if line.label}
            names = sorted(labels, key=lambda name: order.index(name) if name in order else -1)
            columns = _LEGEND_COLUMNS[min(across, ACROSS)]
            if names:
                canvas.legend([handles[name] for name in names], names, loc="outside lower center", ncols=columns)
            width, height = np.max([panel.size(narrow) for panel in panels], axis=0)
            legend = _LEGEND_LINE * math.ceil(len(names) / columns)
            canvas.set_size_inches(across * width + _EDGES[0], down * height + _EDGES[1] + legend)
            sink = io.StringIO()
            FigureCanvasSVG(canvas).print_svg(sink, metadata={"Date": None, "Creator": None})  # `savefig` draws twice
        return sink.getvalue(), round(canvas.get_figwidth() * 96)

    def _scale(self, axis: Axes) -> None:
        """Put the ticks of both axes."""
        if self.whole:
            axis.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        if self.powers:
            axis.xaxis.set_major_locator(LogLocator(base=2))
            axis.yaxis.set_major_locator(LogLocator(base=10, subs=(1, 2, 5)))
            for scale in (axis.xaxis, axis.yaxis):
                scale.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        for scale in (axis.xaxis, axis.yaxis):
            scale.set_minor_locator(NullLocator())

    def _data(self, panels: Sequence[Panel | Grid]) -> str:
        """The drawn numbers as CSV: a row for each point of a line, with the band around it where there is one."""
        sink = io.StringIO()
        rows = csv.writer(sink, lineterminator="\n")
        rows.writerow(["panel", "line", *self.axes, "low", "high"])
        for panel in panels:
            rows.writerows([panel.title, *point] for line in panel.lines for point in line.points())
        return sink.getvalue()


def looks(names: Iterable[str], methods: Methods, baseline: str | None = None) -> dict[str, dict[str, Any]]:
    """Colour and line of each method; a method without a colour takes one that no other has, dashed."""
    shown = sorted(set(names) - {baseline}, key=partial(rank, methods))
    own = {name: methods[name].colour for name in shown if name in methods}
    spare = cycle([colour for colour in COLOURS if colour not in own.values()] or COLOURS)
    chosen: dict[str, dict[str, Any]] = {} if baseline is None else {baseline: DASHED}
    for name in shown:
        if own.get(name):
            chosen[name] = {"color": own[name]}
        else:
            chosen[name] = {"color": next(spare), "linestyle": "-."}
    return chosen
