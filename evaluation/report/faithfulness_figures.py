"""Plots of faithfulness: mean curves in both orders and their difference (AttnLRP's figure 4), what shares of the top
tokens do (NormXLogit's figures), and a map of methods."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from matplotlib.axes import Axes

from evaluation.report.drawing import ACROSS, GREY, figure, spare_colours
from evaluation.report.evidence import Point, agreement
from evaluation.report.faithfulness import WAYS, Drawn
from evaluation.report.page import Figure
from evaluation.report.results import Results, label, rank
from evaluation.report.shares import Taken
from evaluation.scoring.areas import GRID, MeanCurve
from evaluation.scoring.faithfulness import MEASURES
from evaluation.scoring.flips import SHARES
from evaluation.scoring.metrics import METRICS, lead

PANELS = {"morf": "most relevant first", "lerf": "least relevant first", "delta": "difference"}


def curve_figures(drawn: Sequence[Drawn], results: Results) -> list[Figure]:
    """A figure for each task and perturbation: a row a model, with MoRF, LeRF and their difference."""
    figures = []
    for task, way in dict.fromkeys((one.task, one.perturbation) for one in drawn if one.curves):
        own = [one for one in drawn if (one.task, one.perturbation) == (task, way) and one.curves]
        looks = _looks({method for one in own for method in one.curves}, results)
        panels = [partial(_draw, one=one, order=order, looks=looks) for one in own for order in PANELS]
        counts = sorted({curve.n for one in own for curves in one.curves.values() for curve in curves.values()})
        samples = f"{counts[0]:,}" if len(counts) == 1 else f"{counts[0]:,} to {counts[-1]:,}"
        caption = (
            f"Mean logit of the target over {samples} samples as tokens go ({WAYS[way]}), with 95 % intervals: lower "
            "is better where the most relevant go first, higher where the least do; the area of the difference is ΔA."
        )
        axes = ("share of tokens that are gone", "logit")
        figures.append(
            figure(f"faithfulness_{task}_{way}", f"Faithfulness, {task}", caption, panels, 3, axes, results.methods)
        )
    return figures


def _draw(axis: Axes, one: Drawn, order: str, looks: Mapping[str, Mapping[str, Any]]) -> None:
    for method, curves in one.curves.items():
        curve: MeanCurve = curves[order]
        axis.plot(GRID, curve.mean, linewidth=1.3, **looks[method])
        axis.fill_between(GRID, curve.low, curve.high, color=looks[method]["color"], alpha=0.12, linewidth=0)
    axis.set_title(f"{one.model} · {PANELS[order]}", fontsize=9, loc="left")


def evidence_figure(drawn: Sequence[Drawn], points: Sequence[Sequence[Point]], results: Results) -> list[Figure]:
    """Every method a point: evidence found against faithfulness, a panel a model and task; none without points."""
    shown = [(one, own) for one, own in zip(drawn, points, strict=True) if own]
    if not shown:
        return []
    looks = _looks({point.method for _, own in shown for point in own}, results)
    panels = [partial(_draw_points, one=one, own=own, looks=looks) for one, own in shown]
    name = METRICS[lead()].label
    caption = (
        f"Each point is a method; its size grows with its cost in forwards, lines are 95 % intervals. {name} tells how "
        "often the most relevant token is evidence. ρ is the rank correlation of the two rankings."
    )
    axes = (f"evidence: {name}, {METRICS[lead()].unit}", "faithfulness: ΔA")
    across = min(ACROSS, len(panels))
    title = "Evidence against faithfulness"
    return [figure("evidence_faithfulness", title, caption, panels, across, axes, results.methods)]


def _draw_points(axis: Axes, one: Drawn, own: Sequence[Point], looks: Mapping[str, Mapping[str, Any]]) -> None:
    for point in own:
        look, (x, y) = looks[point.method], (point.evidence, point.delta)
        at = (x.value or 0.0, y.value or 0.0)
        axis.hlines([at[1]], [x.low or 0], [x.high or 0], color=look["color"], linewidth=0.9)
        axis.vlines([at[0]], [y.low or 0], [y.high or 0], color=look["color"], linewidth=0.9)
        size = 4 + 1.6 * math.log2(1 + point.forwards)
        plain = {key: value for key, value in look.items() if key != "linestyle"}
        axis.plot([at[0]], [at[1]], marker="o", linestyle="none", markersize=size, alpha=0.85, **plain)
    value = agreement(own)
    rho = f" · ρ = {value:.2f}" if value == value else ""
    axis.set_title(f"{one.model} · {one.task}{rho}", fontsize=9, loc="left")
    axis.set_xlim(-4, 104)


def share_figures(taken: Sequence[Taken], results: Results) -> list[Figure]:
    """Figures of a task and perturbation, a row a model: without the top tokens, and with those alone.

    Of labels the probability that is lost and the accuracy (NormXLogit's figures 2, 3 and 6 to 24), of scores Pearson's
    r with the gold scores.
    """
    figures = []
    for task, way in dict.fromkeys((one.task, one.perturbation) for one in taken if one.shares.curves):
        own = [one for one in taken if (one.task, one.perturbation) == (task, way) and one.shares.curves]
        looks = _looks({method for one in own for method, _ in one.shares.curves}, results)
        for pair in dict.fromkeys(pair for one in own for pair in one.shares.pairs):
            held = [(one, measure) for one in own if pair in one.shares.pairs for measure in pair]
            panels = [partial(_draw_shares, one=one, measure=measure, looks=looks) for one, measure in held]
            caption = " ".join(_better(measure) for measure in pair) + f" The tokens are {WAYS[way]}; 95 % intervals."
            title = f"{MEASURES[pair[0]].label}, {task}"
            axes = ("share of top tokens, %", MEASURES[pair[0]].label)
            name = f"shares_{task}_{way}_{pair[0]}"
            figures.append(figure(name, title, caption, panels, len(pair), axes, results.methods))
    return figures


def _better(measure: str) -> str:
    told = MEASURES[measure].about.removesuffix(", mean over shares")
    better = "higher" if MEASURES[measure].higher_is_better else "lower"
    return f"{MEASURES[measure].label}: {told}; {better} is better."


def _draw_shares(axis: Axes, one: Taken, measure: str, looks: Mapping[str, Mapping[str, Any]]) -> None:
    for method in one.shares.variants:
        if (curve := one.shares.curves.get((method, measure))) is not None:
            axis.plot(SHARES, curve.mean, linewidth=1.3, **looks[method])
            axis.fill_between(SHARES, curve.low, curve.high, color=looks[method]["color"], alpha=0.12, linewidth=0)
    axis.set_title(f"{one.model} · {MEASURES[measure].label}", fontsize=9, loc="left")


def _looks(names: Iterable[str], results: Results) -> dict[str, dict[str, Any]]:
    """Colour, line and label of each method; those without a colour take one that is left, dashed."""
    shown = sorted(names, key=partial(rank, results.methods))
    left = spare_colours((name for name in shown if name != results.baseline), results.methods)
    looks: dict[str, dict[str, Any]] = {}
    for name in shown:
        if name == results.baseline:
            look = {"color": GREY, "linestyle": "--"}
        elif name in left:
            look = {"color": left[name], "linestyle": "-."}
        else:
            look = {"color": str(results.methods[name].colour), "linestyle": "-"}
        looks[name] = look | {"label": label(results.methods, name)}
    return looks
