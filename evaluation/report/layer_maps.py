"""Which layers know the evidence: heat maps of layers and methods, as NormXLogit's figures 4, 5 and 25 to 28.

The picture is SVG of rectangles and text; cells have a fixed size, so that nothing has to be measured.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from xml.sax.saxutils import escape

from evaluation.report.heatmap import colour
from evaluation.report.page import Figure
from evaluation.report.results import Methods, label, rank
from evaluation.scoring.metrics import BY_LAYER, METRICS, shown

CELL, LINE, LEFT, ABOVE, GAP = 46, 20, 26, 92, 24  # pixels: of a cell, beside and above a map, between maps
NARROW = 318  # pixels of the picture for narrow screens
_DIGITS, ROOM = 1, 28  # of a number, and the pixels that it takes
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


def layer_figures(scores: Sequence[LayerScore], methods: Methods) -> list[Figure]:
    """A picture for each task and model, with a map for each metric: layers from the last to the first, and methods."""
    figures = []
    for task, model in dict.fromkeys((score.task, score.model) for score in scores):
        own = [score for score in scores if (score.task, score.model) == (task, model)]
        maps = [[one for one in own if one.metric == name] for name in shown(BY_LAYER)]
        samples = max(one.n for one in own)
        caption = (
            f"{task}, {model}: evidence in what each layer says of the tokens, in percent, over {samples} samples that "
            "the model predicts rightly. All tokens count but the slot of masked models, as in NormXLogit's figures 4 "
            "and 5. The darker, the higher among the cells of a map. The dot product has both of its normalisations: "
            "the paper takes the softmax for logits and norms."
        )
        pictures = [_svg(maps, across, cell, methods) for across, cell in ((len(maps), CELL), (1, None))]
        (wide, width), (narrow, narrow_width) = pictures
        title = f"Evidence by layer: {task}, {model}"
        figures.append(Figure(f"layers_{task}_{model}", title, caption, wide, width, narrow, narrow_width))
    return figures


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
        says = "–" if score.value is None else f"{score.value:.{_DIGITS if cell >= ROOM else 0}f}"
        yield f'<rect x="{x + 1}" y="{y + 1}" width="{cell - 2}" height="{LINE - 2}" fill="{colour(0.85 * share)}"/>'
        yield f'<text class="n" x="{x + cell // 2}" y="{y + 14}">{says}</text>'
