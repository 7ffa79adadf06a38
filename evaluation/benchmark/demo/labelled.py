"""The tasks of the demo whose samples have a label or a score, and their draws."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

from evaluation.benchmark.demo.judged import LABELS, Judged, opinion, pair
from evaluation.benchmark.demo.planted import BALANCE, VERDICTS, brackets, triggered
from evaluation.benchmark.demo.split import Split, distinct

_DRAWS: dict[str, Callable[[random.Random], Judged]] = {
    "sentiment": opinion,
    "similarity": pair,
    "brackets": brackets,
    "triggers": triggered,
}
#: The labels of each task in the order of a model's outputs; a task with scores has none.
LABELS_OF = {"sentiment": LABELS, "similarity": (), "brackets": BALANCE, "triggers": VERDICTS}
JUDGED = tuple(_DRAWS)


def judged(task: str, seed: int, split: Split) -> Iterator[Judged]:
    """Distinct draws of a task for training or test, in an order fixed by `seed`. Raises KeyError for another task."""
    draw, rng = _DRAWS[task], random.Random(f"{task} {split} {seed}")
    return distinct(lambda: draw(rng), split, _content, _content)


def _content(draw: Judged) -> str:
    """The texts of a draw, by which draws are told apart and split."""
    return draw.content
