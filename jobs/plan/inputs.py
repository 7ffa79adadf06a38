"""The tokenised samples as attribution reads them: on the driver to plan, in Ray tasks to feed the workers."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from evaluation.schema import VIEW, SchemaMismatch
from jobs.store import Ledger, Store
from jobs.store.artifacts import views_of

INPUT_COLUMNS = ["sample_id", "input_ids", "position", "target_id", "foil_id", "token_type_ids"]  # of relevance
MASK_COLUMNS = ["special_mask", "scope_mask"]  # which tokens may be perturbed
GOLD_COLUMNS = ["label", "score"]  # what predictions are held against
UNIT_COLUMNS = [*INPUT_COLUMNS, *MASK_COLUMNS, *GOLD_COLUMNS]  # that workers are given


@dataclass(frozen=True)
class Inputs:
    """The samples of one task as one tokenizer sees them, in the order of the store."""

    tokenizer: str
    task: str
    table: pa.Table

    @cached_property
    def digest(self) -> str:
        """A hash of everything that relevance depends on; evidence is not part of it."""
        return self._digest(INPUT_COLUMNS)

    @cached_property
    def masks_digest(self) -> str:
        """A hash of what tells which tokens may be perturbed."""
        return self._digest(MASK_COLUMNS)

    @cached_property
    def gold_digest(self) -> str:
        """A hash of what predictions are held against."""
        return self._digest(GOLD_COLUMNS)

    def _digest(self, columns: list[str]) -> str:
        sink = pa.BufferOutputStream()
        table = self.table.select(columns).replace_schema_metadata(None).combine_chunks()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        return hashlib.sha256(sink.getvalue()).hexdigest()

    @cached_property
    def lengths(self) -> np.ndarray:
        """Tokens of every sample [N]."""
        return self.table["length"].to_numpy()

    @property
    def labels(self) -> list[str]:
        """The names of gold labels that samples have."""
        return sorted(label for label in self.table["label"].unique().to_pylist() if label is not None)

    @property
    def folder(self) -> str:
        """The folder of the views in the store."""
        return views_of(self.tokenizer, self.task).folder

    def with_foil(self, count: int) -> list[dict[str, Any]]:
        """The first `count` samples that have a foil, in the order of the store."""
        table = self.table.select(INPUT_COLUMNS).filter(self.table["foil_id"].is_valid())
        return table.slice(0, count).to_pylist()

    def subset(self, size: int | None, seed: int | str) -> np.ndarray:
        """Indices of a random `size` of the samples, drawn by content: order and neighbours play no part."""
        if size is None or size >= len(self.table):
            return np.arange(len(self.table))
        if (size, seed) not in self._drawn:
            ids = self.table["sample_id"].to_pylist()
            drawn = sorted(range(len(ids)), key=lambda i: hashlib.sha256(f"{seed}:{ids[i]}".encode()).digest())
            self._drawn[size, seed] = np.sort(drawn[:size])
        return self._drawn[size, seed].copy()

    @cached_property
    def _drawn(self) -> dict[tuple[int, int | str], np.ndarray]:
        """Subsets that were asked for: every method asks for the same."""
        return {}


def read_inputs(store: Store, tokenizer: str, task: str) -> Inputs | None:
    """None when the task is not, or not wholly, prepared for this tokenizer, or was by another version of closelook."""
    views = views_of(tokenizer, task)
    if Ledger(store).latest(views) is None:
        return None
    try:
        table = store.read(views.folder, VIEW, [*UNIT_COLUMNS, "length"])
    except SchemaMismatch:
        return None  # prepare makes them again
    return Inputs(tokenizer, task, table)


def read_unit(unit: pa.Table, store: Store) -> pa.Table:
    """Ray Data task: the unit's one row with its samples' columns appended as lists.

    `unit` has the columns `task` (JSON), `views` (folder) and `rows` (indices into the views).
    """
    views, rows = unit["views"][0].as_py(), unit["rows"][0].values
    samples = store.read(views, VIEW, UNIT_COLUMNS).take(rows).combine_chunks()
    lists = {name: pa.ListArray.from_arrays([0, len(rows)], samples[name].chunk(0)) for name in UNIT_COLUMNS}
    return pa.table({"task": unit["task"], **lists})


def samples_of(unit: dict[str, list[Any]], names: Sequence[str] = INPUT_COLUMNS) -> list[dict[str, Any]]:
    """The samples in a row that `read_unit` gave, a mapping of the columns `names` each."""
    columns = (unit[name] for name in names)
    return [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]
