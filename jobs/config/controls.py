"""The block `controls:`, tests of whether relevance depends on the model at all."""

from __future__ import annotations

from jobs.config.base import AtLeast1, Explanation, Names, PartOfRun


class ControlsConfig(PartOfRun):
    """Controls of methods, at the first precision of each model and task. Planted methods are controlled too."""

    tasks: Names | None = None
    """tasks with controls; null: all"""
    models: Names | None = None
    """models with controls, by name; null: all"""
    methods: Names | None = None
    """methods that are controlled; null: all"""
    explanation: Explanation | None = None
    """explanation that is controlled; null: the first of the run's that every sample has"""
    samples: AtLeast1 = 30
    """samples of a task, drawn at random, the same for all methods"""
    depths: AtLeast1 | None = None
    """number of depths to which weights are randomised, spread evenly from the head alone to all; null: every depth"""
