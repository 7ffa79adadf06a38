"""Training of a demo model: its recipe, its fresh configuration, the steps down the loss, and the card it gets."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor
from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerFast

from evaluation.benchmark.demo import generate
from evaluation.benchmark.views import tokenise
from lrp_core.readers.readout import rows_for
from lrp_core.records.types import Batch
from lrp_core.views.view import ModelView

HEADS = 4  # of attention, in every demo model
TOGETHER = 250  # samples that are measured at once
_DROPOUTS = {
    **dict.fromkeys(("bert", "megatron-bert", "vit"), ("hidden_dropout_prob", "attention_probs_dropout_prob")),
    "gpt2": ("resid_pdrop", "embd_pdrop", "attn_pdrop"),
    "llama": (),
}
_CARD = """---
license: apache-2.0
library_name: transformers
{language}---

# Closelook demo: {kind}

A tiny {kind} ({layers} layers, width {config.hidden_size}, {heads}, {parameters:,} parameters) trained on {card.about}

## Training

| | |
|---|---|
| command | `{command}` |
| data | {data} |
| steps | {recipe.steps:,} of {recipe.batch} samples a task |
| optimiser | AdamW (betas 0.9, 0.98), one cycle to {recipe.learning_rate:g}, weight decay 0.01, no dropout |
| took | {wall_s:.0f} s on a CPU |

## {card.title}

{meaning}

| task | {card.title} |
|---|---|
{scores}
"""
_LANGUAGE = """the generated language of
`evaluation/benchmark/demo`. It exists so that `closelook run` has something real to explain without a network or a GPU;
it knows nothing of English beyond that language."""

Sample = TypeVar("Sample")
Losses = Callable[[], Mapping[str, Tensor]]


@dataclass(frozen=True)
class Recipe:
    """Hyperparameters of a training; `pool` draws a task are prepared once and sampled from."""

    steps: int = 1000
    seed: int = 0
    batch: int = 64  # samples a task and step
    pool: int = 20_000
    learning_rate: float = 2e-3
    evaluated: int = 1000  # unseen draws a task for the card


@dataclass(frozen=True)
class Card:
    """The sentences of a model card that the training does not know by itself."""

    title: str  # of the measure
    meaning: str  # of the measure; {n} is how many draws are measured, {seed} theirs
    form: str = ".1%"  # in which scores are written
    about: str = _LANGUAGE  # the data in words
    language: str = "en"
    command: str = ""  # empty: that of the demo's script
    data: str = ""  # empty: draws of the demo language
    layers: str = ""  # empty: their number
    started: float = field(default_factory=time.monotonic)


def config_of(family: str, layers: int, width: int, **settings: Any) -> PreTrainedConfig:
    """The configuration of a fresh model without dropout, with larger initial weights than usual."""
    settings |= dict.fromkeys(_DROPOUTS[family], 0.0)
    settings |= {"hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": HEADS}
    if family in ("bert", "megatron-bert", "vit"):
        settings["intermediate_size"] = 4 * width
    return AutoConfig.for_model(family, initializer_range=0.06, **settings)


def words_of(tokenizer: PreTrainedTokenizerFast) -> dict[str, int]:
    """The settings of a language model's configuration that its tokenizer decides."""
    settings = {"vocab_size": len(tokenizer), "max_position_embeddings": tokenizer.model_max_length}
    for name in ("pad_token_id", "bos_token_id", "eos_token_id"):
        if (token_id := getattr(tokenizer, name)) is not None:
            settings[name] = token_id
    return settings


def sampled(pool: Sequence[Sample], recipe: Recipe, generator: torch.Generator) -> list[Sample]:
    """A batch of the pool, with replacement."""
    chosen = torch.randint(len(pool), (recipe.batch,), generator=generator)
    return [pool[index] for index in chosen.tolist()]


def split(samples: Sequence[Sample]) -> list[Sequence[Sample]]:
    """Parts of the samples, in order, that are measured at once."""
    return [samples[at : at + TOGETHER] for at in range(0, len(samples), TOGETHER)]


@dataclass(frozen=True)
class Training:
    """A fresh model with all that its training needs."""

    name: str
    model: PreTrainedModel  # trained in place
    recipe: Recipe
    losses: Losses  # by task, of a batch that is drawn anew with every call; each step goes down their sum
    measure: Callable[[PreTrainedModel], Mapping[str, float]]  # scores of the trained model, by task
    card: Card
    tokenizer: PreTrainedTokenizerFast | None = None

    def run(self, out: Path) -> dict[str, float]:
        """Train the model, write it with its tokenizer and card into `out`, and return its scores by task."""
        self._descend()
        scores = dict(self.measure(self.model.eval()))
        self.model.save_pretrained(out)
        if self.tokenizer is not None:
            self.tokenizer.save_pretrained(out)
        (out / "README.md").write_text(self._card_text(scores), encoding="utf-8")
        return scores

    def _descend(self) -> None:
        """AdamW under one cycle; prints the losses of every hundredth step."""
        model, recipe = self.model.train(), self.recipe
        optimizer = torch.optim.AdamW(model.parameters(), lr=recipe.learning_rate, betas=(0.9, 0.98), weight_decay=0.01)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, recipe.learning_rate, recipe.steps, pct_start=0.1)
        for step in range(1, recipe.steps + 1):
            by_task = self.losses()
            optimizer.zero_grad()
            torch.stack(list(by_task.values())).sum().backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            if step % 100 == 0 or step == recipe.steps:
                listed = "  ".join(f"{task} {float(loss.detach()):.3f}" for task, loss in by_task.items())
                print(f"{self.name} step {step:5d}  {listed}", flush=True)

    def _card_text(self, scores: Mapping[str, float]) -> str:
        card, recipe, config = self.card, self.recipe, self.model.config
        command = f"python -m tools.demo_models.train --models {self.name} --steps {recipe.steps} --seed {recipe.seed}"
        tasks = ", ".join(scores)
        data = f"{recipe.pool:,} draws a task ({tasks}), seed {recipe.seed}, the training side of the split"
        texts = {"kind": type(self.model).__name__, "command": card.command or command, "data": card.data or data}
        texts["heads"] = f"{config.num_attention_heads} attention heads"
        if self.name == "llama":
            texts["heads"] += f" over {config.num_key_value_heads} key/value heads"
        texts["language"] = card.language and f"language: {card.language}\n"
        texts["layers"] = card.layers or str(config.num_hidden_layers)
        texts["meaning"] = card.meaning.format(n=recipe.evaluated, seed=recipe.seed + 1)
        texts["scores"] = "\n".join(f"| {task} | {score:{card.form}} |" for task, score in scores.items())
        numbers = {"parameters": self.model.num_parameters(), "wall_s": time.monotonic() - card.started}
        return _CARD.format(card=card, recipe=recipe, config=config, **texts, **numbers)


def share_right(
    view: ModelView,
    tokenizer: PreTrainedTokenizerFast,
    task: str,
    n: int,
    seed: int,
    right: Callable[[ModelView, Batch], Tensor],
) -> float:
    """Share of `n` draws not seen in training of which `right` says so, a bool for each of a batch [B].

    Raises RuntimeError where a draw does not fit the tokenizer.
    """
    rows, rejects = tokenise(generate(task, n, seed), tokenizer, kind=view.kind, max_length=view.max_length)
    if rejects:
        raise RuntimeError(f"{task}: {len(rejects)} draws do not fit the tokenizer: {rejects[0]['reason']}")
    batches = [Batch.collate(part, view.pad_id) for part in split(rows_for(view, rows))]
    return sum(int(right(view, batch).sum()) for batch in batches) / n
