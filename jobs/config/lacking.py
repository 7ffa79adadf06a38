"""Reads a kept configuration whose methods, tasks or families no installed package defines, by leaving these out."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, TypeVar

from jobs.config.base import Frozen
from jobs.config.known import type_in
from jobs.config.run import RunConfig
from jobs.methods import METHODS
from jobs.tasks import configured
from lrp_core.families import FAMILIES
from lrp_core.records.types import UserError

Part = TypeVar("Part", bound=Frozen)


def left_out_line(lacking: Sequence[str]) -> str:
    """A line that names the methods, tasks and families that are left out."""
    return f"left out, since no installed package defines it: {', '.join(lacking)}"


def without_unknown(config: RunConfig) -> tuple[RunConfig, list[str]]:
    """(the configuration without its unknown tasks and methods, names of all unknown records).

    The configuration is not validated. Models of unknown families stay in it, although they cannot be opened.
    """
    sources = {name: task.source for name, task in config.tasks.items() if not _is_task(name, task.source)}
    methods = {entry.name: entry.method for entry in config.every_method() if entry.method not in METHODS}
    lacking = [f"method {method!r}" for method in dict.fromkeys(methods.values())]
    lacking += [f"task {name!r} of source {source!r}" for name, source in sources.items()]
    for model in config.models:
        family = type_in(model.id)
        if model.family is None and family is not None and family not in FAMILIES:
            lacking.append(f"family {family!r} of model {model.name!r}")
    fields = dict(config)
    models = [_without(model, sources, methods) for model in config.models]
    known: dict[str, Any] = {"models": tuple(filter(None, models)), "methods": _rest(config.methods, methods)}
    for key in ("tasks", "heads", "layers", "labels"):
        known[key] = _rest(fields[key], sources)
    for key in ("prune", "perturb", "controls", "neurons"):
        known[key] = _without(fields[key], sources, methods)
    if config.bench is not None and config.bench.task in sources:
        known["bench"] = None
    return config.model_copy(update=known), lacking


def _is_task(name: str, source: str) -> bool:
    """True if the task of this name and source is defined."""
    try:
        configured(name, source)
    except UserError:
        return False
    return True


def _rest(named: Any, lost: Collection[str]) -> Any:
    """A tuple of names or of methods, or a mapping by name, without the names in `lost`. None stays None."""
    if named is None:
        return None
    if isinstance(named, dict):
        return {name: value for name, value in named.items() if name not in lost}
    return tuple(entry for entry in named if (entry if isinstance(entry, str) else entry.name) not in lost)


def _without(part: Part | None, tasks: Collection[str], methods: Collection[str]) -> Part | None:
    """A section of the config, such as `prune` or a model's, without these unknown tasks and methods.

    None if it names only unknown tasks or only unknown methods, so that nothing is left to do, and if it is None. A
    section that names none, and so means all, stays.
    """
    if part is None:
        return None
    fields = dict(part)
    changes: dict[str, Any] = {}
    for key, lost in (("tasks", tasks), ("dtypes", tasks), ("methods", methods)):
        if fields.get(key):
            changes[key] = _rest(fields[key], lost)
            if not changes[key] and key != "dtypes":
                return None
    if "knockout" in fields:
        changes["knockout"] = _without(fields["knockout"], tasks, methods)
    return part.model_copy(update=changes)
