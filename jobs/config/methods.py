"""The methods of a configuration, options bound."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from itertools import product
from typing import Any

from jobs.config.models import MethodConfig
from jobs.config.settings import Settings
from jobs.methods import method, refuse_planted
from lrp_core.methods.record import Method
from lrp_core.records.capabilities import Capability


def left_open(entry: MethodConfig) -> tuple[dict[str, Any], ...]:
    """The sets of options among which a config's lists leave the choice, the last list's values changing first.

    Options without a list are not in them; () where no option has one. Raises UserError for lists that cannot be.
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
    """The sets of options of a config's entry, which `record` is bound from, that a model has all they need for.

    One empty set where no option is left open; `capabilities` None stands for a model that may have everything.
    """
    options = left_open(entry) or ({},)
    if capabilities is None:
        return list(options)
    return [values for values in options if not record.configured(**values).missing(capabilities)]


def bound(entry: MethodConfig) -> Method:
    """One of a config's methods; where lists leave options open, the first of each, until a choice is bound instead.

    Raises UserError for an unknown method or option, or a value that does not fit.
    """
    refuse_planted(entry.name)
    record, alternatives = method(entry.method), left_open(entry)
    if not alternatives:
        return record.configured(entry.name, **entry.options)
    first = alternatives[0]
    options = {**entry.options, **first}
    return replace(record.configured(entry.name, **options), label=tuned_label(entry, f"{', '.join(first)} tuned"))


def tuned_label(entry: MethodConfig, words: str) -> str:
    """The label of one of a config's methods some of whose options are chosen, with `words` about them."""
    opened = left_open(entry)[0]
    settled = {name: value for name, value in entry.options.items() if name not in opened}
    return f"{method(entry.method).configured(entry.name, **settled).label} ({words})"


def configured(config: Settings) -> dict[str, Method]:
    """The methods of a run and of its models, by their names there, options bound. Raises as :func:`bound`."""
    return {entry.name: bound(entry) for entry in config.every_method()}
