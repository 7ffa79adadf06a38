"""The tokenised samples of a task, as the driver reads them.

They are read once, to plan and to give workers the samples of each unit.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from closelook.evaluation.schema import ANSWER_VIEW, VIEW, SchemaMismatch
from closelook.evaluation.scoring.faithfulness.resampling import Proposal
from closelook.jobs.plan.gather import digest_of, gather
from closelook.jobs.store import Ledger, Store, is_complete, views_of

T = TypeVar("T")

#: Columns on which relevance depends.
INPUT_COLUMNS = ["sample_id", "input_ids", "position", "target_id", "foil_id", "token_type_ids", "decoder_input_ids"]
MASK_COLUMNS = ["special_mask", "scope_mask"]  # which tokens may be perturbed
GOLD_COLUMNS = ["label", "score"]  # with which predictions are compared
UNIT_COLUMNS = [*INPUT_COLUMNS, *MASK_COLUMNS, *GOLD_COLUMNS]  # the driver reads these, too
#: Columns of samples whose answers are explained as a whole; null in other samples.
ANSWER_COLUMNS = ["answer_ids", "units", "unit_spans", "unit_evidence", "prompt", "turns", "answer_parts"]
_HASHED_ROWS = 1 << 16  # ids that are turned into Python strings at a time
_DIGESTS = {"inputs": INPUT_COLUMNS, "masks": MASK_COLUMNS, "gold": GOLD_COLUMNS}
_ANSWER_DIGESTS = {**_DIGESTS, "inputs": [*INPUT_COLUMNS, "answer_ids"], "answers": [*INPUT_COLUMNS, *ANSWER_COLUMNS]}
_OF_UNITS = [*UNIT_COLUMNS, *ANSWER_COLUMNS]
PIXELS = "pixels"  # a column that only workers read; hashes do without: ids tell images apart


@dataclass(frozen=True)
class Selected:
    """Some samples of a task on their way to a worker."""

    table: pa.Table
    files: Sequence[str] = ()  # for images: the file of the views with each sample, which has its pixels
    places: Sequence[int] = ()  # the row of each sample in its file

    def __len__(self) -> int:
        rows: int = self.table.num_rows
        return rows

    def rows(self, store: Store) -> list[dict[str, Any]]:
        """The samples as rows with PIXELS, which are read from `store` for images and None for texts."""
        pixels = [None] * self.table.num_rows
        for path in dict.fromkeys(self.files):
            in_file = [at for at, file in enumerate(self.files) if file == path]
            read = store.read(path, VIEW, [PIXELS])[PIXELS].take([self.places[at] for at in in_file]).to_pylist()
            for at, values in zip(in_file, read, strict=True):
                pixels[at] = values
        rows = zip(self.table.to_pylist(), pixels, strict=True)
        return with_token_types([{**row, PIXELS: values} for row, values in rows])


@dataclass(frozen=True)
class Inputs:
    """The tokenised samples of a task for one tokenizer, in the order of the store."""

    tokenizer: str
    task: str
    table: pa.Table  # a row for each sample
    paths: tuple[str, ...] = ()  # of the files of the views
    counts: tuple[int, ...] = ()  # for images, whose pixels only workers read: the rows of each file
    _kept: dict[Any, Any] = field(default_factory=dict, compare=False)  # hashes, draws and cuts of the samples, by name

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the samples for other processes, without what only the driver asks."""
        return Inputs, (self.tokenizer, self.task, self.table, self.paths, self.counts)

    @property
    def digest(self) -> str:
        """A hash of everything that relevance depends on; evidence is not part of it."""
        return self.digest_of("inputs")

    @property
    def of_answers(self) -> bool:
        """True if the task explains whole answers."""
        return "answer_ids" in self.table.column_names

    def kept(self, name: Any, make: Callable[[], T]) -> T:
        """The result of `make()`, which depends on the samples and `name` alone, made once."""
        if name not in self._kept:
            self._kept[name] = make()
        result: T = self._kept[name]
        return result

    def digest_of(self, name: str) -> str:
        """The hash `name`: of "inputs", "masks", "gold" labels and scores, or "answers" with their units."""
        columns = (_ANSWER_DIGESTS if self.of_answers else _DIGESTS)[name]
        return self.kept(name, lambda: digest_of(self.table.select(columns)))

    @property
    def rows(self) -> int:
        """The number of samples."""
        rows: int = self.table.num_rows
        return rows

    @property
    def tokens(self) -> int:
        """The sum of the lengths of all samples."""
        return int(self.lengths.sum())

    @property
    def without_foil(self) -> int:
        """The number of samples that have no foil."""
        count: int = self.table["foil_id"].null_count
        return count

    @cached_property
    def labels(self) -> list[str]:
        """The names of the samples' gold labels, sorted."""
        return sorted(label for label in self.table["label"].unique().to_pylist() if label is not None)

    @cached_property
    def lengths(self) -> np.ndarray:
        """The number of tokens of every sample [N]."""
        return self.table["length"].combine_chunks().to_numpy()

    def ids(self, rows: Sequence[int] | np.ndarray) -> list[str]:
        """The ids of the samples `rows`, in this order."""
        names: list[str] = gather(self.table.select(["sample_id"]), np.asarray(rows, np.int64))["sample_id"].to_pylist()
        return names

    @cached_property
    def folder(self) -> str:
        """The folder of the views in the store."""
        return views_of(self.tokenizer, self.task).folder

    def select(self, rows: Sequence[int] | np.ndarray) -> Selected:
        """The samples `rows` as a worker gets them: it would otherwise read the views of all samples for each unit."""
        known = [name for name in _OF_UNITS if name in self.table.column_names]
        table = gather(self.table.select(known), np.asarray(rows, dtype=np.int64))
        if not self.counts:
            return Selected(table)
        starts = np.cumsum([0, *self.counts])
        at = np.searchsorted(starts, rows, side="right") - 1
        return Selected(table, [self.paths[i] for i in at], (np.asarray(rows) - starts[at]).tolist())

    def with_foil(self, count: int) -> list[dict[str, Any]]:
        """The first `count` samples that have a foil, in the order of the store."""
        known = np.flatnonzero(self.table["foil_id"].is_valid().to_numpy())
        return gather(self.table.select(INPUT_COLUMNS), known[:count]).to_pylist()

    def subset(self, size: int | None, seed: int | str, among: np.ndarray | None = None) -> np.ndarray:
        """The ascending indices of `size` samples, drawn from all or from the indices `among`; None: all of them.

        A sample is drawn by a hash of its id and `seed`, so that order and other samples play no part.
        """
        if among is not None:
            return self._draw(size, seed, among) if size is not None and size < len(among) else among
        if size is None or size >= self.rows:
            return np.arange(self.rows, dtype=np.int32)
        return self.kept(("drawn", size, seed), lambda: self._draw(size, seed, np.arange(self.rows)))

    def _draw(self, size: int, seed: int | str, indices: np.ndarray) -> np.ndarray:
        """Of these `indices`, those of the `size` samples with the smallest hashes, ascending."""

        def hashed(sample: str) -> bytes:
            return hashlib.sha256(f"{seed}:{sample}".encode()).digest()

        pieces = (indices[start : start + _HASHED_ROWS] for start in range(0, len(indices), _HASHED_ROWS))
        beginnings = (hashed(sample)[:8] for piece in pieces for sample in self.ids(piece))
        keys = np.fromiter(map(int.from_bytes, beginnings), np.uint64, len(indices))
        among = indices[keys <= np.partition(keys, size)[size]]  # a few more than `size`, since 8 bytes may tie
        drawn = sorted(zip(map(hashed, self.ids(among)), among.tolist(), strict=True))
        return np.sort(np.array([row for _, row in drawn[:size]], np.int64))

    def proposal(self, kept_ids: tuple[int, ...]) -> Proposal:
        """The bigrams of all texts, from which tokens are drawn, but never the special tokens `kept_ids`."""
        return self.kept(("proposal", kept_ids), lambda: Proposal.of([self.table], kept_ids))


