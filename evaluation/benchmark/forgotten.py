"""Placeholders: rows without content in place of forgotten samples, so that the other samples keep their row numbers.

Nothing is computed for a placeholder, and no page or table shows it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa

from evaluation.benchmark.samples import Row

FORGOTTEN = "forgotten"  # the reason why a placeholder has no results
_NAME = re.compile(rf"{FORGOTTEN}-[0-9a-f]{{16}}")
#: Columns of views that tell how long a sample was and how it was cut, but nothing of its content.
_OF_SHAPE = frozenset(
    {"position", "special_mask", "scope_mask", "evidence_mask", "length", "token_type_ids", "cut"}
    | {"units", "unit_spans", "unit_evidence", "answer_spans", "answer_parts"}
)
_TOKENS = frozenset({"input_ids", "decoder_input_ids", "answer_ids"})
_TOKEN = frozenset({"target_id", "foil_id"})


def name_of(hashed: str) -> str:
    """The id of the placeholder of a sample; `hashed` is the hash of the sample's id, in hex."""
    return f"{FORGOTTEN}-{hashed[:16]}"


def is_placeholder(sample_id: str | None) -> bool:
    """True for the id of a placeholder."""
    return sample_id is not None and _NAME.fullmatch(sample_id) is not None


def sample_placeholder(name: str) -> Row:
    """The generic row of a placeholder."""
    return {"sample_id": name, "source": "", "text": "", "evidence": [], "meta": "{}"}


def view_placeholder(name: str) -> Row:
    """The view of a placeholder whose sample no tokenizer has read."""
    return {"sample_id": name, "input_ids": [0], "position": 0, "special_mask": [False], "length": 1}


def blanked(view: Mapping[str, Any], name: str) -> Row:
    """The view of a placeholder, of the shape of the sample's `view`: every token is 0."""
    row = {column: value for column, value in view.items() if column in _OF_SHAPE}
    row |= {column: value and [0] * len(value) for column, value in view.items() if column in _TOKENS}
    row |= {column: None if value is None else 0 for column, value in view.items() if column in _TOKEN}
    return {**row, "sample_id": name}


def replaced(
    table: pa.Table, placeholder_of: Callable[[str], str | None], blank: Callable[[Row, str], Row]
) -> pa.Table:
    """The table with placeholders in place of forgotten samples.

    `placeholder_of(sample_id)` is the name of a sample's placeholder, None for a sample that stays; `blank(row, name)`
    is the row of the placeholder.
    """
    names = [placeholder_of(sample) for sample in table["sample_id"].to_pylist()]
    pieces, start = [], 0
    for at, name in enumerate(names):
        if name is None:
            continue
        (row,) = table.slice(at, 1).to_pylist()
        pieces += [table.slice(start, at - start), pa.Table.from_pylist([blank(row, name)], schema=table.schema)]
        start = at + 1
    return pa.concat_tables([*pieces, table.slice(start)]) if pieces else table


def without_placeholders(table: pa.Table) -> pa.Table:
    """The rows of `table` that are no placeholders; it has a column `sample_id`."""
    kept = [not is_placeholder(sample) for sample in table["sample_id"].to_pylist()]
    return table if all(kept) else table.filter(pa.array(kept, pa.bool_()))
