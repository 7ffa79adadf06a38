"""`closelook forget`: removes samples from every artifact and page of a root, so that no later run brings them back.

Their rows among samples and views become placeholders, so that other samples keep their positions and numbers; their
rows elsewhere are removed. Artifacts keep their keys. Artifacts computed over several samples at once, and the report,
are removed: the next run computes them again. In records of runs and in logs, placeholders replace their ids.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import pyarrow as pa

from evaluation.benchmark.forgotten import FORGOTTEN, blanked, replaced, sample_placeholder
from evaluation.benchmark.samples import Row
from evaluation.benchmark.sources.own import ids_of
from evaluation.schema import REJECT
from jobs.commands.terminal import say
from jobs.config import RunConfig, SelectConfig
from jobs.plan.inputs import Inputs, read_inputs
from jobs.products.table import PRODUCTS
from jobs.store import Artifact, Ledger, Store, Written, artifact_in, is_complete
from jobs.store.forgotten import Forgotten
from jobs.store.listings import sizes_in
from jobs.store.lock import run_lock
from jobs.store.manifests import PACK
from lrp_core.records.types import UserError

_FOLDERS = ("runs", "logs")
_IDS = frozenset({"sample", "samples", "sample_id", "sample_ids"})  # fields that hold an id, or a list of ids
_MESSAGES = frozenset({"ending", "error", "errors", "failures"})  # fields that hold messages


def rename_samples(store: Store, placeholders: Mapping[str, str]) -> None:
    """Replace ids of samples by their `placeholders` in all records of runs and logs, and remove notes of attempts.

    The notes may name samples, and are needed only while a run goes on.
    """
    renaming = _Renaming(placeholders)
    for path in (path for folder in _FOLDERS for path in store.files(folder, "", recursive=True)):
        before = store.read_bytes(path).decode()
        after = renaming.content(path, before)
        if after != before:
            store.write_bytes(path, after.encode())
    for path in store.files("attempts", ".json", recursive=True):
        store.delete(path)


@dataclass(frozen=True)
class _Renaming:
    """Replaces ids of samples by `placeholders` in the contents of files.

    Only fields with ids of samples, and messages, are changed: elsewhere the same word may be a setting or a count.
    """

    placeholders: Mapping[str, str]

    def content(self, path: str, content: str) -> str:
        """The content of the file at `path` with ids replaced, by its format: JSON lines, JSON or plain text."""
        if path.endswith(".jsonl"):
            return "".join(f"{self._json(line, None)}\n" for line in content.splitlines())
        return self._json(content, 1) if path.endswith(".json") else self._message(content)

    def _json(self, content: str, indent: int | None) -> str:
        """A JSON text with ids replaced; unchanged, to the byte, if it names none."""
        try:
            record = json.loads(content)
        except ValueError:  # it was cut, or is not JSON
            return self._message(content)
        renamed = self._value("", record)
        return content if renamed == record else json.dumps(renamed, indent=indent, ensure_ascii=False)

    def _value(self, field: str, value: Any) -> Any:
        """The value of a field, or of an entry of its list, with ids replaced at any depth."""
        if isinstance(value, dict):
            return {name: self._value(name, entry) for name, entry in value.items()}
        if isinstance(value, list):
            return [self._value(field, entry) for entry in value]
        if isinstance(value, str) and field in _IDS:
            return self.placeholders.get(value, value)
        if isinstance(value, str) and field in _MESSAGES:
            return self._message(value)
        return value

    def _message(self, text: str) -> str:
        """A message with the ids that it names replaced."""
        return self._named.sub(lambda named: f"{named[1]} {self.placeholders[named[2]]}", text)

    @cached_property
    def _named(self) -> re.Pattern[str]:
        """A pattern for an id as messages name it: `sample ID`, or `as ID: ...` where a sample is given as example."""
        longest_first = sorted(self.placeholders, key=len, reverse=True)
        ids = "|".join(map(re.escape, longest_first))
        return re.compile(rf"\b(sample|as) ({ids})(?![\w-]|\.\w)")


_BLANKS: Mapping[str, Callable[[Row, str], Row]] = {
    "benchmark": lambda row, name: sample_placeholder(name),
    "views": blanked,
}


@dataclass
class _Held:
    """An artifact of the root, and those of its files that hold forgotten samples."""

    artifact: Artifact
    record: dict[str, Any]
    paths: list[str] = field(default_factory=list)
    is_mean: bool = False  # it has rows that belong to no single sample, such as means


def forget(config: RunConfig, store: Store, chosen: Sequence[str]) -> None:
    """Forget the samples whose `sample_id`, or whose id in the user's own file, is in `chosen`. Prints what changes.

    Raises UserError, before anything is changed, if the root holds none of these samples.
    """
    with run_lock(store):
        ledger = Ledger(store)
        known, ids = Forgotten.of(store), _ids(ledger)
        names = _names(ids, chosen)
        forgotten = known.with_samples(names, ids, (config.seed, (config.select or SelectConfig()).draw))
        every = list(_held(ledger, forgotten))
        held = [holder for holder in every if holder.paths]
        if not held and any(known.placeholder(name) is None for name in chosen):
            raise UserError(f"{store.root} holds no sample {' or '.join(chosen)}: give a `sample_id`, or your own id")
        _with_digests(ledger, forgotten, held).save(store)
        rename_samples(store, {name: forgotten.name(name) for name in names})
        removed = _removed(every, held)
        for holder in removed:
            ledger.discard(holder.artifact)
        ledger.discard(Artifact("report"))
        # Those of the lock are of its heartbeat, and hold no samples; others are of writers that were killed.
        killed = [path for path in store.temporaries() if not path.startswith("lock/")]
        for path in (*store.files("report", "", recursive=True), *killed):
            store.delete(path)
        kept = [holder for holder in held if holder not in removed]
        for holder in sorted(kept, key=lambda holder: ("views", "benchmark").count(holder.artifact.product)):
            _rewrite(ledger, forgotten, holder)
        _rewrite_unlisted(ledger, forgotten, every)
        store.delete(PACK)
        store.pack_manifests()
    for holder in kept:
        say(f"removed from {holder.artifact}")
    for holder in removed:
        say(f"{holder.artifact} was computed from it and others: {store.remedy}")
    say(f"{len(kept)} artifacts of {store.root} were rewritten, {len(removed)} and the report were removed")


def _ids(ledger: Ledger) -> dict[str, set[str]]:
    """The ids that the user's own file gives each sample of the root, by `sample_id`."""
    ids: dict[str, set[str]] = defaultdict(set)
    for _, record in ledger.records("benchmark"):
        artifact = artifact_in(record)
        for path in ledger.files(artifact) if artifact is not None else ():
            table = ledger.store.read_any(path)[0]
            for sample, meta in zip(table["sample_id"].to_pylist(), table["meta"].to_pylist(), strict=True):
                ids[sample].update(filter(None, ids_of(meta)))
    return ids


