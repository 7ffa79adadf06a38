"""Training of the demo's classifiers and its regressor, on generated sentences with labels or scores.

Training is seeded, as that of the other demo models.
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForSequenceClassification, PreTrainedModel, PreTrainedTokenizerFast

from closelook.evaluation.benchmark.demo import HEADS, lexicon
from closelook.evaluation.benchmark.demo.labelled import Judged, judged
from closelook.evaluation.tasks import TASKS
from tools.demo_models import fitting
from tools.demo_models.tokenizer import build

_MAX_LENGTH = 64
_LAYERS, _WIDTH = 3, 48
_BPE_SIZE = 600
_OPINIONS = ("sentiment", "triggers")
_FAMILIES = {"bert": "bert", "gpt2": "gpt2", "megatron": "megatron-bert"}  # transformers' names

STEPS = {"sentiment": 400, "similarity": 600, "brackets": 4000, "triggers": 600}
_ACCURACY = fitting.Card(
    "Accuracy", "Share of {n:,} draws (seed {seed}) not seen in training whose label is predicted:", ".3f"
)
_CARDS = {
    **dict.fromkeys(("sentiment", "brackets", "triggers"), _ACCURACY),
    "similarity": fitting.Card(
        "Pearson r", "Predicted beside true scores of {n:,} draws (seed {seed}) not seen in training:", ".3f"
    ),
}


@dataclass(frozen=True)
class HeadRecipe(fitting.Recipe):
    """The hyperparameters of a classifier or a regressor."""

    hidden: float = 0.15  # share of words without influence on the label that are masked, for masked models of opinions


def train(name: str, out: Path, recipe: HeadRecipe) -> dict[str, float]:
    """Trains one model, writes it with its tokenizer and card into `out`, and returns its accuracy or r, by task."""
    task = HEADS[name]
    card = replace(_CARDS[task], started=time.monotonic())
    draws = list(islice(judged(task, recipe.seed, "train"), recipe.pool))
    texts = list(chain.from_iterable((draw.text, draw.second or "") for draw in draws[:4000]))
    family = "gpt2" if name.startswith("gpt2") else "bert"
    tokenizer = build(family, texts, _MAX_LENGTH, whole=_whole(task), size=_BPE_SIZE)
    torch.manual_seed(recipe.seed)
    model = new_model(name, tokenizer)
    generator, rng = torch.Generator().manual_seed(recipe.seed), random.Random(recipe.seed)

    def losses() -> dict[str, Tensor]:
        batch = fitting.sampled(draws, recipe, generator)
        if tokenizer.mask_token is not None and task in _OPINIONS:
            batch = [_hidden(draw, tokenizer.mask_token, recipe.hidden, rng) for draw in batch]
        return {task: loss_of(model, tokenizer, batch, TASKS[task].labels)}

    def measure(trained: PreTrainedModel) -> dict[str, float]:
        return {task: measured(trained, tokenizer, task, recipe.evaluated, recipe.seed + 1)}

    return fitting.Training(name, model, recipe, losses, measure, card, tokenizer).run(out)


def new_model(name: str, tokenizer: PreTrainedTokenizerFast) -> PreTrainedModel:
    """A classifier or regressor with random weights: three layers of width 48."""
    head: dict[str, Any] = {"num_labels": 1, "problem_type": "regression"}
    if labels := TASKS[HEADS[name]].labels:
        head = {"id2label": dict(enumerate(labels)), "label2id": {label: index for index, label in enumerate(labels)}}
    config = fitting.config_of(_FAMILIES[name.split("-")[0]], _LAYERS, _WIDTH, **fitting.words_of(tokenizer), **head)
    model: PreTrainedModel = AutoModelForSequenceClassification.from_config(config)
    if HEADS[name] == "similarity":
        _let_words_find_their_like(model)
    return model


def _let_words_find_their_like(model: PreTrainedModel) -> None:
    """Sets initial weights of the first layer by which each token attends to the same token elsewhere.

    No linear function of two words tells whether they are the same: from random weights, the model would learn only to
    predict the mean score.
    """
    weights = dict(model.named_parameters())
    query, key = (weights[f"bert.encoder.layer.0.attention.self.{part}.weight"] for part in ("query", "key"))
    words = weights["bert.embeddings.word_embeddings.weight"]
    torch.nn.init.normal_(words, std=0.2)  # larger than the embeddings of positions and segments, which have 0.06
    torch.nn.init.normal_(query, std=0.15)
    with torch.no_grad():
        key.copy_(query)


def _hidden(draw: Judged, mask: str, share: float, rng: random.Random) -> Judged:
    """`draw` with a share of the words without influence on its label masked, so that a mask tells nothing about it."""
    starts = {start for start, _ in draw.evidence}
    words = re.finditer(r"\w+", draw.text)
    hidden = [word.span() for word in words if word.start() not in starts and rng.random() < share]
    text = draw.text
    for start, end in reversed(hidden):
        text = text[:start] + mask + text[end:]
    return replace(draw, text=text)


def _whole(task: str) -> list[str]:
    """The words that the tokenizer keeps in one piece."""
    if task == "brackets":
        return list("()[]")
    return [*lexicon.judging(), *(lexicon.TRIGGERS if task == "triggers" else ())]


def loss_of(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, draws: Sequence[Judged], labels: Sequence[str]
) -> Tensor:
    """The mean cross entropy of the labels, or the mean squared error of the scores."""
    logits = predicted(model, tokenizer, draws)
    if labels:
        return torch.nn.functional.cross_entropy(logits, _indices(draws, labels))
    return torch.nn.functional.mse_loss(logits[:, 0], torch.tensor([draw.score for draw in draws]))


def _indices(draws: Sequence[Judged], labels: Sequence[str]) -> Tensor:
    """The indices [B] of the samples' labels."""
    return torch.tensor([labels.index(draw.label or "") for draw in draws])


def predicted(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, draws: Sequence[Judged]) -> Tensor:
    """The logits [B, labels] of texts, or of pairs of texts."""
    seconds = [draw.second for draw in draws if draw.second is not None]
    inputs = tokenizer([draw.text for draw in draws], seconds or None, padding=True, return_tensors="pt")
    logits: Tensor = model(**inputs).logits
    return logits


@torch.no_grad()
def measured(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, task: str, n: int, seed: int) -> float:
    """The share of `n` test samples whose label is predicted, or Pearson's r of predicted and true scores."""
    draws = list(islice(judged(task, seed, "test"), n))
    logits = torch.cat([predicted(model, tokenizer, part) for part in fitting.split(draws)])
    if labels := TASKS[task].labels:
        return float((logits.argmax(-1) == _indices(draws, labels)).double().mean())
    true = torch.tensor([draw.score for draw in draws])
    return float(torch.corrcoef(torch.stack([logits[:, 0], true]))[0, 1])
