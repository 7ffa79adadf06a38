"""`closelook forget`: a sample's content leaves every artifact and page of a root, and no later run brings it back.

Rows of samples and their views become placeholders, so that the others keep their numbers; other rows of the sample are
removed. Artifacts keep their keys. What was computed over several samples at once, and the report, is removed: the
next run makes it again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from evaluation.benchmark.forgotten import FORGOTTEN, blanked, replaced, sample_placeholder
from evaluation.benchmark.samples import Row
from evaluation.benchmark.sources.own import ids_of
from evaluation.schema import REJECT
from jobs.commands.terminal import say
from jobs.config import RunConfig
from jobs.config.settings import SelectConfig
from jobs.plan.inputs import read_inputs
from jobs.products.table import PRODUCTS
from jobs.store import Artifact, Ledger, Store, Written
from jobs.store.forgotten import Forgotten
from jobs.store.listings import sizes_in
from jobs.store.lock import run_lock
from jobs.store.manifests import PACK
from jobs.store.records import artifact_in, is_complete
from lrp_core.records.types import UserError

_NOTES = ("runs", "logs", "attempts")  # folders of JSON that may name a sample
_BLANKS: Mapping[str, Callable[[Row, str], Row]] = {
    "benchmark": lambda row, name: sample_placeholder(name),
    "views": blanked,
}


@dataclass
class _Held:
    """An artifact of the root, and which of its files hold the samples."""

    artifact: Artifact
    record: dict[str, Any]
    paths: list[str] = field(default_factory=list)
    is_mean: bool = False  # it has rows that are of no single sample


def forget(config: RunConfig, store: Store, asked: Sequence[str]) -> None:
    """Forget the samples that have these ids, or these ids of the users' own; say from which artifacts.

    Raises UserError for an id that nothing in the root has, before anything is changed.
    """
    with run_lock(store):
        ledger = Ledger(store)
        names, known = _names(ledger, asked), Forgotten.of(store)
        forgotten = known
        for name in names:
            forgotten = forgotten.with_sample(name, (config.seed, (config.select or SelectConfig()).draw))
        every = list(_held(ledger, forgotten))
        held = [one for one in every if one.paths]
        if not held and any(known.placeholder(name) is None for name in asked):
            raise UserError(f"{store.root} holds no sample {' or '.join(asked)}: give its `sample_id`")
        _with_digests(ledger, forgotten, held).save(store)
        removed = _removed(every, held)
        for one in removed:
            ledger.discard(one.artifact)
        ledger.discard(Artifact("report"))
        kept = [one for one in held if one not in removed]
        for one in sorted(kept, key=lambda one: ("views", "benchmark").count(one.artifact.product)):
            _rewrite(ledger, forgotten, one)
        _rewrite_unlisted(ledger, forgotten, every)
        _rename(store, forgotten, names)
        store.delete(PACK)
        store.pack_manifests()
    for one in kept:
        say(f"removed from {one.artifact}")
    for one in removed:
        say(f"{one.artifact} was computed from it and others: `closelook run` computes it again")
    say(f"{len(kept)} artifacts of {store.root} were rewritten, {len(removed)} and the report are to be made again")


def _names(ledger: Ledger, asked: Sequence[str]) -> list[str]:
    """The ids that are asked for, and the `sample_id` of samples that users gave such an id."""
    names = dict.fromkeys(asked)
    for _, record in ledger.records("benchmark"):
        artifact = artifact_in(record)
        for path in ledger.files(artifact) if artifact is not None else ():
            table = ledger.store.read_any(path)[0]
            for sample, meta in zip(table["sample_id"].to_pylist(), table["meta"].to_pylist(), strict=True):
                if set(asked).intersection(filter(None, ids_of(meta))):
                    names[sample] = None
    return list(names)


def _with_digests(ledger: Ledger, forgotten: Forgotten, held: Sequence[_Held]) -> Forgotten:
    """With the hashes of views as they will be, for which those stand that keys are made of."""
    digests = dict(forgotten.digests)
    for one in held:
        views = one.artifact
        inputs = read_inputs(ledger, views.tokenizer, views.task) if views.product == "views" else None
        if inputs is not None:
            later = inputs.with_table(replaced(inputs.table, forgotten.placeholder, blanked))
            keyed = inputs.digests
            digests |= {digest: keyed[name] for name, digest in later.digests.items()}
    return replace(forgotten, digests=digests)


def _held(ledger: Ledger, forgotten: Forgotten) -> Iterator[_Held]:
    """Every artifact that was entered, with its files that hold the samples."""
    for _, record in ledger.records():
        artifact = artifact_in(record)
        if artifact is None or artifact.product == "report":
            continue
        held = _Held(artifact, record)
        for path in ledger.belongings(artifact, record):
            if path.endswith(".parquet"):
                table, rejects, _ = ledger.store.read_any(path)
                held.is_mean |= "sample_id" not in table.column_names
                if any(map(forgotten.placeholder, _samples_in(table, rejects))):
                    held.paths.append(path)
        yield held


def _samples_in(table: pa.Table, rejects: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    if "sample_id" in table.column_names:
        yield from table["sample_id"].to_pylist()
    if "samples" in table.column_names:  # of curves over several
        for samples in table["samples"].to_pylist():
            yield from samples or ()
    yield from (reject["sample_id"] for reject in rejects)


def _removed(every: Sequence[_Held], held: Sequence[_Held]) -> list[_Held]:
    """The artifacts over several samples at once that were made of those that hold the samples."""
    tasks = {one.artifact.task for one in held}
    names = {one.artifact.name for one in held}
    removed: dict[str, _Held] = {}
    while True:
        more = {}
        for one in every:
            name, made_of = one.artifact.name, one.record.get("made_of")
            is_of = one.artifact.task in tasks if made_of is None else bool(names.intersection(made_of))
            if one.is_mean and name not in removed and (is_of or one.paths):
                more[name] = one
        if not more:
            return list(removed.values())
        removed |= more
        names |= more.keys()


def _rewrite(ledger: Ledger, forgotten: Forgotten, one: _Held) -> None:
    """Remove the samples from an artifact's files, and enter it again under its key."""
    artifact, record, store = one.artifact, one.record, ledger.store
    stage, files = PRODUCTS[artifact.product].stage, _files(ledger, one)
    gone: dict[str, str] = {}  # the reason why each had been left out, "" of those that were not, by placeholder
    for path in one.paths:
        written, before = _rewrite_file(store, forgotten, path, stage)
        if files is not None:
            files[path] = written
        if path.startswith(artifact.folder):
            gone |= before
    entries = {name: value for name, value in record.items() if name not in ("bytes", "file_rows", "hashes")}
    if artifact.product not in _BLANKS:
        counts = Counter(record.get("rejects", {}))
        counts.subtract(filter(None, gone.values()))
        counts[FORGOTTEN] += len(gone)
        entries["rejects"] = {reason: count for reason, count in counts.items() if count > 0}
        if record.get("explained") is not None:
            entries["explained"] = record["explained"] - list(gone.values()).count("")
        examples = record.get("examples", {})
        kept = {reason: told for reason, told in examples.items() if not forgotten.placeholder(told.partition(":")[0])}
        entries["examples"] = kept
    if artifact.rejects is not None and artifact.rejects not in one.paths and gone:
        rows = [_reject(name, stage) for name in gone]
        if store.exists(artifact.rejects):
            rows = [*store.read(artifact.rejects, REJECT).to_pylist(), *rows]
        new = store.write_shard(artifact.rejects, pa.Table.from_pylist(rows, schema=REJECT), REJECT)
        if files is not None:
            files[artifact.rejects] = new
    config = ledger.config_of(record) or {}
    ledger.commit(artifact, entries, config=config, complete=is_complete(record), files=files)


