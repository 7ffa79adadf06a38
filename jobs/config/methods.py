"""Makes methods with their options from the entries `methods:` of a configuration."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from itertools import product
from typing import Any

from closelook.jobs.config.models import MethodConfig
from closelook.jobs.config.settings import Settings
from closelook.lrp_core.methods.record import Method
from closelook.lrp_core.records.capabilities import Capability
from closelook.methods import method, refuse_planted


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


def defined_options(record: Method, entry: MethodConfig, capabilities: Collection[Capability]) -> list[dict[str, Any]]:
    """Those combinations of `left_open(entry)` that a model with these `capabilities` can compute.

    `record` is the method bound from `entry`. [{}] if no option has a list and the model can compute the method.
    """
    tried = ((values, record.configured(**values) if values else record) for values in left_open(entry) or ({},))
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
