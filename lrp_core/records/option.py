"""The record of a method's option: its type, default, allowed values and notation. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from lrp_core.records.capabilities import Capability
from lrp_core.records.types import UserError


@dataclass(frozen=True)
class Option:
    """A typed option of a method: it changes numbers, hence enters the cell key."""

    name: str
    default: Any
    help: str
    kind: type | None = None  # default: the type of `default`
    choices: tuple[Any, ...] = ()
    low: float | None = None  # the least and the greatest value, both allowed
    high: float | None = None
    per_request: bool = False  # methods that differ in it share a pass: `explain` finds it in its requests
    needs: Mapping[Any, Capability] = field(default_factory=dict, hash=False)  # of a model, by value
    #: A value's canonical form from how it may be written, raising UserError; and how it is shown.
    reads: Callable[[Any], Any] | None = field(default=None, hash=False)
    shows: Callable[[Any], str] | None = field(default=None, hash=False)
    named_in: str = ""  # the key of a config that may give names to its values
    added_later: bool = False  # at its default it stays out of keys, which are then those of before it came
    #: What of FINER the method cannot give under a value; None: all that it gives.
    withholds: Callable[[Any], tuple[str, ...]] | None = field(default=None, hash=False)

    def check(self, value: Any, method: str) -> Any:
        """`value` in the option's type. Raises UserError naming the method, the option and the allowed values."""
        kind = self.kind or type(self.default)
        if self.reads is not None:
            try:
                value = self.reads(value)
            except UserError as error:
                raise UserError(f"{method}: option {self.name!r}: {error}") from None
        if kind is float and type(value) is int:
            value = float(value)
        if kind is tuple and type(value) is list:  # as YAML writes it
            value = tuple(value)
        right = type(value) is kind and (not self.choices or value in self.choices)
        if right and self.low is not None:
            right = value >= self.low  # False for nan
        if right and self.high is not None:
            right = value <= self.high
        if not right:
            raise UserError(f"{method}: option {self.name!r} is {self.range}, not {value!r}")
        return value

    def alternatives(self, value: Any, method: str) -> list[Any] | None:
        """The values that a list leaves open, as :meth:`check` gives them; None where `value` is a single one.

        A list is a single value of an option whose type is tuple, and one of lists leaves that open. Raises UserError
        for a list that leaves no choice.
        """
        single = (self.kind or type(self.default)) is tuple and not (
            value and all(type(element) is list for element in value)
        )
        if type(value) is not list or single:
            return None
        values = [self.check(element, method) for element in value]
        if len(values) < 2 or any(element in values[:at] for at, element in enumerate(values)):
            raise UserError(f"{method}: a list for option {self.name!r} has two different values or more, not {value}")
        return values

    def shown(self, value: Any) -> str:
        """One of its values in a label."""
        return plain(value) if self.shows is None else self.shows(value)

    @property
    def range(self) -> str:
        """The allowed values, in words."""
        if self.choices:
            return " or ".join(map(repr, self.choices))
        kind = self.kind or type(self.default)
        words = {bool: "true or false", int: "a whole number", float: "a number", str: "text", tuple: "a list"}
        bounds = [f"at least {self.low:g}"] if self.low is not None else []
        bounds += [f"at most {self.high:g}"] if self.high is not None else []
        return " ".join([words.get(kind, kind.__name__), " and ".join(bounds)]).strip()


def plain(value: Any) -> str:
    """The value of an option as YAML writes it."""
    return str(value).lower() if isinstance(value, bool) else str(value)
