"""Composites: the rules of every kind of layer, which make a method, and how a user writes what differs from them.

Gradient x input with gradients that the rules modify is layer-wise relevance propagation (Close Look, appendix C). The
forward values never change, so one forward serves every composite: rules look at the current one while gradients flow.
No torch here: the modules of the rules are imported when a composite needs them.

A composite is written as `{group: rule}`, a rule as its name or as `{name: number}`. Its canonical form is one line:
`linear gamma 0.05, softmax zplus`. What it leaves out has the rule of the method that it changes.

>>> str(Spec.of({"linear": {"gamma": 0.05}, "softmax": "zplus"}))
'linear gamma 0.05, softmax zplus'
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from typing import Any

from lrp_core.records.finer import FINER
from lrp_core.records.types import UserError, nearest
from lrp_core.rules import records
from lrp_core.rules.records import Composite, LinearRule

EPSILON, GAMMA, ZPLUS, ALPHA_BETA = "epsilon", "gamma", "zplus", "alpha_beta"
CONSTANT, IDENTITY, GRADIENT, DISTRIBUTED_BIAS = "constant", "identity", "gradient", "distributed_bias"
LINEAR_GROUPS = ("convolution", "linear", "input_projection", "output_projection")
SOFTMAX, NORM, ACTIVATION = "softmax", "norm", "activation"
LOGITS_BIAS, CONTRIBUTION = "logits_bias", "contribution"
_OF_LINEAR = (EPSILON, GAMMA, ZPLUS, ALPHA_BETA)
#: The rules of each group, its default first. `linear` is every linear layer outside of attention, the head included.
#: `logits_bias` is the bias of the logits (in BART `final_logits_bias`): under rules of `linear` a contribution that
#: keeps its share, or a constant that they do not see.
RULES: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(LINEAR_GROUPS, _OF_LINEAR),
    SOFTMAX: (EPSILON, ZPLUS, CONSTANT, IDENTITY, DISTRIBUTED_BIAS),
    NORM: (IDENTITY, GRADIENT),
    ACTIVATION: (IDENTITY, GRADIENT),
    LOGITS_BIAS: (CONTRIBUTION, CONSTANT),
}
#: The figure of AttnLRP that compares the rules of a group.
FIGURES: Mapping[str, int] = {SOFTMAX: 12, **dict(zip(LINEAR_GROUPS, range(13, 17), strict=True))}
#: The default and the least value of the number that a rule has.
NUMBERS: Mapping[str, tuple[float, float]] = {GAMMA: (0.25, 0.0), ALPHA_BETA: (2.0, 1.0)}


@dataclass(frozen=True)
class Rule:
    """A rule by name, with its number where it has one."""

    name: str
    number: float | None = None

    def __str__(self) -> str:
        return self.name if self.number is None else f"{self.name} {self.number:g}"


@dataclass(frozen=True)
class Spec:
    """A rule for every group that does not have its default, in the order of RULES."""

    rules: tuple[tuple[str, Rule], ...] = ()

    @classmethod
    def of(cls, written: Any) -> Spec:
        """The spec of `{group: rule}` or its canonical form. Raises UserError for unknown names, naming the nearest."""
        if isinstance(written, str):
            written = dict(map(_part, written.split(", "))) if written != EPSILON else {}
        if not isinstance(written, Mapping):
            raise UserError(f"a composite is a rule for each group of layers, not {written!r}")
        for group in written:
            if group not in RULES:
                raise UserError(f"no group of layers {group!r}{nearest(str(group), RULES)}")
        rules = [(group, _rule(group, written[group])) for group in RULES if group in written]
        return cls(tuple((group, rule) for group, rule in rules if rule.name != RULES[group][0]))

    def rule(self, group: str) -> Rule:
        """The rule of one of RULES."""
        return dict(self.rules).get(group, Rule(RULES[group][0]))

    def __str__(self) -> str:
        return ", ".join(f"{group} {rule}" for group, rule in self.rules) or EPSILON


def every(written: Any) -> list[Spec]:
    """The composites of `{group: rule}` where groups may have lists of rules: each rule with each.

    Raises UserError as `Spec.of` does.
    """
    if not isinstance(written, Mapping):
        return [Spec.of(written)]
    lists = [value if isinstance(value, list) else [value] for value in written.values()]
    return [Spec.of(dict(zip(written, rules, strict=True))) for rules in product(*lists)]


def _part(text: str) -> tuple[str, Any]:
    """(group, rule) of a part of the canonical form."""
    group, _, rule = text.strip().partition(" ")
    name, _, number = rule.partition(" ")
    return group, {name: _number(number)} if number else name


def _number(text: str) -> Any:
    return float(text) if re.fullmatch(r"[0-9.]+(e[+-]?[0-9]+)?", text) else text


def _rule(group: str, written: Any) -> Rule:
    name, number = written, None
    if isinstance(written, Mapping) and len(written) == 1:
        ((name, number),) = written.items()
    if not isinstance(name, str) or name not in RULES[group]:
        raise UserError(f"{group} has no rule {name!r}{nearest(str(name), RULES[group])}")
    if name not in NUMBERS:
        if number is not None:
            raise UserError(f"{group}: the rule {name} has no number, and {number!r} is given")
        return Rule(name)
    default, least = NUMBERS[name]
    number = default if number is None else number
    if type(number) not in (int, float) or not least <= number < float("inf"):
        raise UserError(f"{group}: the number of the rule {name} is at least {least:g}, not {number!r}")
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
#: What the rule of a group that is not its default changes of a composite.
_CHANGES: dict[str, dict[str, Any]] = {
    NORM: {"normalization": records.TRUE_NORM},
    ACTIVATION: {"activation": records.TRUE_ACTIVATION},
    LOGITS_BIAS: {"constant_logits_bias": True},
}


def composite_of(rules: str) -> Composite:
    """The composite that `rules` of a method's record name: one of COMPOSITES, or `NAME with SPEC` (see `changed`)."""
    name, _, written = rules.partition(" with ")
    return changed(COMPOSITES[name], written or EPSILON)


