"""Figures as SVG and PDF, drawn by matplotlib from specifications: panels of lines or maps above a common legend.

Figures are built without pyplot's global state, text stays text, and
equal data give equal bytes.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import cycle
from typing import Any, NamedTuple

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_pdf import FigureCanvasPdf
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from closelook.evaluation.report.frame import Point
from closelook.evaluation.report.heatmaps.tokens import colour
from closelook.evaluation.report.page import Figure
from closelook.evaluation.report.results import Methods, label, ordered
from closelook.evaluation.report.table import Cell

#: Okabe and Ito's colours, for methods whose records name no colour.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7a6a00", "#000000")
GREY = "#8a8577"
POINT = {"marker": "o", "linestyle": "none"}
DASHED = {"color": GREY, "linestyle": "--"}  # the look of the baseline
_STYLE: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "closelook",
    "pdf.fonttype": 42,  # other programs can edit the text
    "font.family": "sans-serif",
    "font.size": 9,
    "lines.linewidth": 1.3,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": GREY,
    "axes.grid": True,
    "axes.titlesize": 9,
    "axes.titlelocation": "left",
    "axes.titley": 1.0,  # fixed, since matplotlib would otherwise measure all tick labels
    "axes.facecolor": "none",
    "figure.facecolor": "none",
    "axes.axisbelow": True,
    "grid.color": "#ece8de",
    "xtick.color": "#63696e",
    "ytick.color": "#63696e",
    "legend.frameon": False,
}
ACROSS = 3  # panels in a row of a figure
_EDGES = (0.6, 0.2)  # inches around all panels
_CELL = 0.46  # inches: the width of a cell of a map
_LEGEND_COLUMNS = {1: 2, 2: 4, 3: 7}  # at most, by panels in a row
_LEGEND_LINE, _LEGEND_MARK, _LETTER = 0.2, 0.6, 0.072  # inches: of a line of the legend, of a mark and of a letter


Numbers = Sequence[float] | np.ndarray
Look = dict[str, Any]  # matplotlib's properties of a line
Looks = dict[str, Look]  # by method
Bar = tuple[Numbers, Numbers, Look]  # ends in x, ends in y, look


@dataclass(frozen=True)
class Line:
    """A line, or points, of a panel."""

    label: str  # in the legend; empty for a line without an entry
    x: Numbers  # [N]
    y: Numbers  # [N]
    look: Look
    low: Numbers | None = None  # [N] ends of a band around the line
    high: Numbers | None = None
    bars: Sequence[Bar] = ()  # straight lines in the same colour, such as intervals; they are not in the frame

    def draw(self, axis: Axes) -> None:
        """Draws the line with its band and bars."""
        for x, y, look in self.bars:
            axis.plot(x, y, color=self.look["color"], solid_capstyle="butt", **look)
        axis.plot(self.x, self.y, label=self.label, **self.look)
        if self.low is not None and self.high is not None:
            axis.fill_between(self.x, self.low, self.high, color=self.look["color"], alpha=0.12, linewidth=0)

    def points(self, panel: str) -> Iterator[Point]:
        """The points of the line, with the ends of the band."""
        gaps = [math.nan] * len(self.x)
        bands = (gaps if self.low is None else self.low, gaps if self.high is None else self.high)
        for x, y, low, high in zip(self.x, self.y, *bands, strict=True):
            known = math.isfinite(low) and math.isfinite(high)
            ends = (float(low), float(high)) if known else (None, None)
            yield Point(panel, self.label, float(x), Cell(float(y), low=ends[0], high=ends[1]))


@dataclass(frozen=True)
class Panel:
    """A panel of a figure with lines."""

    title: str
    lines: Sequence[Line]
    axis: Mapping[str, Any] = field(default_factory=dict)  # properties of its axes, the arguments of `Axes.set`
    height: float = 2.26  # inches, with the title and the numbers of the axes

    @property
    def size(self) -> tuple[float, float]:
        """Width and height in inches."""
        return (3.2, self.height)

    def draw(self, axis: Axes) -> None:
        """Draws all lines."""
        for line in self.lines:
            line.draw(axis)
        axis.set(**self.axis)


@dataclass(frozen=True)
class Grid:
    """A panel of a figure with a map: cells that are darker the higher their number, which they also show."""

    title: str
    values: np.ndarray  # [R, C], NaN for cells without a number
    rows: Sequence[str]  # [R] names
    columns: Sequence[str]  # [C] names
    lines: Sequence[Line] = ()

    @property
    def size(self) -> tuple[float, float]:
        """Width and height in inches, with the title and the names of rows and columns."""
        return (0.3 + _CELL * len(self.columns), 1.2 + 0.2 * len(self.rows))

    def draw(self, axis: Axes) -> None:
        """Draws the cells with their numbers."""
        colours = LinearSegmentedColormap.from_list("map", [colour(0), colour(0.85)])
        axis.pcolormesh(self.values, cmap=colours, edgecolors="white", linewidth=1)
        axis.invert_yaxis()
        axis.grid(False)
        axis.set_xticks(np.arange(len(self.columns)) + 0.5, self.columns, rotation=38, ha="right")
        axis.set_yticks(np.arange(len(self.rows)) + 0.5, self.rows)
        # Numbers do not take part in the layout, since the size of cells does not depend on them.
        look: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 8, "in_layout": False}
        for (row, column), value in np.ndenumerate(self.values):
            text = f"{round(value, 1) + 0.0:.1f}" if math.isfinite(value) else "–"
            axis.text(column + 0.5, row + 0.5, text, **look)


@dataclass(frozen=True)
class Plot:
    """The specification of a figure."""

    name: str
    title: str
    caption: str
    axes: tuple[str, str]  # names of x and y
    across: int = ACROSS  # panels in a row
    whole: bool = False  # True: ticks of x are whole numbers
    alike: bool = True  # True: all panels share the y axis
    tabled: bool = False  # True: a table holds the numbers, which are not repeated in the frame
    powers: bool = False  # True: ticks of logarithmic axes, x at powers of two, y at 1, 2 and 5 times powers of ten

    def figures(self, panels: Sequence[Panel | Grid], methods: Methods) -> list[Figure]:
        """The figure of `panels` in a list, or an empty list without panels.

        Its legend is in the order of `methods`.
        """
        if not panels:
            return []
        order = [methods[name].label for name in ordered(methods, methods)]
        across = min(self.across, len(panels))
        canvas = self._drawn(panels, across, order)
        svg, width = _svg(canvas)
        points = []
        if not self.tabled:
            points = [point for panel in panels for line in panel.lines for point in line.points(panel.title)]
        return [Figure(self.name, self.title, self.caption, svg, width, points, _pdf(canvas))]

    def _drawn(self, panels: Sequence[Panel | Grid], across: int, order: Sequence[str]) -> Canvas:
        """The drawn figure with `across` panels in a row, and the legend's names in `order`."""
        down = math.ceil(len(panels) / across)
        with matplotlib.rc_context(_STYLE):
            canvas = Canvas(layout="constrained")
            grid = list(canvas.subplots(down, across, squeeze=False, sharey=self.alike).flat)
            handles: dict[str, Any] = {}
            for at, axis in enumerate(grid):
                if at >= len(panels):
                    axis.remove()
                    continue
                axis.set_title(panels[at].title)
                panels[at].draw(axis)
                self._scale(axis)
                axis.set_xlabel(self.axes[0] if at + across >= len(panels) else "")
                axis.set_ylabel(self.axes[1] if at % across == 0 else "")
                handles |= {str(line.get_label()): line for line in axis.get_lines()}
            labels = {line.label: None for panel in panels for line in panel.lines if line.label}
            names = sorted(labels, key=lambda name: order.index(name) if name in order else -1)
            width, height = np.max([panel.size for panel in panels], axis=0)
            whole = across * width + _EDGES[0]
            columns = _columns(names, _LEGEND_COLUMNS[min(across, ACROSS)], whole)
            if names:
                canvas.legend([handles[name] for name in names], names, loc="outside lower center", ncols=columns)
            legend = _LEGEND_LINE * math.ceil(len(names) / columns)
            canvas.set_size_inches(whole, down * height + _EDGES[1] + legend)
        return canvas

    def _scale(self, axis: Axes) -> None:
        """Sets the ticks of both axes as `whole` and `powers` say, without minor ticks."""
        if self.whole:
            axis.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        if self.powers:
            axis.xaxis.set_major_locator(LogLocator(base=2))
            axis.yaxis.set_major_locator(LogLocator(base=10, subs=(1, 2, 5)))
            for scale in (axis.xaxis, axis.yaxis):
                scale.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        for scale in (axis.xaxis, axis.yaxis):
            scale.set_minor_locator(NullLocator())


