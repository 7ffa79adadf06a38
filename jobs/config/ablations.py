"""The block `ablations:`, answers after prompts without some of their sources, and methods judged by them."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from jobs.config.base import AtLeast0, AtLeast1, Names, PartOfRun

AblationWay = Literal["remove", "cut", "mask", "zero", "delete"]


class AblationsConfig(PartOfRun):
    """Answers without some of their sources, at the first precision of each model and task that explains answers."""

    tasks: Names | None = None
    """null: all that explain whole answers"""
    models: Names | None = None
    """by name; null: all"""
    methods: Names | None = None
    """null: all that say something of an answer"""
    ways: tuple[AblationWay, ...] = Field(default=("remove",), min_length=1)
    """How a unit goes: the prompt is written again without it (remove), its keys are hidden from every query in every
    layer and positions stay (cut), a mask token takes the place of each of its tokens (mask, masked encoders), their
    embeddings are zero (zero), or their ids are deleted (delete)."""
    samples: AtLeast1 | None = 100
    """of a task, drawn at random, the same for all methods; null: all"""
    fit: AtLeast1 = 128
    """masks that methods may be fitted to, of prompts with many units; smaller budgets are the first of them"""
    judge: AtLeast1 = 64
    """masks that methods are judged by"""
    shapley: AtLeast0 = 128
    """sets of units for Shapley values, which are run where a method asks for them"""
    shown: AtLeast0 = 12
    """samples of a task whose answer is explained sentence by sentence, which the report shows"""
    pool: Literal["sum", "mean", "max"] = "sum"
    """how the relevance of a unit is made of that of its tokens"""