@lru_cache
def changed(base: Composite, written: str) -> Composite:
    """`base` with the rules of a composite in canonical form for what that names."""
    from lrp_core.rules.contributions import LINEAR_RULES
    from lrp_core.rules.softmax import SOFTMAX_RULES

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

#: AttnLRP's best for vision transformers, read off its figures 12 to 16 (the body of its table 4 is lost): z+ on the
#: softmax, gamma on what stands outside of attention, epsilon in it.
VIT = "vit"
_VIT_LINEAR = {"convolution": {GAMMA: 0.25}, "linear": {GAMMA: 0.05}}


def withheld(written: str) -> tuple[str, ...]:
    """Those of FINER that a composite in canonical form rules out: the share of biases is known under epsilon alone."""
    ruled = any(group in LINEAR_GROUPS for group, _ in Spec.of(written).rules)
    return tuple(finer.name for finer in FINER.values() if finer.of_sums) if ruled else ()


class UnknownComposite(UserError):
    """Nothing has this name, among `known` or elsewhere."""

    def __init__(self, name: str, known: Iterable[str]) -> None:
        self.name, self.known = name, tuple(known)
        super().__init__(f"no composite {name!r}{nearest(name, self.known)}")


@dataclass(frozen=True)
class CompositeChoice:
    """The composites that a method may be given: those with a name, and others over its `groups`."""

    named: Mapping[str, Spec]
    groups: tuple[str, ...]

    def read(self, written: Any) -> str:
        """The canonical form of a composite, which may be a name. Raises UserError."""
        if isinstance(written, str) and written in self.named:
            return str(self.named[written])
        if isinstance(written, str) and not any(written.startswith(f"{group} ") for group in RULES):
            raise UnknownComposite(written, self.named)
        spec = Spec.of(written)
        for group, _ in spec.rules:
            if group not in self.groups:
                raise UserError(f"its rule for {group} is its own: leave {group} out of the composite")
        return str(spec)

    def show(self, value: str) -> str:
        """The name of a composite in canonical form, or that form."""
        return next((name for name, spec in self.named.items() if str(spec) == value), value)


OF_ATTNLRP = CompositeChoice({EPSILON: Spec(), VIT: Spec.of({**_VIT_LINEAR, SOFTMAX: ZPLUS})}, tuple(RULES))
#: Attention weights are constant there (CP-LRP).
OF_LRP = CompositeChoice(
    {EPSILON: Spec(), VIT: Spec.of(_VIT_LINEAR)}, tuple(group for group in RULES if group != SOFTMAX)
)


def named_in(config: Mapping[str, Any]) -> Iterator[tuple[str, list[Spec]]]:
    """(name, its composites) of a config's `composites`. Raises UserError that says which is wrong."""
    for name, written in config.items():
        try:
            yield name, every(written)
        except UserError as error:
            raise UserError(f"config key 'composites.{name}': {error}") from None
