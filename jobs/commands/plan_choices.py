"""What choosing among options will cost: forwards of explanations and of curves, before equal states merge."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from jobs.commands.plan_basis import Basis, Subject, capabilities_of
from jobs.commands.plan_curves import seconds_of
from jobs.config import RunConfig, SelectConfig
from jobs.methods import configured, defined_options
from jobs.plan.choices import Choice, curve_settings
from lrp_core.method import Method


@dataclass(frozen=True)
class ChoiceCost:
    """A method's choice for a model, task and precision."""

    made: bool
    trials: int
    forwards: int  # of a sample, for what is not made; equal states of several trials count each time
    seconds: float | None  # on one device; None when nothing is known


def undecided(choice: Choice) -> str:
    """What stands in for the cells of a method before its options are chosen."""
    return f"one of {len(choice.options)} sets of options is to be chosen; run `closelook select`"


def choice_costs(basis: Basis) -> Iterator[ChoiceCost]:
    """Costs by model, task, precision and method."""
    config, known = basis.config, configured(basis.config)
    for subject in basis.subjects():
        model, task, planned = subject.model, subject.task, subject.planned
        made = {
            (c.artifact.task, c.artifact.dtype, c.artifact.method): c.chosen is not None
            for c in (planned.choices if planned else ())
        }
        lengths = _lengths(config, subject)
        for entry in config.methods_of(model):
            options = defined_options(known[entry.name], entry, capabilities_of(model, planned))
            trials = [known[entry.name].configured(**one) for one in options]
            for dtype in model.dtypes_for(task) if len(trials) > 1 else ():
                done = made.get((task, dtype, entry.name), False)
                forwards = _forwards(config, trials, lengths) * (not done)
                tokens = int((forwards * lengths).sum())
                seconds = seconds_of(config, model, dtype, tokens, basis.measured)
                yield ChoiceCost(done, len(trials), int(forwards.sum()), seconds)


def _forwards(config: RunConfig, trials: list[Method], lengths: np.ndarray) -> np.ndarray:
    """The forwards of each sample [N]: one variant of each trial, and both of its curves, which share their ends."""
    steps = np.minimum(lengths, curve_settings(config).steps)
    explained = [[trial.cost(length) + (trial.rules is not None) for trial in trials] for length in lengths.tolist()]
    return np.array(explained).reshape(len(lengths), -1).sum(axis=1) + 2 + 2 * len(trials) * (steps - 1)


def _lengths(config: RunConfig, subject: Subject) -> np.ndarray:
    """Tokens of each sample that options are tried on."""
    select, inputs = config.select or SelectConfig(), subject.inputs
    if inputs is not None:
        return inputs.lengths[inputs.subset(select.samples, select.draw)]
    samples, length = config.task(subject.task).published
    return np.full(min(samples, config.tasks[subject.task].limit or samples, select.samples), length)
