"""The record of a method's option: its type, default, allowed values and notation. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from closelook.lrp_core.records.capabilities import Capability
from closelook.lrp_core.records.types import UserError


@dataclass(frozen=True)
class Option:
    """A typed option of a method. Its value changes numbers, so it enters the cell key."""

    name: str
    default: Any
    help: str
    kind: type | None = None  # default: the type of `default`
    choices: tuple[Any, ...] = ()
    low: float | None = None  # the least and the greatest value, both allowed
    high: float | None = None
    per_request: bool = False  # requests with different values share a pass: `explain` finds the value in each request
    needs: Mapping[Any, Capability] = field(default_factory=dict, hash=False)  # the capability that each value needs
    #: `reads` turns a value as users write it into its canonical form, or raises UserError; `shows` turns it into text.
    reads: Callable[[Any], Any] | None = field(default=None, hash=False)
    shows: Callable[[Any], str] | None = field(default=None, hash=False)
    named_in: str = ""  # the config key under which users may define named values of this option
    added_later: bool = False  # left out of keys at its default, so that keys from before it existed stay valid
    #: From a value to the kinds of relevance that the method cannot give with it; None: every value allows all.
    withholds: Callable[[Any], tuple[str, ...]] | None = field(default=None, hash=False)

    def check(self, value: Any, method: str) -> Any:
        """`value` converted to the option's type and checked.

        Raises UserError, naming the `method`, the option and the allowed values, for a value that is not allowed.
        """
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
            raise UserError(f"{method}: option {self.name!r} must be {self.range}, not {value!r}")
        return value

    def alternatives(self, value: Any, method: str) -> list[Any] | None:
        """The checked values of a list of alternatives; None if `value` is a single value.

        For an option of type tuple a list is a single value, and a list of lists holds alternatives. Raises UserError
        for fewer than two alternatives, for equal ones, and for values that :meth:`check` refuses.
        """
        single = (self.kind or type(self.default)) is tuple and not (
            value and all(type(element) is list for element in value)
        )
        if type(value) is not list or single:
            return None
        values = [self.check(element, method) for element in value]
        if len(values) < 2 or any(element in values[:at] for at, element in enumerate(values)):
            raise UserError(
                f"{method}: a list for option {self.name!r} must hold two or more different values, not {value}"
            )
        return values

    def shown(self, value: Any) -> str:
        """`value` as labels show it."""
        return plain(value) if self.shows is None else self.shows(value)

    @property
    def range(self) -> str:
        """The allowed values in words, such as "a whole number at least 1"."""
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
