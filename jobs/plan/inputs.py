"""The tokenised samples as the driver reads them: once, to plan and to give workers those of each unit."""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from evaluation.schema import VIEW, SchemaMismatch
from evaluation.scoring.resampling import Proposal
from jobs.plan.spool import digest_of, gather, spooled
from jobs.store import Ledger, Store
from jobs.store.artifacts import views_of

#: Of relevance.
INPUT_COLUMNS = ["sample_id", "input_ids", "position", "target_id", "foil_id", "token_type_ids", "decoder_input_ids"]
MASK_COLUMNS = ["special_mask", "scope_mask"]  # which tokens may be perturbed
GOLD_COLUMNS = ["label", "score"]  # what predictions are held against
UNIT_COLUMNS = [*INPUT_COLUMNS, *MASK_COLUMNS, *GOLD_COLUMNS]  # that the driver reads, too
_HASHED_ROWS = 1 << 16  # whose names are Python's at a time
_DIGESTS = {"inputs": INPUT_COLUMNS, "masks": MASK_COLUMNS, "gold": GOLD_COLUMNS}
PIXELS = "pixels"  # which workers alone are given: ids and the key of what prepares them tell them apart


@dataclass(frozen=True)
class Inputs:
    """The samples of one task as one tokenizer sees them, in the order of the store."""

    tokenizer: str
    task: str
    table: pa.Table  # of very many samples it lies in a file, and the driver's memory is mapped to it
    files: tuple[tuple[str, int], ...] = ()  # of images: (path, rows) of each file of the views, which hold the pixels
    paths: tuple[str, ...] = ()  # of the files of the views
    digests: Mapping[str, str] = field(default_factory=dict)  # that are known, by their names among `_DIGESTS`

    @cached_property
    def digest(self) -> str:
        """A hash of everything that relevance depends on; evidence is not part of it."""
        return self._digest("inputs")

    @cached_property
    def masks_digest(self) -> str:
        """A hash of what tells which tokens may be perturbed."""
        return self._digest("masks")

    @cached_property
    def gold_digest(self) -> str:
        """A hash of what predictions are held against."""
        return self._digest("gold")

    def _digest(self, name: str) -> str:
        return self.digests[name] if name in self.digests else digest_of(self.table.select(_DIGESTS[name]))

    @cached_property
    def lengths(self) -> np.ndarray:
        """Tokens of every sample [N]."""
        return self.table["length"].to_numpy()

    @cached_property
    def ids(self) -> pa.Array:
        """The names of the samples [N], in one piece: of several, each look-up would copy all."""
        chunks = self.table["sample_id"].cast(pa.large_string()).chunks
        return pa.concat_arrays(chunks) if chunks else pa.array([], pa.large_string())

    @property
    def labels(self) -> list[str]:
        """The names of gold labels that samples have."""
        return sorted(label for label in self.table["label"].unique().to_pylist() if label is not None)

    @property
    def folder(self) -> str:
        """The folder of the views in the store."""
        return views_of(self.tokenizer, self.task).folder

    def unit(self, task: Any, rows: Sequence[int] | np.ndarray) -> pa.Table:
        """A unit as a worker gets it: one row with the pickled `task` and the columns of the samples `rows` as lists.

        A unit that names its rows instead would have every worker read the views of all, which costs their square.
        """
        samples = gather(self.table.select(UNIT_COLUMNS), np.asarray(rows, dtype=np.int64))
        lists = {name: pa.ListArray.from_arrays([0, len(rows)], _only(samples[name])) for name in UNIT_COLUMNS}
        return pa.table({"task": [pickle.dumps(task)], **lists, **self._files(rows)})

    def _files(self, rows: Sequence[int] | np.ndarray) -> dict[str, pa.Array]:
        """The file of each sample that is an image, and its row there."""
        if not self.files:
            return {}
        starts = np.cumsum([0, *(count for _, count in self.files)])
        at = np.searchsorted(starts, rows, side="right") - 1
        paths, inside = [self.files[i][0] for i in at], np.asarray(rows) - starts[at]
        return {"files": pa.array([paths]), "rows": pa.array([inside.tolist()], pa.list_(pa.int64()))}

    def with_foil(self, count: int) -> list[dict[str, Any]]:
        """The first `count` samples that have a foil, in the order of the store."""
        first = np.flatnonzero(self.table["foil_id"].is_valid().to_numpy())[:count]
        return gather(self.table.select(INPUT_COLUMNS), first).to_pylist()

    def subset(self, size: int | None, seed: int | str, among: np.ndarray | None = None) -> np.ndarray:
        """Indices of a random `size` of the samples, or of those `among` them, drawn by content.

        Order and neighbours play no part.
        """
        if among is not None:
            return self._draw(size, seed, among) if size is not None and size < len(among) else among
        if size is None or size >= len(self.table):
            return np.arange(len(self.table))
        if (size, seed) not in self._drawn:
            self._drawn[size, seed] = self._draw(size, seed, np.arange(len(self.table)))
        return self._drawn[size, seed].copy()

    def _draw(self, size: int, seed: int | str, indices: np.ndarray) -> np.ndarray:
        """Of these indices those of the `size` samples whose hashes come first."""

        def hashed(sample: str) -> bytes:
            return hashlib.sha256(f"{seed}:{sample}".encode()).digest()

        pieces = (indices[start : start + _HASHED_ROWS] for start in range(0, len(indices), _HASHED_ROWS))
        beginnings = (hashed(sample)[:8] for piece in pieces for sample in self.ids.take(piece).to_pylist())
        keys = np.fromiter(map(int.from_bytes, beginnings), np.uint64, len(indices))
        among = indices[keys <= np.partition(keys, size)[size]]  # `size` and one, and more of the same beginning
        drawn = sorted(among.tolist(), key=lambda row: hashed(self.ids[row].as_py()))
        return np.sort(np.array(drawn[:size], np.int64))

    def proposal(self, kept_ids: tuple[int, ...]) -> Proposal:
        """The bigrams of all texts; `kept_ids` are special tokens, which are not proposed."""
        if kept_ids not in self._proposals:
            self._proposals[kept_ids] = Proposal.of([self.table], kept_ids)
        return self._proposals[kept_ids]

    @cached_property
    def cuts(self) -> dict[Any, Any]:
        """The units that were cut of the samples, by the arguments of the cut."""
        return {}

    @cached_property
    def _drawn(self) -> dict[tuple[int, int | str], np.ndarray]:
        """Subsets that were asked for: every method asks for the same."""
        return {}

    @cached_property
    def _proposals(self) -> dict[tuple[int, ...], Proposal]:
        """Proposals that were asked for, by the special tokens."""
        return {}


