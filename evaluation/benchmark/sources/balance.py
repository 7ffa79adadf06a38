"""Balanced draws: rows of the smaller side are repeated until both sides are equally large."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Literal

from evaluation.benchmark.samples import Row, is_reject, reject, with_evidence

Side = Literal["drawn", "counted"]


def draw(rows: Iterable[Row], side: Callable[[Row], Side | None], seed: int) -> dict[str, int]:
    """The number of copies of each row of the side that is drawn, by sample id; it depends on ids and `seed` alone."""
    ids: dict[Side, list[str]] = {"drawn": [], "counted": []}
    for row in rows:
        if not is_reject(row) and (row_side := side(row)) is not None:
            ids[row_side].append(row["sample_id"])
    pool, rng = sorted(ids["drawn"]), random.Random(f"balance {seed}")
    times = Counter(rng.choices(pool, k=len(ids["counted"])) if pool else [])
    return {sample_id: times[sample_id] for sample_id in pool}


def repeated(rows: Iterable[Row], times: dict[str, int]) -> Iterator[Row]:
    """`rows`, repeated as often as `times` says; copies have ids of their own and `meta.copy`."""
    for row in rows:
        sample_id = row["sample_id"]
        count = 1 if is_reject(row) else times.get(sample_id, 1)
        if not count:
            yield reject("source", "not drawn to balance singular and plural", sample_id=sample_id)
            continue
        yield row
        for copy in range(2, count + 1):
            yield with_evidence(row, row["evidence"], copy=copy) | {"sample_id": f"{sample_id}-{copy}"}