def _names(ids: Mapping[str, set[str]], chosen: Sequence[str]) -> list[str]:
    """The ids in `chosen`, and the `sample_id` of every sample to which the user's own file gives one of them as id."""
    named = (sample for sample, of_users in ids.items() if of_users.intersection(chosen))
    return list(dict.fromkeys((*chosen, *named)))


def _with_digests(ledger: Ledger, forgotten: Forgotten, held: Sequence[_Held]) -> Forgotten:
    """A copy that also maps the hashes of views after the change to the hashes before it, of which keys were made."""
    digests = dict(forgotten.digests)
    for holder in held:
        views = holder.artifact
        inputs = read_inputs(ledger, views.tokenizer, views.task) if views.product == "views" else None
        if inputs is not None:
            later = Inputs.of(inputs.tokenizer, inputs.task, replaced(inputs.table, forgotten.placeholder, blanked))
            keyed = inputs.digests
            digests |= {digest: keyed[name] for name, digest in later.digests.items()}
    return replace(forgotten, digests=digests)


def _held(ledger: Ledger, forgotten: Forgotten) -> Iterator[_Held]:
    """Every artifact with a manifest, but the report, with its files that hold forgotten samples."""
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
    """The ids of all samples that a shard names, in its rows or its rejects."""
    if "sample_id" in table.column_names:
        yield from table["sample_id"].to_pylist()
    if "samples" in table.column_names:  # curves over several samples list them
        for samples in table["samples"].to_pylist():
            yield from samples or ()
    yield from (reject["sample_id"] for reject in rejects)


