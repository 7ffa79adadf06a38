"""Replaces the names of composites that a config defines, in the options of its methods, by the composites."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from jobs.config.models import MethodConfig
from jobs.methods import METHODS
from lrp_core.records.option import Option
from lrp_core.records.types import UserError, nearest
from lrp_core.rules.composite import UnknownComposite, named_in

KEY = "composites"  # the config key, which `Option.named_in` of options that take a composite refers to


def composed(raw: dict[str, Any]) -> dict[str, Any]:
    """The raw keys of a config in which its methods' options hold composites written out instead of their names.

    A composite that lists several rules for a group of layers becomes a list, one for each combination. Raises
    UserError for an invalid composite, and for a name that neither the config nor the option knows.
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
    """`section`, the raw keys of the config or of a model, with composites written out in its `methods`."""
    if not isinstance(section, dict):
        return section
    methods = section.get("methods")
    return section | ({"methods": [_entry(entry, known) for entry in methods]} if isinstance(methods, list) else {})


def _entry(entry: Any, known: Mapping[str, list[str]]) -> Any:
    """An entry of `methods` with its composites written out; unchanged if it is invalid, which is reported later."""
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
    """The value of an option, a name or a list of names, with composites in place of names. Raises UnknownComposite."""
    every: list[Any] = []
    for name in value if isinstance(value, list) else [value]:
        if isinstance(name, str) and name not in known and option.reads is not None:
            try:
                option.reads(name)
            except UnknownComposite:
                raise
            except UserError:
                pass  # another error of the value, which is reported where the option is checked
        every += known.get(name, [name]) if isinstance(name, str) else [name]
    return every[0] if len(every) == 1 and not isinstance(value, list) else every
