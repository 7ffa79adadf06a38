"""Train the demo models: `python -m tools.demo_models.train` rewrites the shipped ones, in over an hour on two cores.

Masked models learn to predict the word in the slot and a few other tokens. Causal models learn to predict every next
token, with most weight on the one in the slot. Everything is seeded; each model's card has the numbers of its training.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, PreTrainedModel, PreTrainedTokenizerFast

from closelook.evaluation.benchmark.demo import (
    ANSWERING,
    EVERY,
    HEADS,
    MODELS,
    READING,
    SEEDS,
    TASKS,
    VISION,
    model_dir,
)
from closelook.evaluation.benchmark.demo.grammar import Draw, draws
from closelook.lrp_core.opening.model import view_of
from closelook.lrp_core.records.types import Batch
from closelook.lrp_core.views.view import ModelView
from tools.demo_models import answering, fitting, heads, reading, vision
from tools.demo_models.tokenizer import build

_MAX_LENGTH = 128
_LAYERS, _WIDTH = 4, 64
_LLAMA = {"num_key_value_heads": 2, "intermediate_size": 3 * _WIDTH, "tie_word_embeddings": False}


@dataclass(frozen=True)
class WordsRecipe(fitting.Recipe):
    """The hyperparameters of a language model."""

    batch: int = 32
    pool: int = 15_000
    tokenizer_seed: int = 0  # of the samples that the tokenizer is trained on
    other_weight: float = 0.1  # weight of the loss on tokens outside the slot
    noise: float = 0.03  # share of the other tokens that a masked model must restore


def _family(name: str) -> str:
    """The family of a demo model: its name without "-seedN"."""
    return name.partition("-seed")[0]


def new_model(name: str, tokenizer: PreTrainedTokenizerFast) -> PreTrainedModel:
    """A language model with random weights: four layers of width 64."""
    more: dict[str, Any] = _LLAMA if name == "llama" else {}
    config = fitting.config_of(_family(name), _LAYERS, _WIDTH, **fitting.words_of(tokenizer), **more)
    kind = AutoModelForCausalLM if tokenizer.mask_token is None else AutoModelForMaskedLM
    model: PreTrainedModel = kind.from_config(config)
    return model


def loss_of(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    several: list[Draw],
    recipe: WordsRecipe,
    generator: torch.Generator,
) -> Tensor:
    """The mean cross entropy in the slots, plus `other_weight` times its mean over other tokens.

    For masked models, these are the tokens that are hidden at random; for causal models, all tokens.
    """
    completed = [draw.completed() for draw in several]
    inputs = tokenizer([filled.text for filled in completed], padding=True, return_tensors="pt")
    ids, mask = inputs["input_ids"], inputs["attention_mask"]  # [B, T]
    targets = [inputs.char_to_token(row, filled.word[1] - 1) for row, filled in enumerate(completed)]
    slots = torch.tensor(targets)[:, None]  # [B, 1]
    if tokenizer.mask_token is None:
        logits = model(input_ids=ids, attention_mask=mask).logits[:, :-1]
        labels, learnt, slots = ids[:, 1:], mask[:, 1:].bool(), slots - 1
    else:
        learnt = (torch.rand(ids.shape, generator=generator) < recipe.noise) & mask.bool()
        learnt.scatter_(1, slots, True)
        hidden = ids.masked_fill(learnt, tokenizer.mask_token_id)
        logits, labels = model(input_ids=hidden, attention_mask=mask).logits, ids
    losses = torch.nn.functional.cross_entropy(logits.transpose(1, 2), labels, reduction="none")  # [B, T]
    others = learnt.scatter(1, slots, False)
    return losses.gather(1, slots).mean() + recipe.other_weight * losses[others].mean()


def _beats_foil(view: ModelView, rows: Sequence[fitting.Row]) -> Tensor:
    """For each sample, whether the target has a larger logit than the foil."""
    batch = Batch.collate(rows, view.pad_id)
    target, foil = view.logits(view.hidden(batch), batch).unbind(-1)
    return target > foil


accuracy = partial(fitting.share_right, right=_beats_foil)


def train(name: str, out: Path, recipe: WordsRecipe) -> dict[str, float]:
    """Trains one model, writes it with its tokenizer and card into `out`, and returns its accuracy by task."""
    meaning = "Share of {n:,} draws a task (seed {seed}) not seen in training whose target has a larger logit than its"
    card = fitting.Card("Accuracy", f"{meaning} foil:")
    read = (islice(draws(task, recipe.tokenizer_seed, "train"), 4000) for task in TASKS)
    texts = [draw.completed().text for draw in chain.from_iterable(read)]
    tokenizer = build(_family(name), texts, _MAX_LENGTH)
    torch.manual_seed(recipe.seed)
    model = new_model(name, tokenizer)
    pools = {task: list(islice(draws(task, recipe.seed, "train"), recipe.pool)) for task in TASKS}
    generator = torch.Generator().manual_seed(recipe.seed)

    def losses() -> dict[str, Tensor]:
        by_task = {}
        for task in TASKS:
            several = fitting.sampled(pools[task], recipe, generator)
            by_task[task] = loss_of(model, tokenizer, several, recipe, generator)
        return by_task

    def measure(trained: PreTrainedModel) -> dict[str, float]:
        view = view_of(trained)
        return {task: accuracy(view, tokenizer, task, recipe.evaluated, recipe.seed + 1) for task in TASKS}

    return fitting.Training(name, model, recipe, losses, measure, card, tokenizer).run(out)


def training_of(name: str) -> tuple[Callable[[str, Path, Any], dict[str, float]], fitting.Recipe]:
    """The function that trains the named demo model, and the model's hyperparameters."""
    if name in MODELS or name in SEEDS:
        return train, WordsRecipe(seed=SEEDS.get(name, WordsRecipe.seed))
    if name in ANSWERING:
        return answering.train, answering.AnswerRecipe()
    if name in READING:
        return reading.train, reading.ReadingRecipe()
    if name in VISION:
        return vision.train, vision.SHAPES
    return heads.train, heads.HeadRecipe(heads.STEPS[HEADS[name]])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--models", nargs="+", choices=EVERY, default=list(EVERY))
    parser.add_argument("--out", type=Path, help="folder for the models (default: the shipped ones are rewritten)")
    parser.add_argument("--steps", type=int, help="default: the recipe's own")
    parser.add_argument("--seed", type=int, help="default: the recipe's own")
    chosen = parser.parse_args()
    for name in chosen.models:
        out = chosen.out / name if chosen.out else model_dir(name)
        trained, recipe = training_of(name)
        seed = recipe.seed if chosen.seed is None else chosen.seed
        scores = trained(name, out, replace(recipe, seed=seed, steps=chosen.steps or recipe.steps))
        print(f"{name} -> {out}  " + "  ".join(f"{task} {score:.3f}" for task, score in scores.items()))


if __name__ == "__main__":
    main()