def task_of(unit: Mapping[str, Any]) -> Any:
    """The task in a row that `Inputs.unit` or `unit_without_views` gave: the driver of this run pickled it."""
    return pickle.loads(unit["task"])


def unit_without_views(task: Any) -> pa.Table:
    """A unit that is about no samples, as a worker gets it, in the same columns."""
    empty = VIEW.empty_table()
    lists = {name: pa.ListArray.from_arrays([0, 0], _only(empty[name])) for name in UNIT_COLUMNS}
    return pa.table({"task": [pickle.dumps(task)], **lists})


def _only(column: pa.ChunkedArray) -> pa.Array:
    """The values of a column whose chunks are combined; one without rows may have no chunk."""
    return column.chunk(0) if column.num_chunks else pa.array([], column.type)


def read_inputs(ledger: Ledger, tokenizer: str, task: str) -> Inputs | None:
    """The inputs of a task; None when it is not wholly prepared for this tokenizer by this version of closelook.

    Raises StoreError where the files are not those that the manifest lists, or hold other rows.
    """
    views = views_of(tokenizer, task)
    record = ledger.latest(views)
    if record is None:
        return None
    stamps = ledger.whole(views)
    try:
        return ledger.store.kept(
            ("inputs", tokenizer, task),
            (stamps, record.get("rows")),
            lambda: _read_inputs(ledger, tokenizer, task, tuple(stamps)),
        )
    except SchemaMismatch:
        return None  # prepare makes them again


def _read_inputs(ledger: Ledger, tokenizer: str, task: str, paths: tuple[str, ...]) -> Inputs:
    counts: list[int] = []

    def counted(tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
        for table in tables:
            counts.append(table.num_rows)
            yield table

    views, store = views_of(tokenizer, task), ledger.store
    table, digests = spooled(counted(ledger.read_whole(views, paths, VIEW, [*UNIT_COLUMNS, "length"])), _DIGESTS)
    files = tuple(zip(paths, counts, strict=True)) if store.has_values(paths[0], PIXELS) else ()
    return Inputs(tokenizer, task, table, files, paths, digests)


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
            read = store.read(path, VIEW, [PIXELS])[PIXELS].take([unit["rows"][at] for at in own]).to_pylist()
            for at, values in zip(own, read, strict=True):
                pixels[at] = values
    columns = (*(unit[name] for name in names), pixels)
    samples = [dict(zip((*names, PIXELS), values, strict=True)) for values in zip(*columns, strict=True)]
    return with_token_types(samples)


def with_token_types(samples: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Samples with token types for all or for none: of single texts among pairs they are 0, as models take none."""
    given = {sample.get("token_type_ids") is None for sample in samples}
    if len(given) < 2:
        return samples
    return [
        {**sample, "token_type_ids": [0] * len(sample["input_ids"])} if sample.get("token_type_ids") is None else sample
        for sample in samples
    ]
