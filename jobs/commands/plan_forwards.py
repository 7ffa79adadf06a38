"""Forwards that the passes of methods cost, as their records say: of what is predicted, and of every label."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jobs.config import RunConfig
from jobs.methods import configured, defined_options
from jobs.plan.cells import requests_of
from lrp_core.labels import AT_ONCE
from lrp_core.method import Method

Chosen = Mapping[str, Mapping[str, Any]]  # options by method, where the config leaves them open


def forwards(config: RunConfig, names: Sequence[str], length: float, chosen: Chosen | None = None) -> float:
    """What the passes of these methods cost together, in forwards of samples of `length` tokens.

    A backward to the inputs costs about one. Options that are not `chosen` yet count with the dearest of their values.
    """
    passes: dict[str, list[Method]] = {}
    for method in records(config, names, length, chosen or {}):
        passes.setdefault(method.pass_name, []).append(method)
    total = 0.0
    for alike in passes.values():
        asked = {(method.rules, request.explanation) for method in alike for request in requests_of(config, method)}
        numbers = len({explanation for _, explanation in asked})
        total += alike[0].cost(length, numbers) + sum(rules is not None for rules, _ in asked)
    return total


def forwards_of_labels(methods: Sequence[Method], labels: int, length: float) -> float:
    """What the passes of `methods` cost for every label of a sample of so many tokens, in forwards."""
    passes: dict[str, list[Method]] = {}
    for method in methods:
        passes.setdefault(method.pass_name, []).append(method)
    total = 0.0
    for alike in passes.values():
        times = -(-labels // AT_ONCE) if alike[0].shares_forwards else labels
        backwards = len({method.rules for method in alike if method.rules is not None})
        total += times * alike[0].cost(length) + labels * backwards
    return total


def records(config: RunConfig, names: Sequence[str], length: float, chosen: Chosen) -> list[Method]:
    """Methods with their chosen options or, where these are open, the dearest ones."""
    known, entries = configured(config), {entry.name: entry for entry in config.every_method()}
    dearest = []
    for name in names:
        options = [chosen[name]] if name in chosen else defined_options(known[name], entries[name], None)
        tried = (known[name].configured(**values) for values in options)
        dearest.append(max(tried, key=lambda method: method.cost(length)))
    return dearest
