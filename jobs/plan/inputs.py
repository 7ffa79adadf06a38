"""The tokenised samples of a task, as the driver reads them.

They are read once, to plan and to give workers the samples of each unit.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from closelook.evaluation.schema import ANSWER_VIEW, VIEW, SchemaMismatch, titled
from closelook.evaluation.scoring.faithfulness.resampling import Proposal
from closelook.jobs.plan.gather import digest_of, gather
from closelook.jobs.plan.known import Known
from closelook.jobs.store import Ledger, Store, StoreError, is_complete, views_of

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
MOST_KEPT = 10_000  # samples: larger subsets are not kept as facts
PIXELS = "pixels"  # a column that only workers read; hashes do without: ids tell images apart


@dataclass(frozen=True)
class Samples:
    """The samples of a task as they were read."""

    table: pa.Table
    files: tuple[tuple[str, int], ...] = ()  # for images: (path, rows) of each file of the views, which has the pixels


@dataclass(frozen=True)
class Selected:
    """Some samples of a task on their way to a worker."""

    table: pa.Table
    files: Sequence[str] = ()  # for images: the file of the views with each sample, which has its pixels
    places: Sequence[int] = ()  # the row of each sample in its file

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
    """The tokenised samples of a task for one tokenizer, in the order of the store.

    `facts` hold what earlier runs have found out about them. The files are read only for what the facts lack.
    """

    tokenizer: str
    task: str
    read: Callable[[], Samples]
    paths: tuple[str, ...] = ()  # of the files of the views
    facts: dict[str, Any] = field(default_factory=dict)  # JSON values by name; new ones are added
    is_entered: bool = False  # a manifest lists the files with their bytes: facts hold as long as it stands

    @classmethod
    def of(cls, tokenizer: str, task: str, table: pa.Table, files: tuple[tuple[str, int], ...] = ()) -> Inputs:
        """The inputs with the samples of `table`, which came from `files` (see `Samples`)."""
        samples = Samples(table, files)
        return cls(tokenizer, task, lambda: samples)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the samples for other processes, without what only the driver asks."""
        return Inputs.of, (self.tokenizer, self.task, self.table, self.samples.files)

    @cached_property
    def samples(self) -> Samples:
        """The samples, read once.

        Raises StoreError if they differ from the samples whose hashes are known.
        """
        samples = self.read()
        for name in _digested(samples.table):
            known = self.facts.get(name)
            if known is not None and known != _digest_in(samples.table, name):
                raise StoreError(
                    f"{self.folder} holds other samples than `closelook prepare` wrote ({name} differ): remove the "
                    "folder and run `closelook prepare` with the same --root"
                )
        return samples

    @property
    def table(self) -> pa.Table:
        """The samples as a table, a row each."""
        return self.samples.table

    def fact(self, name: str, find: Callable[[], T]) -> T:
        """The fact `name`, which `find()` gives if it is not known yet."""
        if name not in self.facts:
            self.facts[name] = find()
        known: T = self.facts[name]
        return known

    @property
    def digest(self) -> str:
        """A hash of everything that relevance depends on; evidence is not part of it."""
        return self.digest_of("inputs")

    @property
    def of_answers(self) -> bool:
        """True if the task explains whole answers."""
        return self.fact("of_answers", lambda: "answer_ids" in self.table.column_names)

    def digest_of(self, name: str) -> str:
        """The hash `name`: of "inputs", "masks", "gold" labels and scores, or "answers" with their units."""
        return self.fact(name, lambda: _digest_in(self.table, name))

    @property
    def rows(self) -> int:
        """The number of samples."""
        return self.fact("rows", lambda: int(self.table.num_rows))

    @property
    def tokens(self) -> int:
        """The sum of the lengths of all samples."""
        return self.fact("tokens", lambda: int(self.lengths.sum()))

    @property
    def without_foil(self) -> int:
        """The number of samples that have no foil."""
        return self.fact("without_foil", lambda: int(self.table["foil_id"].null_count))

    @property
    def labels(self) -> list[str]:
        """The names of the samples' gold labels, sorted."""
        return self.fact("labels", self._labels)

    def _labels(self) -> list[str]:
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
        files = self.samples.files
        if not files:
            return Selected(table)
        starts = np.cumsum([0, *(count for _, count in files)])
        at = np.searchsorted(starts, rows, side="right") - 1
        return Selected(table, [files[i][0] for i in at], (np.asarray(rows) - starts[at]).tolist())

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
        drawn: dict[str, list[int]] = self.fact("drawn", dict)
        name = f"{size}:{seed}"
        if name not in drawn and size > MOST_KEPT:
            return self._draw(size, seed, np.arange(self.rows))
        if name not in drawn:
            drawn[name] = self._draw(size, seed, np.arange(self.rows)).tolist()
        return np.array(drawn[name], np.int64)

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
        if kept_ids not in self._proposals:
            self._proposals[kept_ids] = Proposal.of([self.table], kept_ids)
        return self._proposals[kept_ids]

    @cached_property
    def cuts(self) -> dict[Any, Any]:
        """A cache of the units that were cut of the samples, by the arguments of the cut."""
        return {}

    @cached_property
    def _proposals(self) -> dict[tuple[int, ...], Proposal]:
        """A cache of proposals, by the special tokens."""
        return {}


