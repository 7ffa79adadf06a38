"""The number of forward passes of methods, by their records."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from closelook.jobs.config import RunConfig, configured, defined_options
from closelook.jobs.plan.cells import requests_of
from closelook.lrp_core.methods.record import Method

Chosen = Mapping[str, Mapping[str, Any]]  # chosen options by method, for methods whose options the config leaves open


def forwards(
    config: RunConfig, names: Sequence[str], length: float, chosen: Chosen | None = None, task: str | None = None
) -> float:
    """The number of forward passes that a sample of `length` tokens costs under these methods together.

    Methods of one pass share its forwards. Each pair of rules and explanation takes a backward pass, which counts as
    one forward. If a method's options are not `chosen` yet, the most expensive ones count. `task` decides the
    explanations.
    """
    total = 0.0
    for methods in _by_pass(records(config, names, length, chosen or {})):
        requests = [(method, request) for method in methods for request in requests_of(config, method, task=task)]
        backward_passes = {(method.rules, request.explanation) for method, request in requests}
        numbers = len({explanation for _, explanation in backward_passes})
        total += methods[0].cost(length, numbers) + sum(rules is not None for rules, _ in backward_passes)
    return total


def _by_pass(methods: Iterable[Method]) -> list[list[Method]]:
    """The methods in groups of one pass each."""
    passes: dict[str, list[Method]] = {}
    for method in methods:
        passes.setdefault(method.pass_name, []).append(method)
    return list(passes.values())


def records(config: RunConfig, names: Sequence[str], length: float, chosen: Chosen) -> list[Method]:
    """The methods `names` with their chosen options or, if these are open, with the most expensive ones."""
    known, entries = configured(config), {entry.name: entry for entry in config.every_method()}
    dearest = []
    for name in names:
        options = [chosen[name]] if name in chosen else defined_options(known[name], entries[name], None)
        variants = (known[name].configured(**values) for values in options)
        dearest.append(max(variants, key=lambda method: method.cost(length)))
    return dearest
