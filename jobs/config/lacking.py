"""What a kept configuration names and no installed package brings any more: told, and left out where a run is read."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from jobs.config.models import MethodConfig
from jobs.methods import METHODS
from jobs.tasks import configured
from lrp_core.families import FAMILIES
from lrp_core.types import UserError

_BY_TASK = ("heads", "layers", "labels")  # keys of a configuration with an entry a task


def told(lacking: Sequence[str]) -> str:
    """One line about what is lacking."""
    return f"left out, as no installed package brings it: {', '.join(lacking)}"


def without_unknown(raw: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The raw keys of a configuration without the tasks and methods that are not known, and what is not.

    Models of unknown families stay: they are out of reach.
    """
    tasks = {name: task for name, task in raw["tasks"].items() if _is_task(name, task["source"])}
    lost_tasks = [name for name in raw["tasks"] if name not in tasks]
    lists = [raw["methods"], *(model["methods"] for model in raw["models"] if model.get("methods"))]
    entries = [MethodConfig.model_validate(entry) for entries in lists for entry in entries]
    known = {entry.name for entry in entries if entry.method in METHODS}
    lost_methods = {entry.name: entry.method for entry in entries if entry.name not in known}
    families = {model["name"]: _type_of(model["id"]) for model in raw["models"] if not model.get("family")}
    lacking = [f"method {record!r}" for record in dict.fromkeys(lost_methods.values())]
    lacking += [f"task {name!r} of source {raw['tasks'][name]['source']!r}" for name in lost_tasks]
    unknown = [(name, family) for name, family in families.items() if family is not None and family not in FAMILIES]
    lacking += [f"family {family!r} of model {name!r}" for name, family in unknown]
    models = [kept for model in raw["models"] if (kept := _without(model, lost_tasks, lost_methods)) is not None]
    parts = [key for key in ("prune", "perturb", "neurons") if raw.get(key)]
    rest: dict[str, Any] = {key: _without(raw[key], lost_tasks, lost_methods) for key in parts}
    rest |= {key: _kept(raw[key], lost_tasks) for key in _BY_TASK if raw.get(key)}
    if raw.get("bench") and raw["bench"].get("task") in lost_tasks:
        rest["bench"] = None
    methods = _kept(raw["methods"], lost_methods)
    return {**raw, **rest, "tasks": tasks, "models": models, "methods": methods}, lacking


def _is_task(name: str, source: str) -> bool:
    try:
        configured(name, source)
    except UserError:
        return False
    return True


def _type_of(model_id: str) -> str | None:
    """The type of a model in a folder; None of other models."""
    try:
        described = json.loads((Path(model_id).expanduser() / "config.json").read_bytes())
    except (OSError, ValueError):
        return None
    kind = described.get("model_type") if isinstance(described, dict) else None
    return kind if isinstance(kind, str) else None


def _kept(named: Any, lost: Collection[str]) -> Any:
    """A list of names or methods, or a mapping by name, without what is lost."""
    if isinstance(named, dict):
        return {name: value for name, value in named.items() if name not in lost}
    return [entry for entry in named if MethodConfig.model_validate(entry).name not in lost]


def _without(part: dict[str, Any], tasks: Collection[str], methods: Collection[str]) -> dict[str, Any] | None:
    """A part of the run without these tasks and methods, and None where it named no others."""
    kept = dict(part)
    for key, lost in (("tasks", tasks), ("dtypes", tasks), ("methods", methods)):
        if kept.get(key):
            kept[key] = _kept(kept[key], lost)
            if not kept[key] and key != "dtypes":
                return None
    if kept.get("knockout"):
        kept["knockout"] = _without(kept["knockout"], tasks, methods)
    return kept
