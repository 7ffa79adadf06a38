"""The tokenised samples as the driver reads them: once, to plan and to give workers those of each unit."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from evaluation.schema import VIEW, SchemaMismatch
from jobs.store import Ledger, Store
from jobs.store.artifacts import views_of

#: Of relevance.
INPUT_COLUMNS = ["sample_id", "input_ids", "position", "target_id", "foil_id", "token_type_ids", "decoder_input_ids"]
MASK_COLUMNS = ["special_mask", "scope_mask"]  # which tokens may be perturbed
GOLD_COLUMNS = ["label", "score"]  # what predictions are held against
UNIT_COLUMNS = [*INPUT_COLUMNS, *MASK_COLUMNS, *GOLD_COLUMNS]  # that the driver reads, too
_DIGEST_ROWS = 1 << 18  # copied at a time
PIXELS = "pixels"  # which workers alone are given: ids and the key of what prepares them tell them apart


@dataclass(frozen=True)
class Inputs:
    """The samples of one task as one tokenizer sees them, in the order of the store."""

    tokenizer: str
    task: str
    table: pa.Table
    files: tuple[tuple[str, int], ...] = ()  # of images: (path, rows) of each file of the views, which hold the pixels

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
        return digest_of(self.table.select(columns))

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

    def unit(self, task: str, rows: Sequence[int] | np.ndarray) -> pa.Table:
        """What a worker gets of a unit: one row with the JSON `task` and the columns of the samples `rows` as lists.

        A unit that names its rows instead would have every worker read the views of all, which costs their square.
        """
        samples = self.table.select(UNIT_COLUMNS).take(np.asarray(rows, dtype=np.int64)).combine_chunks()
        lists = {name: pa.ListArray.from_arrays([0, len(rows)], _only(samples[name])) for name in UNIT_COLUMNS}
        return pa.table({"task": [task], **lists, **self._places(rows)})

    def _places(self, rows: Sequence[int] | np.ndarray) -> dict[str, pa.Array]:
        """Of images: the file of each of the samples, and its row there."""
        if not self.files:
            return {}
        starts = np.cumsum([0, *(count for _, count in self.files)])
        at = np.searchsorted(starts, rows, side="right") - 1
        paths, inside = [self.files[i][0] for i in at], np.asarray(rows) - starts[at]
        return {"files": pa.array([paths]), "rows": pa.array([inside.tolist()], pa.list_(pa.int64()))}

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
    def cuts(self) -> dict[Any, Any]:
        """What `jobs.plan.units` made of the samples, by what was asked."""
        return {}

    @cached_property
    def _drawn(self) -> dict[tuple[int, int | str], np.ndarray]:
        """Subsets that were asked for: every method asks for the same."""
        return {}


def without_samples(task: str) -> pa.Table:
    """What a worker gets of a unit that is about no samples, in the same columns."""
    empty = VIEW.empty_table()
    lists = {name: pa.ListArray.from_arrays([0, 0], _only(empty[name])) for name in UNIT_COLUMNS}
    return pa.table({"task": [task], **lists})


def digest_of(table: pa.Table) -> str:
    """A hash of columns and values, in hex, whichever files they came from; a part of the rows is copied at a time."""
    sink = _Hashed()
    with pa.ipc.new_stream(pa.PythonFile(sink, "w"), table.schema.remove_metadata()) as writer:
        for start in range(0, max(1, table.num_rows), _DIGEST_ROWS):
            rows = np.arange(start, min(start + _DIGEST_ROWS, table.num_rows))
            part = table if len(rows) == table.num_rows else table.take(rows)  # a slice would show where it was cut
            writer.write_table(part.replace_schema_metadata(None).combine_chunks())
    return sink.hash.hexdigest()


class _Hashed(io.RawIOBase):
    """A file of which the hash is all that is kept."""

    def __init__(self) -> None:
        self.hash = hashlib.sha256()

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self.hash.update(data)
        return len(data)


def _only(column: pa.ChunkedArray) -> pa.Array:
    """The values of a column whose chunks are combined; one without rows may have no chunk."""
    return column.chunk(0) if column.num_chunks else pa.array([], column.type)


def read_inputs(store: Store, tokenizer: str, task: str) -> Inputs | None:
    """None when the task is not, or not wholly, prepared for this tokenizer, or was by another version of closelook."""
    views = views_of(tokenizer, task)
    if Ledger(store).latest(views) is None:
        return None
    stamps = store.stamps(views.folder)
    try:
        return store.kept(
            ("inputs", tokenizer, task), stamps, lambda: _read_inputs(store, tokenizer, task, list(stamps))
        )
    except SchemaMismatch:
        return None  # prepare makes them again


def _read_inputs(store: Store, tokenizer: str, task: str, paths: list[str]) -> Inputs:
    table = store.read(paths, VIEW, [*UNIT_COLUMNS, "length"])
    if not store.has_values(paths[0], PIXELS):
        return Inputs(tokenizer, task, table)
    counts = [store.read(path, VIEW, ["length"]).num_rows for path in paths]
    return Inputs(tokenizer, task, table, tuple(zip(paths, counts, strict=True)))


def samples_of(
    unit: dict[str, Any], names: Sequence[str] = INPUT_COLUMNS, store: Store | None = None
) -> list[dict[str, Any]]:
    """The samples in a row that `Inputs.unit` gave, a mapping of the columns `names` and of PIXELS each.

    Pixels, where there are any, are read from the files that hold those samples.
    """
    pixels = [None] * len(unit["sample_id"])
    if unit.get("files") and store is not None:
        for path in dict.fromkeys(unit["files"]):
            own = [at for at, file in enumerate(unit["files"]) if file == path]
            found = store.read(path, VIEW, [PIXELS])[PIXELS].take([unit["rows"][at] for at in own]).to_pylist()
            for at, values in zip(own, found, strict=True):
                pixels[at] = values
    columns = (*(unit[name] for name in names), pixels)
    return [dict(zip((*names, PIXELS), values, strict=True)) for values in zip(*columns, strict=True)]
