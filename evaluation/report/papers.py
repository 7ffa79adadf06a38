"""The numbers that papers print, from the CSV files of this folder."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from functools import cache, partial
from pathlib import Path

Key = tuple[str, ...]


@cache
def published(file: str) -> Mapping[Key, float]:
    """The numbers in the last column of a CSV file of this folder, by the values of all other columns."""
    with open(Path(__file__).with_name(f"{file}.csv"), encoding="utf-8", newline="") as lines:
        rows = list(csv.reader(lines))[1:]
    return {tuple(key): float(value) for *key, value in rows}


#: Close Look's tables: (table, side, task, model, method, metric); `side` is left, right or a GPU.
close_look = partial(published, "close_look")

#: AttnLRP's tables 6 to 8 as areas under deletion curves, and IoU of its table 1: (task, model, method, measure).
#: The paper prints areas under insertion curves: its MoRF area is the LeRF area of deletion. If table 1 differs from
#: tables 6 to 8, as for AtMan on IMDB (-0.20), ΔA is the difference of the areas in tables 6 to 8.
attnlrp = partial(published, "attnlrp")

#: NormXLogit's tables 1 and 3, and its notebook's sufficiency: (task, model, method, measure).
normxlogit = partial(published, "normxlogit")

#: NormXLogit's figures 4 and 5 in percent, of the fine-tuned and the pre-trained model: (task, model, method, layer,
#: metric).
normxlogit_layers = partial(published, "normxlogit_layers")

#: NormXLogit's tables 4 and 5: (measure, tokens, method).
normxlogit_costs = partial(published, "normxlogit_costs")
