"""Facts that earlier runs found out about models and views, kept in a file of the root.

A command that only looks at a root takes them if the models' files and the views' manifests have not changed. A run
finds out anew about models, since it computes with them. Removing the file is harmless: it only costs time.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import cache
from importlib.metadata import entry_points
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from closelook.jobs.config import ModelConfig
from closelook.jobs.plan.checkpoints import location_of
from closelook.jobs.plan.models import Reading, ResolvedModel
from closelook.jobs.store import Store
from closelook.lrp_core.families import FAMILIES, Family
from closelook.lrp_core.opening.checkpoint import weight_files
from closelook.versions import versions

if TYPE_CHECKING:
    from closelook.evaluation.benchmark.pictures import Preprocessing

FILE = "known.json"
VERSION = 1  # raised when facts have other names or meanings
#: Code that decides how models resolve.
_SOURCES = ("lrp_core", "jobs/plan", "jobs/geometries.py", "evaluation/benchmark/pictures.py")
_ROOT = Path(__file__).parents[2]

Facts = dict[str, Any]  # JSON


class Known:
    """The facts of one root. Missing facts are computed and added; a run saves them."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._text = b""
        self._facts: Facts = {"models": {}, "views": {}}
        (text,) = store.read_all([FILE])
        with suppress(ValueError, KeyError, TypeError):
            facts = json.loads(text or b"")
            if facts["version"] == VERSION:
                self._text, self._facts = text or b"", {name: dict(facts[name]) for name in ("models", "views")}

    @classmethod
    def of(cls, store: Store) -> Known:
        """The facts of this store's root, read once."""
        return store.kept("known", FILE, lambda: cls(store))

    def save(self) -> None:
        """Write the facts if there are new ones. Only the owner of the root may do so."""
        text = json.dumps({"version": VERSION, **self._facts}, sort_keys=True).encode()
        if text != self._text:
            self._store.write_bytes(FILE, text)
            self._text = text

    def views(self, name: str, made_of: Sequence[Any]) -> Facts:
        """The facts about the views (samples as a tokenizer reads them) whose manifest has this name.

        The caller may add facts to the mapping. Facts that an earlier run kept are dropped if `made_of`, which has the
        schemas, key, hashes and rows of the views, is not what it was then.
        """
        entry = self._facts["views"].get(name)
        if entry is None or entry["of"] != list(made_of):
            entry = self._facts["views"][name] = {"of": list(made_of), "facts": {}}
        return entry["facts"]

    def model(self, config: ModelConfig, seed: int) -> tuple[ResolvedModel, Reading] | None:
        """The model, and the reading of its samples, as an earlier run found them.

        None if no run did, if its files are on the hub, or if its config, the seed, its files or this code have changed
        since.
        """
        entry, stamp = self._facts["models"].get(config.name), stamp_of(config, seed)
        if entry is None or stamp is None or entry["of"] != stamp:
            return None
        facts = dict(entry["facts"])
        family, images = _family_at(facts.pop("family")), facts.pop("preprocessing")
        read = facts.pop("reading")
        reading = Reading(read["key"], read["mask_id"], tuple(read["special_ids"]))
        if family is None:
            return None
        labels, preprocessing = tuple(facts.pop("labels")), None if images is None else _preprocessing(images)
        return ResolvedModel(config, family=family, labels=labels, preprocessing=preprocessing, **facts), reading

    def learn(self, stamp: str | None, resolved: ResolvedModel, reading: Reading) -> None:
        """Keep the facts of a resolved model; `stamp` was taken before it was resolved."""
        family = _place_of(resolved.family)
        if stamp is None or family is None:
            return
        images = resolved.preprocessing
        facts = {name: getattr(resolved, name) for name in ("location", "revision", "identity", "max_length", "output")}
        facts |= {"family": family, "labels": list(resolved.labels), "reading": asdict(reading)}
        facts["preprocessing"] = None if images is None else asdict(images)
        self._facts["models"][resolved.config.name] = {"of": stamp, "facts": json.loads(json.dumps(facts))}


def stamp_of(model: ModelConfig, seed: int) -> str | None:
    """A hash of all that decides how a model resolves; None if some of its files are on the hub.

    Of weights it covers the size, times and inode of the files, not their content.
    """
    is_random = model.id.startswith("random/")
    if is_random and not model.tokenizer:
        return None  # the tokenizer is on the hub
    location = location_of(model)
    folders = [] if is_random else [location]
    folders += [model.adapter] if model.adapter else []
    folders += [*(model.tokenizer or ()), *(model.decoder_tokenizer or ())]
    if not all(Path(folder).expanduser().is_dir() for folder in folders):
        return None
    files = [list(_stamps(Path(folder).expanduser())) for folder in folders]
    facts = [model.model_dump(mode="json"), seed, _code(), location, files]
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def _stamps(folder: Path) -> Iterator[tuple[str, int, int, int, int]]:
    """Yield name, size, times and inode of every file of a folder, and of weights in folders below it."""
    for path in sorted({*folder.iterdir(), *weight_files(folder)}):
        if path.is_file():
            known = path.stat()
            yield str(path.relative_to(folder)), known.st_size, known.st_mtime_ns, known.st_ctime_ns, known.st_ino


@cache
def _code() -> str:
    """A hash of the versions of packages, and of the files of code, that decide how models resolve."""
    files = []
    for source in _SOURCES:
        source_path = _ROOT / source
        paths = source_path.rglob("*.py") if source_path.is_dir() else [source_path]
        files += [(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in sorted(paths)]
    families = sorted(entry_points(group="closelook.families"), key=lambda entry: entry.name)
    brought = [(entry.name, entry.value, entry.dist and entry.dist.version) for entry in families]
    return hashlib.sha256(json.dumps([versions("tokenizers"), brought, files]).encode()).hexdigest()


def _place_of(family: Family) -> list[Any] | None:
    """[name, index of the variant, has labels], by which `_family_at` finds the family; None for a generic one."""
    for name in FAMILIES:
        for at, labelled in product(range(1 + len(FAMILIES[name].variants)), (False, True)):
            if _family_at([name, at, labelled]) == family:
                return [name, at, labelled]
    return None


def _family_at(key: Sequence[Any]) -> Family | None:
    """The family that `_place_of` described; None if there is none now."""
    name, at, labelled = key
    if name not in FAMILIES:
        return None
    every = [FAMILIES[name], *(variant.family for variant in FAMILIES[name].variants)]
    family = every[at] if at < len(every) else None
    return family.with_labels if labelled and family is not None else family


def _preprocessing(facts: Facts) -> Preprocessing:
    """The image settings from JSON, in which tuples are lists."""
    from closelook.evaluation.benchmark.pictures import Preprocessing

    values: Facts = {name: tuple(value) if isinstance(value, list) else value for name, value in facts.items()}
    return Preprocessing(**values)
