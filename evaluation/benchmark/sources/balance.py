"""Balanced draws: rows of one side are drawn with replacement, as many as the other side has."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Literal

from evaluation.benchmark.samples import Row, is_reject, reject, with_evidence

Side = Literal["drawn", "counted"]  # rows to draw from, and rows that say how many are drawn


def draw(rows: Iterable[Row], side: Callable[[Row], Side | None], seed: int) -> dict[str, int]:
    """The number of draws of each row of the side "drawn", by sample id; it depends on the ids and `seed` only.

    Rows are drawn with replacement, as many as there are rows of the side "counted".
    """
    ids: dict[Side, list[str]] = {"drawn": [], "counted": []}
    for row in rows:
        if not is_reject(row) and (row_side := side(row)) is not None:
            ids[row_side].append(row["sample_id"])
    pool, rng = sorted(ids["drawn"]), random.Random(f"balance {seed}")
    times = Counter(rng.choices(pool, k=len(ids["counted"])) if pool else [])
    return {sample_id: times[sample_id] for sample_id in pool}


def repeated(rows: Iterable[Row], times: dict[str, int]) -> Iterator[Row]:
    """`rows`, each as often as `times` says by its sample id; rows that `times` does not name once.

    A row that was never drawn is a reject. Copies get an id of their own, and their number in `meta.copy`.
    """
    for row in rows:
        sample_id = row["sample_id"]
        count = 1 if is_reject(row) else times.get(sample_id, 1)
        if not count:
            yield reject("source", "not drawn to balance singular and plural", sample_id=sample_id)
            continue
        yield row
        for copy in range(2, count + 1):
            yield with_evidence(row, row["evidence"], copy=copy) | {"sample_id": f"{sample_id}-{copy}"}
