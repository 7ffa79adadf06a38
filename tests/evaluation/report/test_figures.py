"""Curves are read as drawn, and equal data give equal pictures."""

import re
import xml.etree.ElementTree as ElementTree
import zlib
from dataclasses import replace

import numpy as np
import pytest
from matplotlib.textpath import TextPath

from closelook.evaluation.report.drawing import Line, Panel, Plot
from closelook.evaluation.report.results import Results
from closelook.evaluation.report.sections.costs import runtime_figures
from closelook.evaluation.report.sections.pruning import areas_of, areas_table, curves_of, pruning_figures
from closelook.evaluation.tasks import TASKS, Task
from closelook.jobs.methods import METHODS

SVG = "{http://www.w3.org/2000/svg}"


def points(
    method="attnlrp",
    pooling="relu_token",
    order="least_first",
    seed=None,
    task="sva",
    shares=(1.0, 0.8, 0.5),
    half=None,
):
    columns = {"model": "gpt2", "task": task, "method": method, "pooling": pooling, "order": order, "seed": seed}
    names = [f"s{at}" for at in range(10) if half is None or at % 2 != half]
    area = np.trapezoid(shares, [0, 0.5, 1])
    per_sample = {"samples": names, "areas": [area + 0.01 * int(name[1:]) - 0.045 for name in names]}
    for step, share in enumerate(shares):
        point = {"step": step, "pruned_heads": [step] if step else [], "accuracy": share, "n": len(names), "half": half}
        yield columns | point | (per_sample if step == 0 else dict.fromkeys(per_sample))


def results_of(methods=METHODS):
    return Results(models=(), tasks=TASKS, methods=methods, dtypes={}, states={}, scores={})


def random_points(task="sva"):
    for seed, end in enumerate((0.5, 0.3)):
        yield from points("random", "none", "random", seed, task, (1.0, 0.6, end))


def test_curves_count_removed_heads_and_random_is_a_mean_with_its_extremes():
    ranked, drawn = curves_of([*points(), *random_points()])
    np.testing.assert_array_equal(ranked.removed, [0, 1, 2])
    np.testing.assert_allclose(ranked.accuracy, [100, 80, 50])
    assert ranked.low is None
    np.testing.assert_allclose((drawn.accuracy, drawn.low, drawn.high), [[100, 60, 40], [100, 60, 30], [100, 60, 50]])


def test_points_may_come_in_any_order():
    shuffled = list(points())[::-1]
    np.testing.assert_allclose(curves_of(shuffled)[0].accuracy, [100, 80, 50])


def test_figures_2_to_5_by_task_and_pooling():
    rows = [row for task in ("ra", "sva", "qa") for pooling in ("relu_dim", "relu_token", "none")
            for row in points(pooling=pooling, task=task)]  # fmt: skip
    rows += [*random_points(), *points(order="most_first")]
    figures = pruning_figures(curves_of(rows), METHODS, TASKS)
    titles = [figure.title.split(".")[0] for figure in figures]
    assert titles == ["Figure 2", "Figure 3", "Figure 4", "Figure 5", "Ours"]
    assert "Random is the mean over 2 random orders" in figures[2].caption
    assert "on 10 samples" in figures[2].caption
    figure4 = figures[2].svg
    for text in ("gpt2 · ReLU dim", "gpt2 · ReLU per token", "gpt2 · no ReLU", "AttnLRP", "Random"):
        assert text in figure4, "text stays text"


def test_a_figure_as_pdf_has_the_size_and_the_text_of_the_svg_and_the_same_bytes_each_time():
    first, again = (pruning_figures(curves_of([*points(), *random_points()]), METHODS, TASKS)[0] for _ in range(2))
    assert (first.svg, first.pdf) == (again.svg, again.pdf)
    ElementTree.fromstring(first.svg)
    _, _, width, _ = map(float, re.search(rb"/MediaBox \[ ([^]]*) \]", first.pdf)[1].split())  # points, 72 an inch
    assert width == pytest.approx(first.width * 72 / 96, abs=1)
    streams = re.findall(rb"stream\n(.*?)\nendstream", first.pdf, re.DOTALL)
    drawn = b"".join(zlib.decompressobj().decompress(stream) for stream in streams if stream[:1] == b"x")
    letters = b"".join(re.findall(rb"\x00(.)", drawn))  # of two bytes each, with the distances between them
    for text in (b"AttnLRP", b"Random", b"accuracy, %"):
        assert text in letters
    assert list(first.files) == [f"figures/{first.name}.{kind}" for kind in ("svg", "pdf")]


