"""Composites that a config defines, substituted for their names in the options of methods."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from jobs.config.models import MethodConfig
from jobs.methods import METHODS
from lrp_core.records.option import Option
from lrp_core.records.types import UserError, nearest
from lrp_core.rules.composite import UnknownComposite, named_in

KEY = "composites"  # of the config; `Option.named_in` of those that take one


def composed(raw: dict[str, Any]) -> dict[str, Any]:
    """The raw keys of a config with every named composite written out, a list of them where it leaves rules open.

    Raises UserError that names the composite which cannot be, or for a name that neither the config nor the option has.
    """
    written = raw.get(KEY)
    if not isinstance(written, dict) or not written:
        return raw
    known = {name: [str(spec) for spec in specs] for name, specs in named_in(written)}
    changed = _with_methods(raw, known)
    if isinstance(raw.get("models"), list):
        changed["models"] = [_with_methods(model, known) for model in raw["models"]]
    return changed


def _with_methods(section: Any, known: Mapping[str, list[str]]) -> Any:
    """The raw keys of the config or of a model, with composites written out in their `methods`."""
    if not isinstance(section, dict):
        return section
    methods = section.get("methods")
    return section | ({"methods": [_entry(entry, known) for entry in methods]} if isinstance(methods, list) else {})


def _entry(entry: Any, known: Mapping[str, list[str]]) -> Any:
    """An entry of `methods` with its composites written out; its other errors are told where it is read."""
    try:
        method = MethodConfig.model_validate(entry)
    except ValidationError:
        return entry
    options = METHODS[method.method].options if method.method in METHODS else ()
    filled = dict(method.options)
    try:
        for option in options:
            if option.named_in == KEY and option.name in filled:
                filled[option.name] = _value(filled[option.name], option, known)
    except UnknownComposite as error:
        near = nearest(error.name, [*error.known, *known])
        raise UserError(f"config key 'methods': {method.method}: no composite {error.name!r}{near}") from None
    return {"name": method.name, "method": method.method, **filled}


def _value(value: Any, option: Option, known: Mapping[str, list[str]]) -> Any:
    """The value of an option with composites in place of their names."""
    every: list[Any] = []
    for name in value if isinstance(value, list) else [value]:
        if isinstance(name, str) and name not in known and option.reads is not None:
            try:
                option.reads(name)
            except UnknownComposite:
                raise
            except UserError:
                pass  # told where the option is checked
        every += known.get(name, [name]) if isinstance(name, str) else [name]
    return every[0] if len(every) == 1 and not isinstance(value, list) else every
