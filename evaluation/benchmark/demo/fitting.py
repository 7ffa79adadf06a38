"""What the training of every demo model has in common: a recipe, and the steps down the loss."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel


@dataclass(frozen=True)
class Recipe:
    """How a model is trained; `pool` draws a task are prepared once and sampled from."""

    steps: int = 1000
    seed: int = 0
    batch: int = 64  # samples a task and step
    pool: int = 20_000
    learning_rate: float = 2e-3
    evaluated: int = 1000  # unseen draws a task for the card


def fit(name: str, model: PreTrainedModel, recipe: Recipe, losses: Callable[[], Mapping[str, Tensor]]) -> None:
    """Train the model in place, by AdamW under one cycle; each step goes down the sum of the `losses`, by task.

    `losses` draws its batch anew with every call. Every hundredth step is told.
    """
    optimizer = torch.optim.AdamW(model.parameters(), lr=recipe.learning_rate, betas=(0.9, 0.98), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, recipe.learning_rate, recipe.steps, pct_start=0.1)
    for step in range(1, recipe.steps + 1):
        by_task = losses()
        optimizer.zero_grad()
        torch.stack(list(by_task.values())).sum().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 100 == 0 or step == recipe.steps:
            told = "  ".join(f"{task} {float(loss.detach()):.3f}" for task, loss in by_task.items())
            print(f"{name} step {step:5d}  {told}", flush=True)
