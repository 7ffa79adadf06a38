"""The numbers of papers that stand beside ours, from the files of this folder: key columns -> number."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from functools import cache, partial
from pathlib import Path

Key = tuple[str, ...]


@cache
def published(file: str) -> Mapping[Key, float]:
    """The last column of a file of this folder by all other columns."""
    with open(Path(__file__).with_name(f"{file}.csv"), encoding="utf-8", newline="") as lines:
        rows = list(csv.reader(lines))[1:]
    return {tuple(key): float(value) for *key, value in rows}


#: Close Look's tables: (table, side, task, model, method, metric); `side` is left, right or a GPU.
close_look = partial(published, "close_look")

#: AttnLRP's tables 6 to 8 as areas of flipping, and IoU of its table 1: (task, model, method, measure).
#: The paper prints areas of insertion: its MoRF area is the LeRF area of flipping. Where table 1 differs from them, as
#: in AtMan on IMDB (-0.20), the number is that of tables 6 to 8, whose areas give it.
attnlrp = partial(published, "attnlrp")

#: NormXLogit's tables 1 and 3, and its notebook's sufficiency: (task, model, method, measure).
normxlogit = partial(published, "normxlogit")

#: NormXLogit's figures 4 and 5 in percent: (task, model, method, layer, metric); of the pre-trained model, too.
normxlogit_layers = partial(published, "normxlogit_layers")

#: NormXLogit's tables 4 and 5: (measure, tokens, method).
normxlogit_costs = partial(published, "normxlogit_costs")
