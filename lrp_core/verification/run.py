"""Runs all checks of a model, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from time import perf_counter

import torch

from closelook.lrp_core.device.memory import peak_memory
from closelook.lrp_core.methods.record import Method
from closelook.lrp_core.records.types import UnsupportedMethod
from closelook.lrp_core.verification import agreement, rules
from closelook.lrp_core.verification.record import Cost, Finding, Verification
from closelook.lrp_core.verification.samples import random_rows
from closelook.lrp_core.verification.trial import Tell, Trial, copies_of
from closelook.lrp_core.views.guard import undisturbed
from closelook.lrp_core.views.view import ModelView


def silent(unit: str, done: int, total: int) -> None:
    """A callback for progress that does nothing."""


def verify_view(
    view: ModelView,
    methods: Mapping[str, Method],
    fresh: Callable[[], ModelView] | None = None,
    tell: Tell = silent,
) -> Verification:
    """Run all checks of a model, with those of `methods` that apply to it, and measure the cost of each method.

    `fresh` returns further views of the same model in memory of their own; by default they are copies of this one.
    `tell` is called with progress. Raises UnsupportedMethod if none of the methods applies.
    """
    applying = {name: method for name, method in methods.items() if method.applies(view.family.capabilities)}
    if not applying:
        raise UnsupportedMethod(
            f"there is no relevance of tokens to verify: none of {', '.join(methods)} applies to {view.family.title}"
        )
    trial = Trial(view, applying, random_rows(view), fresh or copies_of(view), tell)
    with torch.inference_mode(False), undisturbed(view):
        findings = tuple(_findings(trial))
        costs = dict(_costs(trial))
    device = str(view.device)
    if view.device.type == "cuda":
        device = torch.cuda.get_device_name(view.device)
    dtype = str(view.dtype).removeprefix("torch.")
    return Verification(type(view.model).__name__, view.family.name, view.kind.name, dtype, device, findings, costs)


def _findings(trial: Trial) -> Iterator[Finding]:
    """Yield the findings of all checks. The order of methods is checked first, on a model that no method has run."""
    in_order = agreement.check_order(trial)
    yield agreement.check_stock(trial)
    yield agreement.check_told(trial)
    yield agreement.check_padded(trial)
    yield in_order
    yield rules.check_sums(trial)
    yield rules.check_layers(trial)
    yield rules.check_twins(trial)
    yield from rules.check_derivatives(trial)


def _costs(trial: Trial) -> Iterator[tuple[str, Cost]]:
    """Yield (method, its cost on the longest sample)."""
    longest = max(trial.rows, key=lambda row: len(row["input_ids"]))
    batch = trial.batch([longest])
    for name, method in trial.with_progress("methods, measured"):
        begun = perf_counter()
        with peak_memory(trial.view.device) as peak:
            trial.explained(method, batch)
        yield name, Cost(peak.peak_bytes, perf_counter() - begun)
