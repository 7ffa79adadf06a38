"""Artifacts: what a run makes, under which key, and where its files lie.

An artifact is one product (relevance, scores, curves, ...) at one place (model, task, precision, method, ...). Its key
is a hash of all that decides its numbers: equal keys mean equal numbers. No other module makes a key, cuts one short,
or knows a path of a product.
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


def key_of(**numbers: Any) -> str:
    """The sha256, in hex, of all that decides an artifact's numbers, as JSON whose order plays no part."""
    return hashlib.sha256(json.dumps(numbers, sort_keys=True).encode()).hexdigest()


def short(key: str | None) -> str:
    """The beginning of a key, as names of files and manifests have it."""
    return (key or "")[:_DIGITS]


@dataclass(frozen=True)
class Layout:
    """The places of a product's files, with a column of its place, or the key, in braces.

    A name of a manifest without {key} holds one artifact a place: it replaces its predecessor. Artifacts of several
    keys lie side by side otherwise, so that a run of other settings finds its own.
    """

    folders: tuple[str, ...] = ("{product}/model={model}/task={task}/dtype={dtype}/method={method}",)
    shard: str | None = _SHARD  # None: files are named by what is in them, and the manifest lists them
    manifest: str = "{product}.{model}.{task}.{dtype}.{method}.{key}"
    rejects: str | None = "{product}/rejects/model={model}/task={task}/dtype={dtype}/method={method}/{key}.parquet"


STANDARD = Layout()
_VIEWS = "benchmark/views/tokenizer={tokenizer}"
_DOTTED = "{model}.{task}.{dtype}.{method}"
#: By product; one that is not here has the standard layout. Not a field of the product's record: an artifact knows its
#: paths, and records of products import artifacts.
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
    "writings": Layout(("writings/model={model}/dtype={dtype}",), _SHARD, "writings.{model}.{dtype}.{key}", None),
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
    "bench": Layout(("bench/lrp",), None, "bench.lrp.{model}", None),
    "report": Layout(("report",), None, "report", None),
}


@dataclass(frozen=True)
class Artifact:
    """One product at one place under one key. Columns that a product's place does not have are empty."""

    product: str
    model: str = ""
    task: str = ""
    dtype: str = ""
    method: str = ""
    key: str = ""
    tokenizer: str = ""

    @property
    def layout(self) -> Layout:
        return LAYOUTS.get(self.product, STANDARD)

    @property
    def place(self) -> Artifact:
        """The artifact's place: product, model, task, precision, method and the like, without the key."""
        return self.keyed("")

    def keyed(self, key: str) -> Artifact:
        """The artifact under this key in the same place."""
        return Artifact(self.product, self.model, self.task, self.dtype, self.method, key, self.tokenizer)

    @cached_property
    def name(self) -> str:
        """The name of its manifest, which everything that is known of it is looked up by."""
        return self._filled(self.layout.manifest)

    @property
    def replaces(self) -> bool:
        """True where it takes the place of artifacts of other keys."""
        return "{key}" not in self.layout.manifest

    @property
    def folder(self) -> str:
        return self.folders[0]

    @property
    def folders(self) -> tuple[str, ...]:
        """The folder of its shards, then those of what belongs to a shard and has its name."""
        return tuple(map(self._filled, self.layout.folders))

    @property
    def rejects(self) -> str | None:
        """The file of all its rejects, as its shards hold them; there is none where nothing was rejected."""
        return self.layout.rejects and self._filled(self.layout.rejects)

    def shard(self, unit: str = "") -> str:
        """The file name of a unit's shard."""
        if self.layout.shard is None:
            raise ValueError(f"files of {self.product} are not named by units")
        return self._filled(self.layout.shard, unit=unit)

    def is_keyed(self) -> bool:
        """True where a shard's name tells its key."""
        return "{key}" in (self.layout.shard or "")

    def key_in(self, file: str) -> str | None:
        """The beginning of the key in a file name of this place; None for files of other places, or without a key."""
        columns = (self.model, self.task, self.dtype, self.method)
        match = _pattern(self.layout.shard or "", short(self.key), *columns).fullmatch(file)
        return match["key"] if match is not None and self.is_keyed() else None

    def owns(self, file: str) -> bool:
        """True where a file name is that of a shard under this very key."""
        return self.key_in(file) == short(self.key)

    def __str__(self) -> str:
        columns = (self.model, self.tokenizer, self.task, self.dtype, self.method)
        return f"{self.product} {'/'.join(filter(None, columns))}"

    def _filled(self, template: str, **more: str) -> str:
        return template.format(**{**vars(self), "key": short(self.key)}, **more)


@lru_cache(maxsize=4096)
def _pattern(template: str, own_key: str, model: str, task: str, dtype: str, method: str) -> re.Pattern[str]:
    """Matches the names of shards of any unit in these columns; the group `key` is the beginning of their key.

    `own_key` matches as it is: it may be empty, as where an artifact's key is not known.
    """
    columns = {"model": model, "task": task, "dtype": dtype, "method": method}
    known = {name: re.escape(value) for name, value in columns.items()}
    known |= {"key": rf"(?P<key>{re.escape(own_key)}|[0-9a-f]{{{_DIGITS}}})", "unit": ".*"}
    pieces = re.split(r"(\{\w+\})", template)  # placeholders, and the text between them
    return re.compile("".join(known[piece[1:-1]] if piece.startswith("{") else re.escape(piece) for piece in pieces))


def artifact_of(columns: Mapping[str, Any], key: str = "") -> Artifact:
    """The artifact whose columns a manifest holds."""
    known = {field.name: columns[field.name] for field in fields(Artifact) if field.name in columns}
    return Artifact(**{**known, "key": key})


def views_of(tokenizer: str, task: str) -> Artifact:
    """The tokenised views of a task, whatever their key."""
    return Artifact("views", task=task, tokenizer=tokenizer)


def samples_of(task: str) -> Artifact:
    """The generic samples of a task, whatever their key."""
    return Artifact("benchmark", task=task)
