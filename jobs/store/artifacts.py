"""Artifacts, the results that a run stores: their keys, and the paths of their files.

An artifact is one product (relevance, scores, curves, ...) at one place (model, task, precision, method, ...). Its key
is a hash of everything that its numbers depend on: equal keys mean equal numbers. Only this module makes and shortens
keys and knows the paths of products.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property, lru_cache
from typing import Any

_DIGITS = 12  # of a key, in names of files and manifests
_SHARD = "{key}-{unit}.parquet"
_IN_ORDER = json.JSONEncoder(sort_keys=True)


def key_of(**numbers: Any) -> str:
    """The sha256, in hex, of `numbers` as JSON with sorted keys: all that an artifact's numbers depend on."""
    return hashlib.sha256(_IN_ORDER.encode(numbers).encode()).hexdigest()


def short(key: str | None) -> str:
    """The first digits of a key, as they stand in names of files and manifests; "" for None."""
    return (key or "")[:_DIGITS]


@dataclass(frozen=True)
class Layout:
    """Templates of the paths of a product's files, with columns of its place, or the key, in braces.

    If the name of the manifest has no {key}, a place holds one artifact, and a new one replaces it. Otherwise artifacts
    of several keys lie side by side, so that runs with other settings find their own.
    """

    folders: tuple[str, ...] = ("{product}/model={model}/task={task}/dtype={dtype}/method={method}",)
    shard: str | None = _SHARD  # file name; None: files have other names, which the manifest lists
    manifest: str = "{product}.{model}.{task}.{dtype}.{method}.{key}"
    rejects: str | None = "{product}/rejects/model={model}/task={task}/dtype={dtype}/method={method}/{key}.parquet"


STANDARD = Layout()
_VIEWS = "benchmark/views/tokenizer={tokenizer}"
_DOTTED = "{model}.{task}.{dtype}.{method}"
#: By product; all other products have the standard layout. These are not fields of the products' records, because an
#: artifact knows its paths, and the modules of products import this one.
LAYOUTS = {
    "benchmark": Layout(
        ("benchmark/generic/task={task}", "benchmark/generic/rejects/task={task}"), _SHARD, "benchmark.{task}", None
    ),
    "views": Layout(
        (f"{_VIEWS}/task={{task}}", f"{_VIEWS}/rejects/task={{task}}"), _SHARD, "views.{tokenizer}.{task}", None
    ),
    "scores": Layout(("scores", "scores_samples"), f"{_DOTTED}.parquet", f"scores.{_DOTTED}", None),
    "layer_scores": Layout(
        ("layer_scores", "layer_scores_samples"), f"{_DOTTED}.parquet", f"layer_scores.{_DOTTED}", None
    ),
    "pruning": Layout(
        ("pruning/model={model}/task={task}/dtype={dtype}",), f"{{method}}-{_SHARD}", f"pruning.{_DOTTED}", None
    ),
    "contexts": Layout(
        ("contexts/model={model}/corpus={task}/dtype={dtype}", "activations/model={model}/corpus={task}/dtype={dtype}"),
        _SHARD,
        "contexts.{model}.{task}.{dtype}.{key}",
        None,
    ),
    "heatmaps": Layout(
        ("heatmaps/model={model}/corpus={task}/dtype={dtype}/method={method}",),
        _SHARD,
        f"heatmaps.{_DOTTED}.{{key}}",
        None,
    ),
    "bench": Layout(("bench/lrp",), f"{{model}}-{_SHARD}", "bench.lrp.{model}", None),
    "report": Layout(("report",), None, "report", None),
}


