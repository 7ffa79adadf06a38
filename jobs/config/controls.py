"""The block `controls:`, tests that explanations are about the model at all."""

from __future__ import annotations

from jobs.config.base import AtLeast1, Explanation, Names, PartOfRun


class ControlsConfig(PartOfRun):
    """Controls of methods, at the first precision of each model and task. Planted methods are always among them."""

    tasks: Names | None = None
    """null: all"""
    models: Names | None = None
    """by name; null: all"""
    methods: Names | None = None
    """null: all"""
    explanation: Explanation | None = None
    """null: the first of the run's that every sample has"""
    samples: AtLeast1 = 30
    """of a task, drawn at random, the same for all methods"""
    depths: AtLeast1 | None = None
    """at how many depths of randomised weights, evenly from the head to the embeddings, which always are; null: all"""
