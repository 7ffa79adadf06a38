"""Every method by name: ``METHODS["attnlrp"](view, batch) -> Relevance``.

Installed packages add methods through the entry points `closelook.methods`.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING, Any, Protocol

from alti import METHODS as ALTI_METHODS
from lrp_core import METHODS as CORE_METHODS
from lrp_core import Method
from lrp_core.methods.planted_records import PLANTED
from lrp_core.plugins import Extended
from lrp_core.registry import Registry
from lrp_core.types import UnsupportedMethod, nearest

if TYPE_CHECKING:
    from jobs.config.models import MethodConfig
    from lrp_core.capabilities import Capability

METHODS: Extended[Method] = Extended(
    Registry("method", *CORE_METHODS.values(), *ALTI_METHODS.values()), "closelook.methods", Method
)


def method(name: str) -> Method:
    """Raises UnsupportedMethod with the nearest name for an unknown one, and for one that is planted."""
    _refuse_planted(name)
    if name not in METHODS:
        raise UnsupportedMethod(f"unknown method {name!r}{nearest(name, METHODS)}")
    return METHODS[name]


def _refuse_planted(name: str) -> None:
    if name in PLANTED:
        raise UnsupportedMethod(f"{name!r} names a method that is planted among the `controls`, which show it anyway")


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
    _refuse_planted(entry.name)
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


class Configured(Protocol):
    """A configuration, as far as its methods go."""

    def every_method(self) -> tuple[MethodConfig, ...]:
        """The methods of the run and of its models."""


def configured(config: Configured) -> dict[str, Method]:
    """The methods of a run and of its models, by their names there, options bound. Raises as :func:`bound`."""
    return {entry.name: bound(entry) for entry in config.every_method()}