def _removed(every: Sequence[_Held], held: Sequence[_Held]) -> list[_Held]:
    """The artifacts over several samples at once that were made, directly or in turn, of artifacts with the samples."""
    tasks = {holder.artifact.task for holder in held}
    names = {holder.artifact.name for holder in held}
    removed: dict[str, _Held] = {}
    while True:
        more = {}
        for holder in every:
            name, made_of = holder.artifact.name, holder.record.get("made_of")
            is_of = holder.artifact.task in tasks if made_of is None else bool(names.intersection(made_of))
            if holder.is_mean and name not in removed and (is_of or holder.paths):
                more[name] = holder
        if not more:
            return list(removed.values())
        removed |= more
        names |= more.keys()


def _rewrite(ledger: Ledger, forgotten: Forgotten, holder: _Held) -> None:
    """Remove the samples from an artifact's files, and write its manifest again under the same key."""
    artifact, record, store = holder.artifact, holder.record, ledger.store
    stage, files = PRODUCTS[artifact.product].stage, _files(ledger, holder)
    gone: dict[str, str] = {}  # by placeholder, why the sample was rejected before; "" if it was not
    for path in holder.paths:
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
        kept = {
            reason: example
            for reason, example in examples.items()
            if not forgotten.placeholder(example.partition(":")[0])
        }
        entries["examples"] = kept
    if artifact.rejects is not None and artifact.rejects not in holder.paths and gone:
        rows = [_reject(name, stage) for name in gone]
        if store.exists(artifact.rejects):
            rows = [*store.read(artifact.rejects, REJECT).to_pylist(), *rows]
        new = store.write_shard(artifact.rejects, pa.Table.from_pylist(rows, schema=REJECT), REJECT)
        if files is not None:
            files[artifact.rejects] = new
    config = ledger.config_of(record) or {}
    ledger.commit(artifact, entries, config=config, complete=is_complete(record), files=files)


def _files(ledger: Ledger, holder: _Held) -> dict[str, Written] | None:
    """Size, hash and rows of the files by path, as the manifest recorded them; None if it recorded no hashes."""
    hashes = ledger.hashes(holder.record)
    if hashes is None:
        return None
    rows: dict[str, int] = {}
    for folder in holder.record["file_rows"]:
        rows |= folder
    files = {}
    for path, size in sizes_in(holder.artifact, holder.record).items():
        if size is not None and path in hashes:
            files[path] = Written(size, hashes[path], rows.get(path.rpartition("/")[2]))
    return files


def _rewrite_file(store: Store, forgotten: Forgotten, path: str, stage: str) -> tuple[Written, dict[str, str]]:
    """Write a Parquet file again without the content of the forgotten samples.

    In files of rejects, and in samples and views of the benchmark, placeholders replace their rows. In other files
    their rows are removed, and a reject with the reason FORGOTTEN and this `stage` stands for each.

    Returns the new file's size and hash and, by placeholder, the reason for which the file had rejected the sample
    before: "" if it had rows of the sample.
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
    """Remove the samples from shards that no manifest lists: of unfinished artifacts, or of other settings."""
    store = ledger.store
    listed = {path for holder in every for path in sizes_in(holder.artifact, holder.record)}
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


def _reject(name: str, stage: str) -> Row:
    """The row of schema REJECT that stands for a forgotten sample."""
    return {"sample_id": name, "stage": stage, "reason": FORGOTTEN, "where": None, "detail": None}