def _columns(names: Sequence[str], most: int, width: float) -> int:
    """The number of columns in which a legend of `names` fits `width` inches: `most`, fewer for long names."""
    for count in range(most, 1, -1):
        longest = [max(map(len, column)) for column in np.array_split(names, count) if len(column)]
        if sum(_LEGEND_MARK + _LETTER * letters for letters in longest) <= width:
            return count
    return 1


def _svg(canvas: Canvas) -> tuple[str, int]:
    """The figure as SVG, and its width in pixels."""
    sink = io.StringIO()
    with matplotlib.rc_context(_STYLE):
        FigureCanvasSVG(canvas).print_svg(sink, metadata={"Date": None, "Creator": None})  # `savefig` draws twice
    return sink.getvalue(), round(canvas.get_figwidth() * 96)


def _pdf(canvas: Canvas) -> bytes:
    """A figure as PDF. It must have been printed as SVG before, which lays it out."""
    sink = io.BytesIO()
    canvas.set_layout_engine("none")  # keeps the positions of the SVG
    undated: Any = {"CreationDate": None, "Creator": None, "Producer": None}
    with matplotlib.rc_context(_STYLE):
        FigureCanvasPdf(canvas).print_pdf(sink, metadata=undated)
    return sink.getvalue()


def looks(names: Iterable[str], methods: Methods, baseline: str | None = None) -> Looks:
    """Colour and line style of each of the methods `names`, and of the baseline, the same in every figure of a run.

    A method whose record names no colour takes a colour that no other method has, with a dash-dotted line.
    """
    names = set(names)
    shown = ordered(methods, {*methods, *names} - {baseline})
    named = {name: methods[name].colour for name in shown if name in methods}
    spare = cycle([colour for colour in COLOURS if colour not in named.values()] or COLOURS)
    look_of: Looks = {} if baseline is None else {baseline: DASHED}
    for name in shown:
        if named.get(name):
            look_of[name] = {"color": named[name]}
        else:
            look_of[name] = {"color": next(spare), "linestyle": "-."}
    return {name: look for name, look in look_of.items() if name in names or name == baseline}


class Curve(NamedTuple):
    """A curve of a method in a panel of a figure, possibly with a band."""

    panel: str
    method: str
    x: Numbers  # [N]
    y: Numbers  # [N]
    low: Numbers | None = None  # [N]
    high: Numbers | None = None


def curve_panels(
    curves: Sequence[Curve],
    methods: Methods,
    baseline: str | None = None,
    axis: Mapping[str, Any] | None = None,
    **marks: Any,
) -> list[Panel]:
    """A panel for each panel that `curves` name, with a line for each of its curves in the colour of the method.

    `axis` are properties of all axes, `marks` of all lines.
    """
    look = looks({curve.method for curve in curves}, methods, baseline)
    lines: dict[str, list[Line]] = {}
    for curve in curves:
        style = look[curve.method] | marks
        line = Line(label(methods, curve.method), curve.x, curve.y, style, curve.low, curve.high)
        lines.setdefault(curve.panel, []).append(line)
    return [Panel(title, of_panel, axis or {}) for title, of_panel in lines.items()]
