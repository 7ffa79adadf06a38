"""Composites that a config defines, put in place of their names where methods take one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from jobs.config.models import MethodConfig
from jobs.methods import METHODS
from lrp_core.composites import named_in

KEY = "composites"  # of the config; `Option.named_in` of those that take one


def composed(raw: dict[str, Any]) -> dict[str, Any]:
    """The raw keys of a config with every named composite written out, a list of them where it leaves rules open.

    Raises UserError that names the composite which cannot be.
    """
    written = raw.get(KEY)
    if not isinstance(written, dict) or not written:
        return raw
    known = {name: [str(spec) for spec in specs] for name, specs in named_in(written)}
    changed = dict(raw)
    if isinstance(raw.get("methods"), list):
        changed["methods"] = [_entry(one, known) for one in raw["methods"]]
    if isinstance(raw.get("models"), list):
        changed["models"] = [_model(one, known) for one in raw["models"]]
    return changed


def _model(model: Any, known: Mapping[str, list[str]]) -> Any:
    if not isinstance(model, dict) or not isinstance(model.get("methods"), list):
        return model
    return model | {"methods": [_entry(one, known) for one in model["methods"]]}


def _entry(entry: Any, known: Mapping[str, list[str]]) -> Any:
    """An entry of `methods`; what is wrong with it is said where it is read."""
    try:
        method = MethodConfig.model_validate(entry)
    except ValidationError:
        return entry
    options = METHODS[method.method].options if method.method in METHODS else ()
    taking = {option.name for option in options if option.named_in == KEY}
    if not taking.intersection(method.options):
        return entry
    filled = {name: _value(value, known) if name in taking else value for name, value in method.options.items()}
    return {"name": method.name, "method": method.method, **filled}


def _value(value: Any, known: Mapping[str, list[str]]) -> Any:
    listed = value if isinstance(value, list) else [value]
    every = [one for named in listed for one in (known.get(named, [named]) if isinstance(named, str) else [named])]
    return every[0] if len(every) == 1 and not isinstance(value, list) else every
