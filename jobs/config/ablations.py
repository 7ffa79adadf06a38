"""The block `ablations:`: answers after prompts without some of their sources, by which methods are judged."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from jobs.config.base import AtLeast0, AtLeast1, Names, PartOfRun

AblationWay = Literal["remove", "cut", "zero", "delete"]


class AblationsConfig(PartOfRun):
    """Ablation of sources, at the first precision of each model and task that explains whole answers."""

    tasks: Names | None = None
    """tasks whose sources are ablated; null: all that explain whole answers"""
    models: Names | None = None
    """models that are run on ablated prompts, by name; null: all"""
    methods: Names | None = None
    """methods that are judged; null: all that explain answers"""
    ways: tuple[AblationWay, ...] = Field(default=("remove",), min_length=1)
    """How a unit is ablated: the prompt is written again without it (remove), its keys are hidden from every query in
    every layer while positions stay (cut), the embeddings of its tokens are set to 0 (zero), or its tokens are deleted
    (delete)."""
    samples: AtLeast1 | None = 100
    """samples of a task, drawn at random, the same for all methods; null: all"""
    fit: AtLeast1 = 128
    """most ablated prompts of a sample that methods are fitted to; smaller budgets take the first of them"""
    judge: AtLeast1 = 64
    """ablated prompts of a sample by which methods are judged"""
    shapley: AtLeast0 = 128
    """sets of units that are ablated for Shapley values, if a method computes them"""
    shown: AtLeast0 = 12
    """samples of a task whose answers the report shows, explained sentence by sentence"""
    pool: Literal["sum", "mean", "max"] = "sum"
    """how the relevance of a unit's tokens is pooled into that of the unit"""
