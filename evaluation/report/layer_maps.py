"""Which layers know the evidence: heat maps of layers and methods, as NormXLogit's figures 4 and 5, and the numbers.

The picture is SVG of rectangles and text; cells have a fixed size, so that nothing has to be measured.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from xml.sax.saxutils import escape

from evaluation.report.heatmap import colour
from evaluation.report.page import Figure
from evaluation.report.results import Methods, label, rank
from evaluation.report.table import MISSING, UNDEFINED, Cell, Column, Row, Table, mark
from evaluation.scoring.metrics import BY_LAYER, METRICS, shown

CELL, LINE, LEFT, ABOVE, GAP = 46, 20, 26, 92, 24  # pixels: of a cell, beside and above a map, between maps
NARROW = 318  # pixels of the picture for narrow screens
_DIGITS = 1
_STYLE = (
    "text{font:11px 'DejaVu Sans',Helvetica,Arial,sans-serif;fill:#1d2327}.t{font-weight:600}.n{text-anchor:middle}"
)


@dataclass(frozen=True)
class LayerScore:
    """One metric of what one layer of a model says, under one method; None without correctly predicted samples."""

    model: str
    task: str
    method: str
    layer: int  # from 1
    metric: str
    value: float | None
    n: int


@cache
def published() -> Mapping[tuple[str, str, str, int, str], float]:
    """NormXLogit's figures 4 and 5: (task, model, method, layer, metric) -> percent; of the pre-trained model, too."""
    with open(Path(__file__).with_name("normxlogit_layers.csv"), encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file))[1:]
    return {(task, model, method, int(at), metric): float(value) for task, model, method, at, metric, value in rows}


def layer_figures(scores: Sequence[LayerScore], methods: Methods) -> list[Figure]:
    """A picture for each task and model, with a map for each metric: layers from the last to the first, and methods."""
    figures = []
    for task, model in dict.fromkeys((score.task, score.model) for score in scores):
        own = [score for score in scores if (score.task, score.model) == (task, model)]
        maps = [[one for one in own if one.metric == name] for name in shown(BY_LAYER)]
        found = max(one.n for one in own)
        caption = (
            f"{task}, {model}: evidence in what each layer says of the tokens, in percent, over {found} samples that "
            "the model predicts rightly. All tokens count but the slot of masked models, as in NormXLogit's figures 4 "
            "and 5. The darker, the higher among the cells of a map. The dot product has both of its normalisations: "
            "the paper takes the softmax for logits and norms."
        )
        pictures = [_svg(maps, across, cell, methods) for across, cell in ((len(maps), CELL), (1, None))]
        (wide, width), (narrow, narrow_width) = pictures
        title = f"Evidence by layer: {task}, {model}"
        figures.append(Figure(f"layers_{task}_{model}", title, caption, wide, width, narrow, narrow_width))
    return figures


def layer_table(scores: Sequence[LayerScore], methods: Methods, missing: frozenset[tuple[str, str, str]]) -> Table:
    """A layer a row, a metric of a method a column; `missing` are (task, model, method) without scores yet."""
    values = {(s.task, s.model, s.method, s.layer, s.metric): s for s in scores}
    named = sorted({s.method for s in scores} | {method for _, _, method in missing}, key=partial(rank, methods))
    columns = [
        Column(label(methods, name), METRICS[m].label, digits=_DIGITS) for name in named for m in shown(BY_LAYER)
    ]
    rows = []
    for task, model, layer in sorted({(s.task, s.model, s.layer) for s in scores}, key=lambda key: (*key[:2], -key[2])):
        by_metric = []
        for metric in shown(BY_LAYER):
            cells = []
            for name in named:
                found = values.get((task, model, name, layer, metric))
                state = MISSING if (task, model, name) in missing else UNDEFINED
                paper = published().get((task, model, name, layer, metric))
                cells.append(Cell(state=state) if found is None else Cell(found.value, n=found.n, reference=paper))
            by_metric.append(mark(cells, _DIGITS))
        together = tuple(cell for of_method in zip(*by_metric, strict=True) for cell in of_method)
        rows.append(Row(task, (model, str(layer)), together))
    return Table(
        "layers",
        "Evidence by layer",
        "What each layer says of the tokens, held against the evidence, in percent: the map of that layer alone, or "
        "the head on its states. Layers are counted from the lowest. NormXLogit's numbers stand beside those of models "
        "named as its own, roberta-base and, fine-tuned, roberta-base-blimp5; those of LogAt and NormXLogit are read "
        "off its figures 4 and 5.",
        ("model", "layer"),
        tuple(columns),
        tuple(rows),
        paper="NormXLogit",
    )


def _svg(maps: Sequence[Sequence[LayerScore]], across: int, cell: int | None, methods: Methods) -> tuple[str, int]:
    """(picture, width in pixels); `cell` is the width of one, None to fit a narrow screen."""
    names = sorted({score.method for scores in maps for score in scores}, key=partial(rank, methods))
    layers = max(score.layer for scores in maps for score in scores)
    cell = cell or min(CELL, (NARROW - LEFT - 3 * GAP) // len(names))
    width, height = LEFT + cell * len(names) + GAP, ABOVE + LINE * layers + GAP
    parts: list[str] = []
    for at, scores in enumerate(maps):
        parts += _map(scores, names, layers, cell, width * (at % across), height * (at // across), methods)
    size = (width * across + 2 * GAP, height * -(-len(maps) // across))  # the last slanted label stands out
    picture = f'<svg xmlns="http://www.w3.org/2000/svg" width="{size[0]}" height="{size[1]}"><style>{_STYLE}</style>'
    return f"{picture}{''.join(parts)}</svg>", size[0]


def _map(
    scores: Sequence[LayerScore], names: Sequence[str], layers: int, cell: int, left: int, top: int, methods: Methods
) -> Iterator[str]:
    if scores:
        yield f'<text class="t" x="{left}" y="{top + 12}">{escape(METRICS[scores[0].metric].label)}</text>'
    for at, name in enumerate(names):
        x, y = left + LEFT + cell * at + cell // 2, top + ABOVE - 6
        yield f'<text transform="translate({x} {y}) rotate(-38)">{escape(label(methods, name))}</text>'
    for layer in range(1, layers + 1):
        y = top + ABOVE + LINE * (layers - layer)
        yield f'<text x="{left}" y="{y + 14}">{layer}</text>'
    told = [score.value for score in scores if score.value is not None]
    low, high = (min(told), max(told)) if told else (0.0, 0.0)
    for score in scores:
        x, y = left + LEFT + cell * names.index(score.method), top + ABOVE + LINE * (layers - score.layer)
        share = 0.0 if score.value is None or high == low else (score.value - low) / (high - low)
        says = "–" if score.value is None else f"{score.value:.{_DIGITS}f}"
        yield f'<rect x="{x + 1}" y="{y + 1}" width="{cell - 2}" height="{LINE - 2}" fill="{colour(0.85 * share)}"/>'
        yield f'<text class="n" x="{x + cell // 2}" y="{y + 14}">{says}</text>'
