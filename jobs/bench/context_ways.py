"""What `closelook bench context` times: explanations of one sample, forwards without a token, and bare passes."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from jobs.bench.samples import alone, random_row
from jobs.plan.geometries import Geometry
from lrp_core import METHODS, Batch, ModelView, random_model
from lrp_core.types import UserError

TIMED_FORWARDS, TIMED_STEPS = 8, 2  # of a perturbation, of a path
ATTNLRP, ROLLOUT, PATH = "attnlrp", "grad_attention_rollout", "integrated_gradients"
FORWARD, CHECKPOINT, PERTURBATION = "forward", "attnlrp, checkpointing", "perturbation"
KERNELS = ("sdpa", "eager")  # of attention


@dataclass(frozen=True)
class Subject:
    """A model under its name in the results, `model` or `geometry`, opened with a kernel of attention."""

    columns: Mapping[str, str]
    open: Callable[[str], ModelView]
    geometry: Geometry | None = None  # whose layers can be counted up

    @property
    def name(self) -> str:
        (name,) = self.columns.values()
        return name

    def lengths(self, view: ModelView, wanted: Sequence[int]) -> list[int]:
        """The lengths that the model can hold. Raises UserError for none, and for a model of no text, or of two."""
        if view.kind.images or view.family.decoder is not None:
            raise UserError(
                f"{self.name}: what grows here is the one text that a model reads, unlike {view.family.title}"
            )
        allowed = [length for length in wanted if length <= view.max_length]
        if not allowed:
            raise UserError(f"{self.name} holds {view.max_length} tokens: give --lengths that fit")
        return allowed


def opened(model_id: str, dtype: str, device: str, kernel: str = KERNELS[0]) -> ModelView:
    """A model as a config would name it."""
    from jobs.config import ModelConfig
    from jobs.plan.models import open_view, resolve

    config = ModelConfig.model_validate({"name": "model", "id": model_id, "attn": kernel})
    return open_view(resolve(config), dtype, device)


def drawn(geometry: Geometry, dtype: str, device: str, kernel: str = KERNELS[0]) -> ModelView:
    """Random weights of a geometry."""
    return random_model(geometry.config(), dtype=dtype, attn=kernel, device=device)


@dataclass(frozen=True)
class Way:
    """What is timed, how many times as long the whole takes, and what of it holds as many bytes as the whole."""

    run: Callable[[], object]
    whole: float = 1.0
    least: Callable[[], object] | None = None  # None: all of it

    @property
    def measured(self) -> Callable[[], object]:
        return self.least or self.run


def ways_of(view: ModelView, batch: Batch, whole: bool = False) -> dict[str, Way]:
    """The ways that the model has, by name; `whole`: none is told from a part."""
    capabilities, length = view.family.capabilities, batch.input_ids.shape[1]
    ways = {FORWARD: Way(lambda: _forwards(view, batch, 1))}
    for name in (ATTNLRP, ROLLOUT):
        if not METHODS[name].missing(capabilities):
            ways[name] = Way(partial(explain, name, view, batch))
    if ATTNLRP in ways:
        ways[CHECKPOINT] = Way(partial(explain, ATTNLRP, view, batch, checkpoint=True))
    path = METHODS[PATH]
    part = path if whole else path.configured(steps=TIMED_STEPS)
    one_by_one = partial(explain, PATH, view, batch, token_budget=length)
    times = path.cost(length) / part.cost(length)
    ways[PATH] = Way(partial(one_by_one, steps=part.values["steps"]), times, partial(one_by_one, steps=1))
    forwards = int(METHODS["occlusion"].cost(length))
    timed = forwards if whole else min(forwards, TIMED_FORWARDS)
    ways[PERTURBATION] = Way(lambda: _forwards(view, batch, timed), forwards / timed, ways[FORWARD].run)
    return ways


def explain(name: str, view: ModelView, batch: Batch, **settings: Any) -> Tensor:
    """Relevance of tokens [1, T] for the target's logit."""
    return METHODS[name](view, batch, explanation="target", embedding=METHODS[name].embeddings[-1], **settings).tokens


@torch.no_grad()
def _forwards(view: ModelView, batch: Batch, count: int) -> None:
    """So many forwards, one at a time, the first of the whole text and each other without one token."""
    token = view.token_embedding(batch.input_ids)
    for at in range(count):
        moved = token.clone()
        moved[:, max(0, at - 1)] *= at == 0
        view.logits(view.hidden(batch, moved), batch).cpu()


def bare(view: ModelView, batch: Batch) -> Tensor:
    """A forward, and the gradient at the embeddings of tokens; no rule of ours."""
    with torch.enable_grad():
        token = view.token_embedding(batch.input_ids).detach().requires_grad_()
        logits = view.logits(view.hidden(batch, token), batch)
        (gradient,) = torch.autograd.grad(logits[:, 0].sum(), token)
    return gradient


def silent(run: Callable[[], object]) -> Callable[[], None]:
    """`run` without its result, which `interleave` would take for seconds."""

    def silent() -> None:
        run()

    return silent


def sample(view: ModelView, length: int) -> Batch:
    """One sample of so many random tokens."""
    row = random_row(view, length, random.Random(0))
    if view.kind.labels:
        row |= {"position": length - 1 if view.kind.causal else 0, "target_id": 0, "foil_id": None}
    return alone(row).to(view.device)