def read_inputs(ledger: Ledger, tokenizer: str, task: str) -> Inputs | None:
    """The inputs of a task; None if it is not wholly prepared for this tokenizer by this version of closelook.

    Raises Damaged if the files differ from those that the manifest lists.
    """
    views = views_of(tokenizer, task)
    record = ledger.latest(views)
    if record is None or not is_complete(record):
        return None
    paths = tuple(ledger.files_at(views))
    try:
        return ledger.store.kept(
            ("inputs", tokenizer, task), record["files"], lambda: _read(ledger.store, tokenizer, task, paths)
        )
    except SchemaMismatch:
        return None  # prepare makes them again


def _read(store: Store, tokenizer: str, task: str, paths: tuple[str, ...]) -> Inputs:
    """The inputs in the files `paths`."""
    of_answers = store.has_column(paths[0], "answer_ids")
    schema = ANSWER_VIEW if of_answers else VIEW
    columns = [*(_OF_UNITS if of_answers else UNIT_COLUMNS), "length"]
    tables = list(store.read_each(paths, schema, columns))
    counts = tuple(table.num_rows for table in tables) if store.has_values(paths[0], PIXELS) else ()
    return Inputs(tokenizer, task, pa.concat_tables(tables), paths, counts)


def with_token_types(samples: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The samples with token types for all or for none.

    Where pairs of texts have some and single texts have none, single texts get 0, which models use in their place.
    """
    missing = {sample.get("token_type_ids") is None for sample in samples}
    if len(missing) < 2:
        return samples
    return [
        {**sample, "token_type_ids": [0] * len(sample["input_ids"])} if sample.get("token_type_ids") is None else sample
        for sample in samples
    ]
