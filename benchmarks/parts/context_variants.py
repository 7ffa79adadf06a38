"""The computations that `closelook bench context` times.

These are explanations of one sample, forward passes with one token left out, and bare passes of the model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from closelook.jobs.geometries import Geometry
from closelook.lrp_core import METHODS, Batch, ModelView
from closelook.lrp_core.records.types import UserError

TIMED_FORWARDS, TIMED_STEPS = 8, 2  # forward passes of a perturbation and steps of a path that are timed
ATTNLRP, ROLLOUT, PATH = "attnlrp", "grad_attention_rollout", "integrated_gradients"
FORWARD, CHECKPOINT, PERTURBATION = "forward", "attnlrp, checkpointing", "perturbation"
KERNELS = ("sdpa", "eager")  # of attention


@dataclass(frozen=True)
class Subject:
    """A model to measure. `open` opens it with an attention kernel.

    `columns` identify it in the results, by `model` or by `geometry`.
    """

    columns: dict[str, str]
    open: Callable[[str], ModelView]
    geometry: Geometry | None = None  # set for random weights: such a model can be built with more layers


def lengths_that_fit(name: str, view: ModelView, lengths: Sequence[int]) -> list[int]:
    """Those of the `lengths` that the model can read.

    Raises UserError if there is none, and for models of images and encoder-decoders.
    """
    if view.kind.images or view.family.decoder is not None:
        raise UserError(f"{name}: only models that read one text can be measured here, unlike {view.family.title}")
    allowed = [length for length in lengths if length <= view.max_length]
    if not allowed:
        raise UserError(f"{name} reads at most {view.max_length} tokens: give shorter --lengths")
    return allowed


def opened(model_id: str, dtype: str, device: str, kernel: str) -> ModelView:
    """The view of a model, whose `model_id` is written as in a config."""
    from closelook.jobs.config import ModelConfig
    from closelook.jobs.plan.models import open_view, resolve

    config = ModelConfig.model_validate({"name": "model", "id": model_id, "attn": kernel})
    return open_view(resolve(config), dtype, device)


@dataclass(frozen=True)
class TimedVariant:
    """A computation to time; `run` is either the whole of it or a part, from which the whole duration is estimated."""

    run: Callable[[], object]
    full_cost_ratio: float = 1.0  # duration of the whole computation / duration of `run`
    memory_probe: Callable[[], object] | None = None  # has the peak memory of the whole computation; None: `run` has

    @property
    def measured(self) -> Callable[[], object]:
        return self.memory_probe or self.run


def variants_of(view: ModelView, batch: Batch, full: bool = False) -> dict[str, TimedVariant]:
    """The computations that the model supports, by name. With `full`, each is run as a whole."""
    capabilities, length = view.family.capabilities, batch.input_ids.shape[1]
    forward = partial(forwards, view, batch, 1)
    variants = {FORWARD: TimedVariant(forward)}
    for name in (ATTNLRP, ROLLOUT):
        if not METHODS[name].missing(capabilities):
            variants[name] = TimedVariant(partial(explain, name, view, batch))
    if ATTNLRP in variants:
        variants[CHECKPOINT] = TimedVariant(partial(explain, ATTNLRP, view, batch, checkpoint=True))
    path = METHODS[PATH]
    part = path if full else path.configured(steps=TIMED_STEPS)
    point_by_point = partial(explain, PATH, view, batch, token_budget=length)
    ratio = path.cost(length) / part.cost(length)
    timed = partial(point_by_point, steps=part.values["steps"])
    variants[PATH] = TimedVariant(timed, ratio, partial(point_by_point, steps=1))
    count = int(METHODS["occlusion"].cost(length))
    timed_count = count if full else min(count, TIMED_FORWARDS)
    variants[PERTURBATION] = TimedVariant(partial(forwards, view, batch, timed_count), count / timed_count, forward)
    return variants


def explain(name: str, view: ModelView, batch: Batch, **settings: Any) -> Tensor:
    """The relevance [1, T] of tokens for the target's logit."""
    method = METHODS[name]
    return method(view, batch, explanation="target", embedding=method.embeddings[-1], **settings).tokens


@torch.no_grad()
def forwards(view: ModelView, batch: Batch, count: int) -> None:
    """Computes `count` forward passes one after the other: of the whole text, then with one token each left out."""
    token = view.token_embedding(batch.input_ids)
    for index in range(count):
        perturbed = token.clone()
        perturbed[:, max(0, index - 1)] *= index == 0
        view.logits(view.hidden(batch, perturbed), batch).cpu()


def bare(view: ModelView, batch: Batch) -> Tensor:
    """The gradient of the target's logit at the token embeddings, by a forward and backward pass without our rules."""
    with torch.enable_grad():
        token = view.token_embedding(batch.input_ids).detach().requires_grad_()
        logits = view.logits(view.hidden(batch, token), batch)
        (gradient,) = torch.autograd.grad(logits[:, 0].sum(), token)
    return gradient
