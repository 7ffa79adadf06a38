"""Single samples to measure on: random tokens whose lengths follow the sva task."""

from __future__ import annotations

import random
from typing import Any

from lrp_core import Batch, ModelView

#: Deciles of the lengths of the first 1000 sva samples: prefixes under GPT-2's tokenizer, whole sentences.
LENGTHS = {"causal": (4, 5, 6, 7, 8, 9, 10, 12, 16, 26), "masked": (14, 18, 21, 24, 27, 31, 34, 39, 44, 54)}


def sva_like(view: ModelView, count: int) -> list[Batch]:
    """Batches of one sample."""
    return [alone(row) for row in rows_like_sva(view, count)]


def rows_like_sva(view: ModelView, count: int) -> list[dict[str, Any]]:
    """Rows for `Batch.collate`."""
    source = random.Random(0)
    lengths = LENGTHS[view.kind.name]
    drawn = [lengths[i % len(lengths)] for i in range(count)]
    source.shuffle(drawn)
    return [random_row(view, length, source) for length in drawn]


def random_row(view: ModelView, length: int, source: random.Random) -> dict[str, Any]:
    ids = [source.randrange(view.vocab) for _ in range(length)]
    position = length // 2 if view.kind.slot else length - 1
    target, foil = source.sample(range(view.vocab), 2)
    return {"input_ids": ids, "position": position, "target_id": target, "foil_id": foil}


def alone(row: dict[str, Any]) -> Batch:
    """The row as a batch of its own."""
    return Batch.collate([row], pad_id=0)