@dataclass(frozen=True)
class Artifact:
    """One product at one place under one key. Columns that do not apply to the product are empty."""

    product: str
    model: str = ""
    task: str = ""
    dtype: str = ""
    method: str = ""
    key: str = ""
    tokenizer: str = ""

    @property
    def layout(self) -> Layout:
        """The templates of the paths of its product."""
        return LAYOUTS.get(self.product, STANDARD)

    @property
    def columns(self) -> tuple[str, str, str, str]:
        """The model, task, precision and method."""
        return self.model, self.task, self.dtype, self.method

    @property
    def place(self) -> Artifact:
        """The artifact's place: product, model, task, precision, method and the like, without the key."""
        return self.keyed("")

    def keyed(self, key: str) -> Artifact:
        """The artifact of the same product and place under this key."""
        return Artifact(self.product, *self.columns, key, self.tokenizer)

    @cached_property
    def name(self) -> str:
        """The name of its manifest, by which the ledger looks it up."""
        return self._filled(self.layout.manifest)

    @property
    def replaces(self) -> bool:
        """True if committing it removes artifacts of other keys from its place."""
        return "{key}" not in self.layout.manifest

    @property
    def folder(self) -> str:
        """The folder of its shards."""
        return self.folders[0]

    @property
    def folders(self) -> tuple[str, ...]:
        """The folder of its shards, then folders of files that belong to a shard and have the shard's name."""
        return tuple(map(self._filled, self.layout.folders))

    @property
    def rejects(self) -> str | None:
        """The path of the file with all rejects, which exists only if there are any; None for products without one."""
        return self.layout.rejects and self._filled(self.layout.rejects)

    def shard(self, unit: str = "") -> str:
        """The file name of the shard of this unit. Raises ValueError for products whose files have other names."""
        if self.layout.shard is None:
            raise ValueError(f"files of {self.product} are not named by units")
        return self._filled(self.layout.shard, unit)

    def is_keyed(self) -> bool:
        """True if the names of its shards contain its key."""
        return "{key}" in (self.layout.shard or "")

    def key_in(self, file: str) -> str | None:
        """The shortened key in the name of a shard of this place; None for other files, and names without a key."""
        match = _pattern(self.layout.shard or "", short(self.key), self.columns).fullmatch(file)
        return match["key"] if match is not None and self.is_keyed() else None

    def owns(self, file: str) -> bool:
        """True if `file` is the name of a shard of this place under this artifact's key."""
        return self.key_in(file) == short(self.key)

    def __str__(self) -> str:
        columns = (self.model, self.tokenizer, self.task, self.dtype, self.method)
        return f"{self.product} {'/'.join(filter(None, columns))}"

    def _filled(self, template: str, unit: str = "") -> str:
        """A template with this artifact's columns, its shortened key and the name of a unit filled in."""
        return template.format_map({**vars(self), "key": short(self.key), "unit": unit})


@lru_cache(maxsize=4096)
def _pattern(template: str, own_key: str, columns: tuple[str, ...]) -> re.Pattern[str]:
    """A pattern for the names of shards of any unit and key; its group `key` is the shortened key.

    `columns` are those of the artifact. `own_key` matches too, even if it is not hexadecimal digits: it is empty for an
    artifact whose key is not known.
    """
    known = dict(zip(("model", "task", "dtype", "method"), map(re.escape, columns), strict=True))
    known |= {"key": rf"(?P<key>{re.escape(own_key)}|[0-9a-f]{{{_DIGITS}}})", "unit": ".*"}
    pieces = re.split(r"(\{\w+\})", template)  # placeholders, and the text between them
    return re.compile("".join(known[piece[1:-1]] if piece.startswith("{") else re.escape(piece) for piece in pieces))


def is_complete(record: Mapping[str, Any] | None) -> bool:
    """True if the manifest is of a complete artifact."""
    return record is not None and record["state"] == "complete"


def key_in(record: Mapping[str, Any]) -> str | None:
    """The key of the manifest's artifact; None if the manifest has none."""
    return record.get("key")


def artifact_in(record: Mapping[str, Any]) -> Artifact:
    """The artifact of a manifest."""
    columns = record["artifact"]
    known = {field.name: columns[field.name] for field in fields(Artifact) if field.name in columns}
    return Artifact(**{**known, "key": key_in(record) or ""})


def views_of(tokenizer: str, task: str) -> Artifact:
    """The place (an artifact without key) of a task's views: its samples as `tokenizer` tokenises them."""
    return Artifact("views", task=task, tokenizer=tokenizer)


def samples_of(task: str) -> Artifact:
    """The place (an artifact without key) of a task's samples, which depend on no tokenizer."""
    return Artifact("benchmark", task=task)
