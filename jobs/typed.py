"""Parses methods as they are typed: `lrp,attnlrp:composite=vit,integrated_gradients:steps=25:rule=gauss_legendre`.

Each option follows the method's name after a colon. Values are YAML, as in a config, in which commas and colons inside
brackets separate nothing: `attnlrp:composite={linear: {gamma: 0.1}}`.
"""

from __future__ import annotations

from collections.abc import Iterator

from jobs.config.file import yaml_value
from jobs.methods import method
from lrp_core.methods.record import Method
from lrp_core.records.types import UserError

_DEPTH = {"[": 1, "{": 1, "]": -1, "}": -1}


def typed(text: str) -> Method:
    """The method that `text` describes; with options, `text` itself is its name. Raises UserError for invalid text."""
    name, *options = (part.strip() for part in _split(text, ":"))
    record = method(name)
    values = {}
    for option in options:
        key, equals, value = option.partition("=")
        if not equals:
            raise UserError(f"method {text!r}: its options are written {name}:OPTION=VALUE, not {option!r}")
        values[key.strip()] = yaml_value(value, f"method {text!r}")
    return record.configured(text.strip(), **values) if values else record


def every_typed(text: str) -> list[Method]:
    """The methods in `text`, which commas separate. Raises UserError as :func:`typed`, and for duplicates."""
    entries = [typed(part.strip()) for part in _split(text, ",")]
    names = [entry.name for entry in entries]
    for name in names:
        if names.count(name) > 1:
            raise UserError(f"method {name!r} is named twice")
    return entries


def _split(text: str, at: str) -> Iterator[str]:
    """The parts of `text` between the separators `at`, apart from separators inside brackets."""
    depth, part = 0, ""
    for letter in text:
        depth += _DEPTH.get(letter, 0)
        if letter == at and depth == 0:
            yield part
            part = ""
        else:
            part += letter
    yield part
