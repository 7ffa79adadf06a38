"""Plots as SVG: panels that draw themselves, under one legend, wide and once more for narrow screens.

Figures are built without pyplot's global state, text stays text, and equal data give equal bytes.
"""

from __future__ import annotations

import csv
import gc
import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import cycle
from typing import Any

import matplotlib
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.collections import FillBetweenPolyCollection
from matplotlib.figure import Figure as Plot
from matplotlib.gridspec import GridSpec
from matplotlib.lines import Line2D

from evaluation.report.page import Figure
from evaluation.report.results import Methods, rank

#: Okabe and Ito's colours, which methods without a colour of their own take in turn, dashed.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7a6a00", "#000000")
GREY = "#8a8577"
_STYLE: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "closelook",
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": GREY,
    "axes.grid": True,
    "axes.titley": 1.0,  # else all tick labels are measured to stay below the title
    "axes.axisbelow": True,
    "grid.color": "#ece8de",
    "xtick.color": "#63696e",
    "ytick.color": "#63696e",
    "legend.frameon": False,
}
ACROSS = 3  # panels of a figure
_NAME_OF_X, _NAME_OF_Y = 0.26, 0.42  # inches from a panel to the names of its axes, behind the numbers


def spare_colours(names: Iterable[str], methods: Methods) -> dict[str, str]:
    """Colours of the methods whose records have none: unused ones as long as there are any."""
    ordered = sorted(set(names), key=partial(rank, methods))
    own = {methods[name].colour for name in ordered if name in methods}
    plain = [name for name in ordered if name not in methods or methods[name].colour is None]
    return dict(zip(plain, cycle([colour for colour in COLOURS if colour not in own] or COLOURS), strict=False))


def figure(
    name: str,
    title: str,
    caption: str,
    panels: Sequence[Callable[[Axes], None]],
    across: int,
    axes: tuple[str, str],
    methods: Methods,
) -> Figure:
    """`panels` draw themselves, `across` in a row; for narrow screens a second picture has them below each other."""
    forms = (across, 1) if across > 1 else (1,)
    with matplotlib.rc_context(_STYLE), _without_collection():
        plot, drawn = _drawn(panels, across)
        handles = {str(line.get_label()): line for axis in drawn for line in axis.get_lines()}
        order = [methods[name].label for name in sorted(methods, key=partial(rank, methods))]
        ordered = sorted(handles, key=lambda name: order.index(name) if name in order else -1)
        pictures = [_svg(plot, drawn, form, axes, {name: handles[name] for name in ordered}) for form in forms]
        data = _data(drawn, axes)
    return Figure(name, title, caption, *pictures[0], *pictures[-1], data)


@contextmanager
def _without_collection() -> Iterator[None]:
    """Python's search for cycles takes a fifth of the time: a plot is many objects, all in use until it is saved."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _drawn(panels: Sequence[Callable[[Axes], None]], across: int) -> tuple[Plot, list[Axes]]:
    """The panels on axes that share the scale of y."""
    plot = Plot()
    axes = list(plot.subplots(-(-len(panels) // across), across, squeeze=False, sharey=True).flat)
    for axis in axes[len(panels) :]:
        axis.remove()
    for axis, draw in zip(axes, panels, strict=False):
        draw(axis)
    return plot, axes[: len(panels)]


def _data(axes: Sequence[Axes], names: tuple[str, str]) -> str:
    """What is drawn, as CSV: a row for each point of a line, with the band around it where there is one."""
    sink = io.StringIO()
    rows = csv.writer(sink, lineterminator="\n")
    rows.writerow(["panel", "line", *names, "low", "high"])
    for axis in axes:
        panel = next((axis.get_title(loc=side) for side in ("left", "center") if axis.get_title(loc=side)), "")
        points: list[list[Any]] = []
        for artist in axis.get_children():  # a line and then its band, as they were drawn
            if isinstance(artist, FillBetweenPolyCollection):
                bounds = _bounds(artist)
                points = [[*point[:4], *bounds.get(point[2], ("", ""))] for point in points]
            elif isinstance(artist, Line2D):
                rows.writerows(points)
                x, y = map(np.asarray, artist.get_data(orig=True))
                label = str(artist.get_label())
                own = "" if label.startswith("_") else label
                points = [[panel, own, float(at), float(value), "", ""] for at, value in zip(x, y, strict=True)]
        rows.writerows(points)
    return sink.getvalue()


def _bounds(band: FillBetweenPolyCollection) -> dict[float, tuple[float, float]]:
    """The lowest and highest corner of a band at each x."""
    corners: dict[float, list[float]] = {}
    for path in band.get_paths():
        for x, y in np.asarray(path.vertices).tolist():
            corners.setdefault(x, []).append(y)
    return {x: (min(values), max(values)) for x, values in corners.items()}


def _svg(
    plot: Plot, axes: Sequence[Axes], across: int, names: tuple[str, str], handles: Mapping[str, Artist]
) -> tuple[str, int]:
    """(picture, width in pixels) with so many panels `across`; `names` are those of the axes x and y."""
    down = -(-len(axes) // across)
    for at, axis in enumerate(axes):
        axis.set_subplotspec(GridSpec(down, across, figure=plot)[at])
        axis.set_xlabel(names[0] if at + across >= len(axes) else "")
        axis.set_ylabel(names[1] if at % across == 0 else "")
        axis.yaxis.set_tick_params(labelleft=at % across == 0)
    columns = (2, 4, 7)[min(across, 3) - 1]
    plot.legends.clear()
    plot.legend(handles.values(), handles, loc="lower center", ncols=columns)
    _arrange(plot, axes, down, across, -(-len(handles) // columns))
    sink = io.StringIO()
    plot.savefig(sink, format="svg", metadata={"Date": None, "Creator": None}, transparent=True)
    return sink.getvalue(), round(plot.get_figwidth() * 96)


def _arrange(plot: Plot, axes: Sequence[Axes], down: int, across: int, legend_rows: int) -> None:
    """Sizes in inches; matplotlib's own layouts measure all text and take several times as long."""
    panel = (3.05 if across > 1 else 2.55, 1.75)
    for axis in axes:
        axis.xaxis.set_label_coords(0.5, -_NAME_OF_X / panel[1])
        axis.yaxis.set_label_coords(-_NAME_OF_Y / panel[0], 0.5)
    left, right, top, bottom, between, above = 0.65, 0.12, 0.3, 0.6 + 0.19 * legend_rows, 0.18, 0.6
    width = left + across * panel[0] + (across - 1) * between + right
    height = top + down * panel[1] + (down - 1) * above + bottom
    plot.set_size_inches(width, height)
    edges = {"left": left / width, "right": 1 - right / width, "top": 1 - top / height, "bottom": bottom / height}
    plot.subplots_adjust(**edges, wspace=between / panel[0], hspace=above / panel[1])