def _files(ledger: Ledger, one: _Held) -> dict[str, Written] | None:
    """The files that a manifest lists, as it knows them; None where it has no hashes of them."""
    hashes = ledger.hashes(one.record)
    if hashes is None:
        return None
    rows = {name: count for folder in one.record["file_rows"] for name, count in folder.items()}
    return {
        path: Written(size, hashes[path], rows.get(path.rpartition("/")[2]))
        for path, size in sizes_in(one.artifact, one.record).items()
        if size is not None and path in hashes
    }


def _rewrite_file(store: Store, forgotten: Forgotten, path: str, stage: str) -> tuple[Written, dict[str, str]]:
    """Remove the samples from a file.

    Returns what was written, and by placeholder the reason why each sample had been left out, "" of one that was not.
    """
    table, rejects, origin = store.read_any(path)
    before = {name: row["reason"] for row in rejects if (name := forgotten.placeholder(row["sample_id"]))}
    if {"reason", "detail"} <= set(table.column_names):  # a file of rejects
        table = replaced(table, forgotten.placeholder, lambda row, name: _reject(name, row["stage"]))
        return store.write_shard(path, table, table.schema, None, origin), before
    product = path.partition("/")[0]
    if product == "benchmark":
        blank = _BLANKS["views" if path.startswith("benchmark/views") else "benchmark"]
        table = replaced(table, forgotten.placeholder, blank)
        return store.write_shard(path, table, table.schema, None, origin), before
    names = [forgotten.placeholder(sample) for sample in table["sample_id"].to_pylist()]
    before |= dict.fromkeys(filter(None, names), "")
    table = table.filter(pa.array([name is None for name in names], pa.bool_()))
    kept = [row for row in rejects if forgotten.placeholder(row["sample_id"]) is None]
    kept += [_reject(name, stage) for name in before]
    return store.write_shard(path, table, table.schema, pa.Table.from_pylist(kept, schema=REJECT), origin), before


def _rewrite_unlisted(ledger: Ledger, forgotten: Forgotten, every: Sequence[_Held]) -> None:
    """Remove the samples from shards that no manifest lists: of artifacts that are begun, or of other settings."""
    store = ledger.store
    listed = {path for one in every for path in sizes_in(one.artifact, one.record)}
    for path in store.files("", recursive=True):
        if path in listed:
            continue
        table, rejects, _ = store.read_any(path)
        if not any(map(forgotten.placeholder, _samples_in(table, rejects))):
            continue
        if "sample_id" in table.column_names:
            _rewrite_file(store, forgotten, path, FORGOTTEN)
        else:
            store.delete(path)


def _rename(store: Store, forgotten: Forgotten, names: Sequence[str]) -> None:
    """Put the placeholders' ids for those of the samples in records, logs and notes of runs."""
    for path in (path for folder in _NOTES for path in store.files(folder, "", recursive=True)):
        before = content = store.read_bytes(path)
        for name in names:
            content = content.replace(name.encode(), str(forgotten.placeholder(name)).encode())
        if content != before:
            store.write_bytes(path, content)


def _reject(name: str, stage: str) -> Row:
    return {"sample_id": name, "stage": stage, "reason": FORGOTTEN, "where": None, "detail": None}
