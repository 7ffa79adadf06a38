"""Composites that a config defines, put in place of their names where methods take one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from jobs.config.models import MethodConfig
from jobs.methods import METHODS
from lrp_core.composites import UnknownComposite, named_in
from lrp_core.option import Option
from lrp_core.types import UserError, nearest

KEY = "composites"  # of the config; `Option.named_in` of those that take one


def composed(raw: dict[str, Any]) -> dict[str, Any]:
    """The raw keys of a config with every named composite written out, a list of them where it leaves rules open.

    Raises UserError that names the composite which cannot be, or for a name that neither the config nor the option has.
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
    taking = {option.name: option for option in options if option.named_in == KEY}
    if not set(taking).intersection(method.options):
        return entry
    try:
        filled = {n: _value(value, taking[n], known) if n in taking else value for n, value in method.options.items()}
    except UnknownComposite as error:
        near = nearest(error.name, [*error.known, *known])
        raise UserError(f"config key 'methods': {method.method}: no composite {error.name!r}{near}") from None
    return {"name": method.name, "method": method.method, **filled}


def _value(value: Any, option: Option, known: Mapping[str, list[str]]) -> Any:
    """What stands for the names in an option's value."""
    every = [one for named in (value if isinstance(value, list) else [value]) for one in _named(named, option, known)]
    return every[0] if len(every) == 1 and not isinstance(value, list) else every


def _named(name: Any, option: Option, known: Mapping[str, list[str]]) -> list[Any]:
    """The composites of a name. Raises UnknownComposite; what else is wrong is said where the option is checked."""
    if not isinstance(name, str):
        return [name]
    if name not in known and option.reads is not None:
        try:
            option.reads(name)
        except UnknownComposite:
            raise
        except UserError:
            pass
    return list(known.get(name, [name]))
