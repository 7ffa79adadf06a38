"""Makes methods with their options from the entries `methods:` of a configuration, and from what users type.

Typed methods are written `lrp,attnlrp:composite=vit,integrated_gradients:steps=25:rule=gauss_legendre`: each option
follows the method's name after a colon. Values are YAML, as in a config, in which commas and colons inside brackets
separate nothing: `attnlrp:composite={linear: {gamma: 0.1}}`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from itertools import product
from typing import Any

from closelook.jobs.config.file import yaml_value
from closelook.jobs.config.models import MethodConfig
from closelook.jobs.config.settings import Settings
from closelook.jobs.methods import method, refuse_planted
from closelook.lrp_core.methods.record import Method
from closelook.lrp_core.records.capabilities import Capability
from closelook.lrp_core.records.types import UserError

_DEPTH = {"[": 1, "{": 1, "]": -1, "}": -1}  # change of the depth of brackets


def left_open(entry: MethodConfig) -> tuple[dict[str, Any], ...]:
    """Every combination of the values that the entry lists for its options, the last option's values changing fastest.

    Each is a dict of those options alone that have a list; () if none has. Raises UserError for an invalid list.
    """
    options = {option.name: option for option in method(entry.method).options}
    lists = {}
    for name, value in entry.options.items():
        values = options[name].alternatives(value, entry.method) if name in options else None
        if values is not None:
            lists[name] = values
    return tuple(dict(zip(lists, values, strict=True)) for values in product(*lists.values())) if lists else ()


def defined_options(
    record: Method, entry: MethodConfig, capabilities: Collection[Capability] | None
) -> list[dict[str, Any]]:
    """Those combinations of `left_open(entry)` that a model with these `capabilities` can compute.

    `record` is the method bound from `entry`. [{}] if no option has a list and the model can compute the method;
    `capabilities` None: the model is not known, and all combinations are returned.
    """
    options = left_open(entry) or ({},)
    if capabilities is None:
        return list(options)
    tried = ((values, record.configured(**values) if values else record) for values in options)
    return [values for values, method in tried if not method.missing(capabilities)]


def bound(entry: MethodConfig) -> Method:
    """The method of an entry with its options. An option with a list has its first value, until `select` chooses.

    Raises UserError for an unknown method or option, or an invalid value.
    """
    refuse_planted(entry.name)
    record, alternatives = method(entry.method), left_open(entry)
    if not alternatives:
        return record.configured(entry.name, **entry.options)
    first = alternatives[0]
    options = {**entry.options, **first}
    return replace(record.configured(entry.name, **options), label=tuned_label(entry, f"{', '.join(first)} tuned"))


def tuned_label(entry: MethodConfig, words: str) -> str:
    """The label of a method whose entry lists values: that of its settled options, with `words` in parentheses."""
    opened = left_open(entry)[0]
    settled = {name: value for name, value in entry.options.items() if name not in opened}
    return f"{method(entry.method).configured(entry.name, **settled).label} ({words})"


def configured(config: Settings) -> dict[str, Method]:
    """All methods of a run and its models with their options, by their names there. Raises as :func:`bound`."""
    return {entry.name: bound(entry) for entry in config.every_method()}


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
