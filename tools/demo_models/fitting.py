"""Training of a demo model: its hyperparameters, its configuration, the training loop, and its model card."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor
from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerFast

from closelook.evaluation.benchmark.demo import generate
from closelook.evaluation.benchmark.views import tokenise
from closelook.lrp_core.readers.readout import rows_for
from closelook.lrp_core.views.view import ModelView

HEADS = 4  # of attention, in every demo model
TOGETHER = 250  # samples of a batch when a model is measured
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
| took | {wall_s:.0f} s on a CPU with {recipe.threads} threads (other numbers of threads give other weights) |

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
Row = Mapping[str, Any]
Losses = Callable[[], Mapping[str, Tensor]]


@dataclass(frozen=True)
class Recipe:
    """The hyperparameters of a training."""

    steps: int = 1000
    seed: int = 0
    batch: int = 64  # samples of each task in each step
    pool: int = 20_000  # training samples of each task; batches are drawn from them
    learning_rate: float = 2e-3
    evaluated: int = 1000  # test samples of each task, for the card
    threads: int = 2  # torch threads: trained weights depend on their number


@dataclass(frozen=True)
class Card:
    """The texts of a model card that `Training` cannot fill in by itself."""

    title: str  # the name of the measure
    meaning: str  # what the measure says; {n} stands for the number of test samples, {seed} for their seed
    form: str = ".1%"  # the format of scores
    about: str = _LANGUAGE  # a description of the data
    language: str = "en"
    command: str = ""  # the command that trains the model; if empty, that of tools.demo_models.train
    data: str = ""  # the training data; if empty, samples of the demo language
    layers: str = ""  # the number of layers in words; if empty, in digits
    started: float = field(default_factory=time.monotonic)


def config_of(family: str, layers: int, width: int, **settings: Any) -> PreTrainedConfig:
    """The configuration of a new model without dropout, with larger initial weights than usual."""
    settings |= dict.fromkeys(_DROPOUTS[family], 0.0)
    settings |= {"hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": HEADS}
    if family in ("bert", "megatron-bert", "vit"):
        settings["intermediate_size"] = 4 * width
    return AutoConfig.for_model(family, initializer_range=0.06, **settings)


def words_of(tokenizer: PreTrainedTokenizerFast) -> dict[str, int]:
    """Those settings of a language model's configuration that follow from its tokenizer."""
    settings = {"vocab_size": len(tokenizer), "max_position_embeddings": tokenizer.model_max_length}
    for name in ("pad_token_id", "bos_token_id", "eos_token_id"):
        if (token_id := getattr(tokenizer, name)) is not None:
            settings[name] = token_id
    return settings


def sampled(pool: Sequence[Sample], recipe: Recipe, generator: torch.Generator) -> list[Sample]:
    """A random batch of samples from the pool, drawn with replacement."""
    chosen = torch.randint(len(pool), (recipe.batch,), generator=generator)
    return [pool[index] for index in chosen.tolist()]


def split(samples: Sequence[Sample]) -> list[Sequence[Sample]]:
    """Divides samples into batches of TOGETHER, in order."""
    return [samples[at : at + TOGETHER] for at in range(0, len(samples), TOGETHER)]


@dataclass(frozen=True)
class Training:
    """A new model, with all that its training needs."""

    name: str
    model: PreTrainedModel  # trained in place
    recipe: Recipe
    losses: Losses  # draws a batch and returns its loss by task; training lowers their sum
    measure: Callable[[PreTrainedModel], Mapping[str, float]]  # scores of the trained model, by task
    card: Card
    tokenizer: PreTrainedTokenizerFast | None = None

    def run(self, out: Path) -> dict[str, float]:
        """Trains the model, writes it with its tokenizer and card into `out`, and returns its scores by task."""
        with _threads(self.recipe.threads):
            self._descend()
            scores = dict(self.measure(self.model.eval()))
        self.model.save_pretrained(out)
        if self.tokenizer is not None:
            self.tokenizer.save_pretrained(out)
        (out / "README.md").write_text(self._card_text(scores), encoding="utf-8")
        return scores

    def _descend(self) -> None:
        """Trains by AdamW with a one-cycle learning rate, and prints the losses of every hundredth step."""
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
        """The model card as Markdown."""
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


@contextmanager
def _threads(count: int) -> Iterator[None]:
    """A context in which torch computes with `count` threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@torch.no_grad()
def share_right(
    view: ModelView,
    tokenizer: PreTrainedTokenizerFast,
    task: str,
    n: int,
    seed: int,
    right: Callable[[ModelView, Sequence[Row]], Tensor],
    **words: Any,
) -> float:
    """The share of `n` test samples for which `right` is true; it returns a bool for each of the rows that it gets.

    `words` are passed on to `tokenise`. Raises RuntimeError if the tokenizer cannot represent a sample.
    """
    samples = generate(task, n, seed)
    rows, rejects = tokenise(samples, tokenizer, kind=view.kind, max_length=view.max_length, **words)
    if rejects:
        raise RuntimeError(f"{task}: {len(rejects)} draws do not fit the tokenizer: {rejects[0]['reason']}")
    return sum(int(right(view, part).sum()) for part in split(rows_for(view, rows))) / n