def test_runtime_figure_needs_rows_and_shows_memory_where_it_is_known():
    cell = {"task": "sva", "model": "gpt2", "dtype": "float32", "device": "cpu", "method": "gradients"}
    rows = [cell | {"stage": "method", "wall_s": n / 9, "length": n, "batch": 2, "peak_bytes": None} for n in (8, 30)]
    assert runtime_figures([]) == []
    forward = [row | {"stage": "forward"} for row in rows]
    [figure] = runtime_figures([*rows, *forward])
    assert "ms per sample" in figure.svg
    assert "gpt2 · float32" in figure.svg
    known = [row | {"peak_bytes": 1 << 20, "device": "H200"} for row in rows]
    time, memory, _ = runtime_figures([*rows, *known])
    assert (time.name, time.title) == ("runtime_0", "Time against length, H200")
    assert (memory.name, memory.title) == ("memory_0", "Memory against length, H200")
    assert "peak MiB" in memory.svg


def test_halves_decide_which_area_is_better():
    better, worse = (1.0, 0.9, 0.7), (1.0, 0.5, 0.3)
    for order, best in (("least_first", "AttnLRP"), ("most_first", "LRP")):
        rows = [*points(order=order, shares=worse), *points("lrp", order=order, shares=better)]
        for half in (0, 1):
            rows += [
                *points(order=order, shares=better, half=half),
                *points("lrp", order=order, shares=worse, half=half),
            ]
        table = areas_table(areas_of(rows), results_of())
        marks = {row.labels[1]: [cell.mark for cell in row.cells] for row in table.rows}
        assert marks == {"AttnLRP": ["", ""], "LRP": ["", ""]} | {best: ["", "best"]}
        assert [column.side for column in table.columns] == ["", "halves"]
        halves = {row.labels[1]: row.cells[1] for row in table.rows}
        assert halves["LRP"].value == pytest.approx(100 * np.trapezoid(worse, [0, 0.5, 1]))
        assert halves["LRP"].n == 10, "every sample is evaluated once"


def test_a_method_and_a_task_of_a_package_are_drawn_as_their_records_say():
    theirs = replace(METHODS["lrp"], name="theirs", label="Their method", order=15, column="", colour="#123456")
    bare = replace(theirs, name="bare", label="Bare", colour=None)
    mine = Task(name="mine", title="mine")
    rows = [row for method in ("attnlrp", "theirs", "bare") for row in points(method, task="mine")]
    known = {"attnlrp": METHODS["attnlrp"], "theirs": theirs, "bare": bare}
    [figure] = pruning_figures(curves_of([*rows, *random_points("mine")]), known, {"mine": mine})
    assert figure.title == "Ours. Head pruning, mine"
    legend = [figure.svg.rindex(text) for text in ("Bare", "Their method", "AttnLRP")]
    assert legend == sorted(legend), "in the order of the records"
    assert "#123456" in figure.svg
    table = areas_table(areas_of(rows), results_of(known))
    assert [row.labels[1] for row in table.rows] == ["Bare", "Their method", "AttnLRP"]


def test_a_figure_keeps_the_numbers_that_it_shows():
    def panel(name, values):
        low, high = [value - 1 for value in values], [value + 2 for value in values]
        named = Line("AttnLRP", [0, 1, 2], values, {"color": "#0072b2"}, low, high)
        return Panel(name, [named, Line("", [0, 2], [5, 5.5], {"color": "#000000", "linestyle": "--"})])

    panels = [panel("a, b", [3, 1, 2]), panel("c", [4, 4, 4])]
    [drawn] = Plot("numbers", "Numbers", "", ("share", "logit")).figures(panels, {})
    first = [point for point in drawn.points if point.panel == "a, b"]
    points = [(point.line, point.x, point.cell.value, point.cell.low, point.cell.high) for point in first]
    assert points == [
        ("AttnLRP", 0, 3, 2, 5), ("AttnLRP", 1, 1, 0, 3), ("AttnLRP", 2, 2, 1, 4),
        ("", 0, 5, None, None), ("", 2, 5.5, None, None),
    ]  # fmt: skip
    assert len(drawn.points) == 2 * len(first)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("panels", [1, 2, 3])
def test_names_of_a_legend_are_whole_and_apart_however_long(panels):
    names = [f"A method of a long name {at}, screened" for at in range(7)] + ["Short"]
    lines = [Line(name, [1, 2], [0.1, 0.4], {"color": "#000000"}) for name in names]
    [figure] = Plot("n", "t", "c", ("x", "y")).figures([Panel(f"p{at}", lines) for at in range(panels)], METHODS)
    root = ElementTree.fromstring(figure.svg)
    width = float(root.get("viewBox").split()[2])
    ends = {}
    for group in root.iter(f"{SVG}text"):
        if group.text in names:
            x, y = float(group.get("x")), float(group.get("y"))
            ends.setdefault(round(y), []).append((x, x + TextPath((0, 0), group.text, size=9).get_extents().width))
    assert sum(map(len, ends.values())) == len(names)
    for line in ends.values():
        starts, ends_of_line = zip(*sorted(line), strict=True)
        assert all(end <= start for end, start in zip(ends_of_line, [*starts[1:], width], strict=True))
        assert starts[0] >= 0
