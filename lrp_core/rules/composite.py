"""Composites: the rules of a method for every kind of layer, and how users write a composite that differs from it.

Gradient x input with gradients that the rules modify is layer-wise relevance propagation (Close Look, appendix C).
Rules change gradients and never the values of the forward pass, so one forward pass serves every composite.
Imports no torch: the modules of the rules are imported when a composite needs them.

A composite is written as `{group: rule}`, a rule as its name or as `{name: number}`. Its canonical form is one line:
`linear gamma 0.05, softmax zplus`. Groups that it leaves out keep the rule of the method that it changes.

>>> str(Spec.of({"linear": {"gamma": 0.05}, "softmax": "zplus"}))
'linear gamma 0.05, softmax zplus'
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from typing import Any

from closelook.lrp_core.records.finer import FINER
from closelook.lrp_core.records.types import UserError, nearest
from closelook.lrp_core.rules import records
from closelook.lrp_core.rules.records import LINEAR_GROUPS, Composite, LinearRule

EPSILON, GAMMA, ZPLUS, ALPHA_BETA = "epsilon", "gamma", "zplus", "alpha_beta"
CONSTANT, IDENTITY, GRADIENT, DISTRIBUTED_BIAS = "constant", "identity", "gradient", "distributed_bias"
SOFTMAX, NORM, ACTIVATION = "softmax", "norm", "activation"
LOGITS_BIAS, CONTRIBUTION = "logits_bias", "contribution"
_OF_LINEAR = (EPSILON, GAMMA, ZPLUS, ALPHA_BETA)
#: The rules of each group, its default first. `linear` is every linear layer outside of attention, the head included.
#: `logits_bias` is the bias of the unembedding. Under rules of `linear` it counts as one more contribution, whose share
#: of relevance it keeps, or (`constant`) it is left out of the sum that they share.
RULES: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(LINEAR_GROUPS, _OF_LINEAR),
    SOFTMAX: (EPSILON, ZPLUS, CONSTANT, IDENTITY, DISTRIBUTED_BIAS),
    NORM: (IDENTITY, GRADIENT),
    ACTIVATION: (IDENTITY, GRADIENT),
    LOGITS_BIAS: (CONTRIBUTION, CONSTANT),
}
#: The figure of AttnLRP that compares the rules of a group.
FIGURES: Mapping[str, int] = {SOFTMAX: 12, **dict(zip(LINEAR_GROUPS, range(13, 17), strict=True))}
#: The rules that take a number: its default and its least value.
NUMBERS: Mapping[str, tuple[float, float]] = {GAMMA: (0.25, 0.0), ALPHA_BETA: (2.0, 1.0)}


@dataclass(frozen=True)
class Rule:
    """A rule by name, with its number if it takes one."""

    name: str
    number: float | None = None

    def __str__(self) -> str:
        return self.name if self.number is None else f"{self.name} {self.number:g}"


@dataclass(frozen=True)
class Spec:
    """The changes of a composite: (group, rule) for each group whose rule is not the default, in the order of RULES."""

    rules: tuple[tuple[str, Rule], ...] = ()

    @classmethod
    def of(cls, written: Any) -> Spec:
        """Read a spec from `{group: rule}` or its canonical form. Raises UserError for unknown names or bad numbers."""
        if isinstance(written, str):
            written = dict(map(_part, written.split(", "))) if written != EPSILON else {}
        if not isinstance(written, Mapping):
            raise UserError(f"a composite must be {{group of layers: rule}}, not {written!r}")
        for group in written:
            if group not in RULES:
                raise UserError(f"no group of layers {group!r}{nearest(str(group), RULES)}")
        rules = [(group, _rule(group, written[group])) for group in RULES if group in written]
        return cls(tuple((group, rule) for group, rule in rules if rule.name != RULES[group][0]))

    def rule(self, group: str) -> Rule:
        """The rule of a group of layers, which may be the default."""
        return dict(self.rules).get(group, Rule(RULES[group][0]))

    def __str__(self) -> str:
        return ", ".join(f"{group} {rule}" for group, rule in self.rules) or EPSILON


def combinations(written: Any) -> list[Spec]:
    """The composites of `{group: rule, or a list of rules}`: one for every combination of the listed rules."""
    if not isinstance(written, Mapping):
        return [Spec.of(written)]
    lists = [value if isinstance(value, list) else [value] for value in written.values()]
    return [Spec.of(dict(zip(written, rules, strict=True))) for rules in product(*lists)]


def _part(text: str) -> tuple[str, Any]:
    """(group, rule) from a part of the canonical form, such as "linear gamma 0.05"."""
    group, _, rule = text.strip().partition(" ")
    name, _, number = rule.partition(" ")
    return group, {name: _number(number)} if number else name


def _number(text: str) -> Any:
    """The number that a text writes; the text itself if it writes none, for the error message."""
    try:
        return float(text)
    except ValueError:
        return text


def _rule(group: str, written: Any) -> Rule:
    """The rule of a group, written as its name or as `{name: number}`."""
    name, number = written, None
    if isinstance(written, Mapping) and len(written) == 1:
        ((name, number),) = written.items()
    if not isinstance(name, str) or name not in RULES[group]:
        raise UserError(f"{group} has no rule {name!r}{nearest(str(name), RULES[group])}")
    if name not in NUMBERS:
        if number is not None:
            raise UserError(f"{group}: the rule {name} takes no number: leave out {number!r}")
        return Rule(name)
    default, least = NUMBERS[name]
    number = default if number is None else number
    if type(number) not in (int, float) or not least <= number < float("inf"):
        hint = "; YAML reads 1e-1 as text: write 0.1" if isinstance(number, str) else ""
        raise UserError(f"{group}: the rule {name} needs a finite number, at least {least:g}, not {number!r}{hint}")
    return Rule(name, float(number))


# rules that make a method

PLAIN = Composite("plain")
#: Ali et al. 2022; Close Look C.3 to C.5
LRP = Composite(
    "lrp",
    bilinear=records.SIGNAL_TAKES_ALL,
    normalization=records.CONSTANT_DEVIATION,
    activation=records.IDENTITY,
)
#: AttnLRP 3.3; Close Look C.1, C.3, C.5, C.6
ATTNLRP = replace(LRP, name="attnlrp", bilinear=records.UNIFORM)
COMPOSITES = {composite.name: composite for composite in (PLAIN, LRP, ATTNLRP)}
#: By group: the fields of a composite that change if the group has the rule that is not its default.
_CHANGES: dict[str, dict[str, Any]] = {
    NORM: {"normalization": records.TRUE_FACTOR},
    ACTIVATION: {"activation": records.TRUE_FACTOR},
    LOGITS_BIAS: {"constant_logits_bias": True},
}


def composite_of(rules: str) -> Composite:
    """The composite that a method record names: NAME of COMPOSITES, or `NAME with SPEC` (see `changed`)."""
    name, _, written = rules.partition(" with ")
    return changed(COMPOSITES[name], written or EPSILON)


@lru_cache
def changed(base: Composite, written: str) -> Composite:
    """The composite `base` with the rules that `written`, a spec in canonical form, gives to some groups."""
    from closelook.lrp_core.rules.linear import LINEAR_RULES
    from closelook.lrp_core.rules.softmax import SOFTMAX_RULES

    spec = Spec.of(written)
    if not spec.rules:
        return base
    linear: dict[str, LinearRule] = {}
    changes: dict[str, Any] = {}
    for group, rule in spec.rules:
        if group in LINEAR_GROUPS:
            known = LINEAR_RULES[rule.name]
            linear[group] = known if isinstance(known, LinearRule) else known(rule.number)
        elif group == SOFTMAX:
            changes["softmax"] = SOFTMAX_RULES[rule.name]
        else:
            changes |= _CHANGES[group]
    return replace(base, name=f"{base.name} with {spec}", linear=replace(base.linear, **linear), **changes)


# what methods know by name

#: AttnLRP's best rules for vision transformers, read off its figures 12 to 16 (the body of its table 4 is missing): z+
#: for the softmax, gamma for linear layers outside of attention, epsilon for those in it.
VIT = "vit"
_VIT_LINEAR = {"convolution": {GAMMA: 0.25}, "linear": {GAMMA: 0.05}}


def withheld(written: str) -> tuple[str, ...]:
    """The kinds of relevance (names of FINER) that a method cannot give under a composite in canonical form."""
    ruled = any(group in LINEAR_GROUPS for group, _ in Spec.of(written).rules)
    return tuple(finer.name for finer in FINER.values() if finer.of_sums) if ruled else ()


class UnknownComposite(UserError):
    """There is no composite of that name; `known` are the names that exist."""

    def __init__(self, name: str, known: Iterable[str]) -> None:
        self.name, self.known = name, tuple(known)
        super().__init__(f"no composite {name!r}{nearest(name, self.known)}")


@dataclass(frozen=True)
class CompositeChoice:
    """The composites that a method accepts: the named ones, and any that changes only the rules of `groups`."""

    named: Mapping[str, Spec]
    groups: tuple[str, ...]

    def read(self, written: Any) -> str:
        """The canonical form of a composite, given by name, as a mapping or in canonical form.

        Raises UserError for unknown names, and for groups whose rule the method does not let users change.
        """
        if isinstance(written, str) and written in self.named:
            return str(self.named[written])
        if isinstance(written, str) and not any(written.startswith(f"{group} ") for group in RULES):
            raise UnknownComposite(written, self.named)
        spec = Spec.of(written)
        for group, _ in spec.rules:
            if group not in self.groups:
                raise UserError(f"its rule for {group} cannot be changed: leave {group} out of the composite")
        return str(spec)

    def show(self, value: str) -> str:
        """The name of a composite in canonical form; the form itself if it has no name."""
        return next((name for name, spec in self.named.items() if str(spec) == value), value)


OF_ATTNLRP = CompositeChoice({EPSILON: Spec(), VIT: Spec.of({**_VIT_LINEAR, SOFTMAX: ZPLUS})}, tuple(RULES))
#: LRP holds attention weights constant (CP-LRP), so their softmax takes no rule.
OF_LRP = CompositeChoice(
    {EPSILON: Spec(), VIT: Spec.of(_VIT_LINEAR)}, tuple(group for group in RULES if group != SOFTMAX)
)


def named_in(config: Mapping[str, Any]) -> Iterator[tuple[str, list[Spec]]]:
    """Yield (name, its composites) of a config's `composites`. Raises UserError that names the wrong entry."""
    for name, written in config.items():
        try:
            yield name, combinations(written)
        except UserError as error:
            raise UserError(f"config key 'composites.{name}': {error}") from None