def _digest_in(table: pa.Table, name: str) -> str:
    """The hash `name` of samples."""
    return digest_of(table.select(_digested(table)[name]))


def _digested(table: pa.Table) -> Mapping[str, Sequence[str]]:
    """The columns that each hash covers, by its name."""
    return _ANSWER_DIGESTS if "answer_ids" in table.column_names else _DIGESTS


def read_inputs(ledger: Ledger, tokenizer: str, task: str) -> Inputs | None:
    """The inputs of a task; None if it is not wholly prepared for this tokenizer by this version of closelook.

    If facts are known of the files that the manifest lists, the files are read only when more is asked for. Raises
    StoreError if the files differ from those that the manifest lists, or hold other rows.
    """
    views = views_of(tokenizer, task)
    record = ledger.latest(views)
    if record is None or not is_complete(record):
        return None
    stamps = ledger.whole(views)
    read = partial(_inputs, ledger, tokenizer, task, tuple(stamps), record)
    try:
        return ledger.store.kept(("inputs", tokenizer, task), (stamps, record.get("rows"), record.get("hashes")), read)
    except SchemaMismatch:
        return None  # prepare makes them again


def _inputs(ledger: Ledger, tokenizer: str, task: str, paths: tuple[str, ...], record: Mapping[str, Any]) -> Inputs:
    """The inputs in the files `paths` that the manifest `record` lists."""

    def read() -> Samples:
        return _read_samples(ledger, tokenizer, task, paths)

    of = [titled(VIEW), titled(ANSWER_VIEW), record["key"], record["hashes"], record["rows"]]
    facts = Known.of(ledger.store).views(views_of(tokenizer, task).name, of)
    inputs = Inputs(tokenizer, task, read, paths, facts, is_entered=True)
    inputs.fact("rows", lambda: inputs.table.num_rows)  # reads, unless known
    return inputs


def _read_samples(ledger: Ledger, tokenizer: str, task: str, paths: tuple[str, ...]) -> Samples:
    """The samples in the files `paths`."""
    views, store = views_of(tokenizer, task), ledger.store
    of_answers = store.has_column(paths[0], "answer_ids")
    schema = ANSWER_VIEW if of_answers else VIEW
    columns = [*(_OF_UNITS if of_answers else UNIT_COLUMNS), "length"]
    tables = list(ledger.read_whole(views, paths, schema, columns))
    counts = [table.num_rows for table in tables]
    files = tuple(zip(paths, counts, strict=True)) if store.has_values(paths[0], PIXELS) else ()
    return Samples(pa.concat_tables(tables), files)


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
