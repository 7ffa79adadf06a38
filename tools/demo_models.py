"""Train the demo's models: `python -m tools.demo_models` rewrites the shipped weights, in over an hour on two cores.

* bert, gpt2 and llama learn to predict the word in a slot, and with less weight a few other tokens (masked models) or
  every next token (causal models).
* Models with a head learn the label or score of generated sentences, t5 the answer to a question about a passage.
* sources learns to answer from one of several passages. A second loss helps: at every token, the states after the first
  layer must tell which person was named last, along random directions that are not part of the model.
* vit learns to name generated shapes; with `--mnist FOLDER`, the same model learns digits.

Architectures and tokenizers are those of the shipped folders. Training is seeded; the weights also depend on the number
of threads.
"""

from __future__ import annotations

import argparse
import json
import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from torch import Tensor
from torch.nn.functional import cross_entropy, mse_loss, normalize
from transformers import AutoConfig, AutoTokenizer, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerFast

from closelook.evaluation.benchmark.demo import (
    ANSWERING,
    EVERY,
    HEADS,
    MODELS,
    READING,
    SEEDS,
    TASKS,
    lexicon,
    model_dir,
)
from closelook.evaluation.benchmark.demo.grammar import Draw, draws
from closelook.evaluation.benchmark.demo.labelled import Judged, judged
from closelook.evaluation.benchmark.demo.passages import SOURCES, Reading, readings
from closelook.evaluation.benchmark.demo.shapes import PATCH, shapes
from closelook.evaluation.benchmark.pictures import SETTINGS, Preprocessing, decoded
from closelook.evaluation.benchmark.sources.files import fetch
from closelook.evaluation.benchmark.sources.pictures import MNIST
from closelook.evaluation.tasks import TASKS as EVERY_TASK

THREADS = 2
IGNORED = -100  # the label that cross entropy ignores


@dataclass(frozen=True)
class Recipe:
    """The hyperparameters of a training."""

    steps: int = 1000
    seed: int = 0
    batch: int = 64  # samples of each task in each step
    pool: int = 20_000  # training samples of each task; batches are drawn from them
    learning_rate: float = 2e-3


@dataclass(frozen=True)
class Lesson:
    """A new model, and the losses of a random batch by task, of which training lowers the sum."""

    model: PreTrainedModel
    losses: Callable[[], Mapping[str, Tensor]]
    processor: Mapping[str, Any] | None = None  # settings of the image processor


def new_model(config: PreTrainedConfig, recipe: Recipe) -> PreTrainedModel:
    """A model of this configuration with random weights."""
    torch.manual_seed(recipe.seed)
    (architecture,) = config.architectures or [""]
    model: PreTrainedModel = getattr(transformers, architecture)(config)
    return model


def shipped(name: str, recipe: Recipe) -> tuple[PreTrainedModel, PreTrainedTokenizerFast]:
    """A model like the shipped one with random weights, and its tokenizer."""
    folder = model_dir(name)
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    return new_model(AutoConfig.from_pretrained(folder), recipe), tokenizer


def sampled(pool: Sequence[Any], recipe: Recipe, generator: torch.Generator) -> list[Any]:
    """A random batch of samples from the pool, drawn with replacement."""
    chosen = torch.randint(len(pool), (recipe.batch,), generator=generator)
    return [pool[index] for index in chosen.tolist()]


# Language models.


def words(name: str, recipe: Recipe) -> Lesson:
    """A language model that predicts the word in the slot."""
    model, tokenizer = shipped(name, recipe)
    pools = {task: list(islice(draws(task, recipe.seed, "train"), recipe.pool)) for task in TASKS}
    generator = torch.Generator().manual_seed(recipe.seed)

    def losses() -> dict[str, Tensor]:
        by_task = {}
        for task, pool in pools.items():
            by_task[task] = loss_of_words(model, tokenizer, sampled(pool, recipe, generator), generator)
        return by_task

    return Lesson(model, losses)


def loss_of_words(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, several: list[Draw], generator: torch.Generator
) -> Tensor:
    """The mean cross entropy in the slots, plus a tenth of its mean over other tokens.

    For masked models, these are the 3 % that are hidden at random; for causal models, all tokens.
    """
    completed = [draw.completed() for draw in several]
    inputs = tokenizer([filled.text for filled in completed], padding=True, return_tensors="pt")
    ids, mask = inputs["input_ids"], inputs["attention_mask"]  # [B, T]
    slots = torch.tensor([[inputs.char_to_token(row, filled.word[1] - 1)] for row, filled in enumerate(completed)])
    if tokenizer.mask_token is None:
        logits = model(input_ids=ids, attention_mask=mask).logits[:, :-1]
        labels, learnt, slots = ids[:, 1:], mask[:, 1:].bool(), slots - 1
    else:
        learnt = (torch.rand(ids.shape, generator=generator) < 0.03) & mask.bool()
        learnt.scatter_(1, slots, True)
        hidden = ids.masked_fill(learnt, tokenizer.mask_token_id)
        logits, labels = model(input_ids=hidden, attention_mask=mask).logits, ids
    losses = cross_entropy(logits.transpose(1, 2), labels, reduction="none")  # [B, T]
    others = learnt.scatter(1, slots, False)
    return losses.gather(1, slots).mean() + 0.1 * losses[others].mean()


def answering(name: str, recipe: Recipe) -> Lesson:
    """A T5 1.1 that generates the answer to a question about a passage."""
    task = ANSWERING[name]
    pool = list(islice(draws(task, recipe.seed, "train"), recipe.pool))
    model, tokenizer = shipped(name, recipe)
    generator = torch.Generator().manual_seed(recipe.seed)

    def losses() -> dict[str, Tensor]:
        several = sampled(pool, recipe, generator)
        inputs = tokenizer([draw.text[: draw.slot] for draw in several], padding=True, return_tensors="pt")
        answers = tokenizer([draw.target for draw in several], padding=True, return_tensors="pt")
        labels = answers["input_ids"].masked_fill(answers["attention_mask"] == 0, IGNORED)
        return {task: model(**inputs, labels=labels).loss}

    return Lesson(model, losses)


def reading(name: str, recipe: Recipe) -> Lesson:
    """A Llama that answers questions from one of several passages."""
    pool = list(islice(readings(recipe.seed, "train", 2), recipe.pool))
    model, tokenizer = shipped(name, recipe)
    persons = lexicon.kinds()["person"]
    of_persons = [tokenizer(f" {person}", add_special_tokens=False)["input_ids"][0] for person in persons]
    numbers = torch.full((len(tokenizer),), IGNORED)  # of the person that a token names
    numbers[of_persons] = torch.arange(len(persons))
    directions = normalize(torch.randn(len(persons), model.config.hidden_size), dim=-1)
    generator, rng = torch.Generator().manual_seed(recipe.seed), random.Random(recipe.seed)

    def losses() -> dict[str, Tensor]:
        several = [with_questions(draw, rng) for draw in sampled(pool, recipe, generator)]
        inputs = tokenizer(
            [text for text, _ in several], padding=True, return_offsets_mapping=True, return_tensors="pt"
        )
        ids, mask, starts = inputs["input_ids"], inputs["attention_mask"], inputs["offset_mapping"][..., 0]  # [B, T]
        answers = torch.zeros_like(starts, dtype=torch.bool)
        for row, (_, spans) in enumerate(several):
            for start, end in spans:
                answers[row] |= (starts[row] >= start) & (starts[row] < end)
        labels = ids.masked_fill(~answers | (mask == 0), IGNORED)
        output = model(input_ids=ids, attention_mask=mask, labels=labels, output_hidden_states=True)
        logits = 4.0 * output.hidden_states[1] @ directions.T  # [B, T, persons]
        named = last_named(ids, numbers).masked_fill(mask == 0, IGNORED)
        second = cross_entropy(logits.transpose(1, 2), named, ignore_index=IGNORED)
        return {SOURCES: output.loss, "persons": 0.3 * second}

    return Lesson(model, losses)


def last_named(ids: Tensor, numbers: Tensor) -> Tensor:
    """For each of the tokens `ids` [B, T], the number of the person named last up to it, or IGNORED before any."""
    places = torch.arange(ids.shape[1]).expand_as(ids)
    last = torch.where(numbers[ids] != IGNORED, places, -1).cummax(dim=1).values
    return torch.where(last >= 0, numbers[ids.gather(1, last.clamp_min(0))], IGNORED)


def with_questions(of: Reading, rng: random.Random) -> tuple[str, list[tuple[int, int]]]:
    """A text of the passages and up to five questions with answers, and the (start, end) of each answer in it."""
    order = rng.sample(range(len(of.facts)), min(4, len(of.facts)))
    text, spans = "", []
    for asked in [of.asked, *((at,) for at in order if at not in of.asked)]:
        question = replace(of, asked=asked)
        text += question.prompt[question.prompt.index(" Question:") :] if text else question.prompt
        spans.append((len(text), len(text) + len(question.answer)))
        text += question.answer
    return text, spans


# Classifiers and the regressor.


def judging(name: str, recipe: Recipe) -> Lesson:
    """A classifier, or a regressor, of generated sentences."""
    task = HEADS[name]
    pool = list(islice(judged(task, recipe.seed, "train"), recipe.pool))
    model, tokenizer = shipped(name, recipe)
    labels = EVERY_TASK[task].labels
    if task == "similarity":
        let_words_find_their_like(model)
    generator, rng = torch.Generator().manual_seed(recipe.seed), random.Random(recipe.seed)

    def losses() -> dict[str, Tensor]:
        batch = sampled(pool, recipe, generator)
        if tokenizer.mask_token is not None and task in ("sentiment", "triggers"):
            batch = [hidden(draw, tokenizer.mask_token, rng) for draw in batch]
        logits = head_logits(model, tokenizer, batch)
        if labels:
            return {task: cross_entropy(logits, _indices(batch, labels))}
        return {task: mse_loss(logits[:, 0], torch.tensor([draw.score for draw in batch]))}

    return Lesson(model, losses)


def let_words_find_their_like(model: PreTrainedModel) -> None:
    """Set initial weights of the first layer by which each token attends to the same token elsewhere.

    No linear function of two words tells whether they are the same: from random weights, the model would learn only to
    predict the mean score.
    """
    weights = dict(model.named_parameters())
    query, key = (weights[f"bert.encoder.layer.0.attention.self.{part}.weight"] for part in ("query", "key"))
    torch.nn.init.normal_(weights["bert.embeddings.word_embeddings.weight"], std=0.2)  # others have 0.06
    torch.nn.init.normal_(query, std=0.15)
    with torch.no_grad():
        key.copy_(query)


def hidden(draw: Judged, mask: str, rng: random.Random) -> Judged:
    """The draw with 15 % of the words without influence on its label masked, so that a mask tells nothing about it."""
    starts = {start for start, _ in draw.evidence}
    words = re.finditer(r"\w+", draw.text)
    spans = [word.span() for word in words if word.start() not in starts and rng.random() < 0.15]
    text = draw.text
    for start, end in reversed(spans):
        text = text[:start] + mask + text[end:]
    return replace(draw, text=text)


def _indices(several: Sequence[Judged], labels: Sequence[str]) -> Tensor:
    """The indices [B] of the samples' labels."""
    return torch.tensor([labels.index(draw.label or "") for draw in several])


def head_logits(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, several: Sequence[Judged]) -> Tensor:
    """The logits [B, labels] of texts, or of pairs of texts."""
    seconds = [draw.second for draw in several if draw.second is not None]
    inputs = tokenizer([draw.text for draw in several], seconds or None, padding=True, return_tensors="pt")
    logits: Tensor = model(**inputs).logits
    return logits


# Models of images.


def seeing(name: str, recipe: Recipe) -> Lesson:
    """A vision transformer that names generated shapes. Missing patches, 10 % of all, tell nothing of the label."""
    seen = list(islice(shapes(recipe.seed, "train"), recipe.pool))
    pixels, labels = np.stack([draw.pixels for draw in seen]), np.array([draw.label for draw in seen])
    return pictures(pixels, labels, lexicon.SHAPES, recipe, missing=0.1, shift=0, mean=0.5)


def digits(folder: str) -> Callable[[str, Recipe], Lesson]:
    """The training of the same model on MNIST in `folder`; every fifth digit is not trained on.

    Raises UserError if the folder has no files of MNIST.
    """

    def lesson(name: str, recipe: Recipe) -> Lesson:
        files = fetch(folder, MNIST.suffixes)
        rows = [row for file in files for record in MNIST.records(file) for row in MNIST.rows(record)]
        pixels = np.stack([np.asarray(decoded(row["image"]))[..., None] for row in rows])
        labels = np.array([int(row["label"]) for row in rows])
        seen = np.arange(len(rows)) % 5 != 0
        return pictures(pixels[seen], labels[seen], "0123456789", recipe, missing=0.0, shift=2, mean=0.0)

    return lesson


def pictures(
    pixels: np.ndarray,
    labels: np.ndarray,
    names: Sequence[str],
    recipe: Recipe,
    missing: float,
    shift: int,
    mean: float,
) -> Lesson:
    """A vision transformer that names what is in pictures, from pixels [N, H, W, C] and numbers of labels.

    In training, a share of patches is `missing` and pictures are moved by up to `shift` pixels. `mean` is subtracted
    when pictures are normalised, so it is the grey level that becomes zero (0: black).
    """
    _, size, _, channels = pixels.shape
    numbers = {"id2label": dict(enumerate(names)), "label2id": {label: index for index, label in enumerate(names)}}
    folder = model_dir("vit")
    config = AutoConfig.from_pretrained(folder, image_size=size, num_channels=channels, **numbers)
    model = new_model(config, recipe)
    settings = json.loads((folder / SETTINGS).read_text())
    settings |= {
        "size": {"height": size, "width": size},
        "image_mean": [mean] * channels,
        "image_std": [0.5] * channels,
    }
    preprocessing = Preprocessing.of(settings, model.config.to_dict())
    generator = torch.Generator().manual_seed(recipe.seed)

    def values(images: np.ndarray) -> Tensor:
        return torch.from_numpy(np.stack([preprocessing.values(image) for image in images]))

    def losses() -> dict[str, Tensor]:
        chosen = torch.randint(len(pixels), (recipe.batch,), generator=generator).numpy()
        inputs = values(moved(pixels[chosen], shift, generator))
        gone = torch.rand(len(inputs), 1, size // PATCH, size // PATCH, generator=generator) < missing
        inputs = inputs.masked_fill(gone.repeat_interleave(PATCH, 2).repeat_interleave(PATCH, 3), 0.0)
        return {"pictures": cross_entropy(model(pixel_values=inputs).logits, torch.from_numpy(labels[chosen]))}

    return Lesson(model, losses, settings)


def moved(pixels: np.ndarray, shift: int, generator: torch.Generator) -> np.ndarray:
    """Each of the images [B, H, W, C] moved by up to `shift` pixels at random; uncovered pixels are black."""
    if not shift:
        return pixels
    height, width = pixels.shape[1:3]
    framed = np.pad(pixels, ((0, 0), (shift, shift), (shift, shift), (0, 0)))
    corners = shift - torch.randint(-shift, shift + 1, (len(pixels), 2), generator=generator)
    cut = [image[top : top + height, left : left + width] for image, (top, left) in zip(framed, corners, strict=True)]
    return np.stack(cut)


# Training.

_STEPS = {"sentiment": 400, "similarity": 600, "brackets": 4000, "triggers": 600}


def lesson_of(name: str) -> tuple[Callable[[str, Recipe], Lesson], Recipe]:
    """The function that makes the lesson of a demo model, and the model's hyperparameters."""
    if name in MODELS or name in SEEDS:
        return words, Recipe(seed=SEEDS.get(name, 0), batch=32, pool=15_000)
    if name in ANSWERING:
        return answering, Recipe(steps=600, learning_rate=3e-3)
    if name in READING:
        return reading, Recipe(steps=2500, batch=16, learning_rate=4e-3)
    if name in HEADS:
        return judging, Recipe(steps=_STEPS[HEADS[name]])
    return seeing, Recipe(steps=3000)


def train(name: str, out: Path, lesson: Lesson, recipe: Recipe) -> None:
    """Train by AdamW with a one-cycle learning rate, and write the model into `out`."""
    torch.set_num_threads(THREADS)
    model = lesson.model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=recipe.learning_rate, betas=(0.9, 0.98), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, recipe.learning_rate, recipe.steps, pct_start=0.1)
    for step in range(1, recipe.steps + 1):
        losses = lesson.losses()
        optimizer.zero_grad()
        torch.stack(list(losses.values())).sum().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 100 == 0 or step == recipe.steps:
            listed = "  ".join(f"{task} {float(loss.detach()):.3f}" for task, loss in losses.items())
            print(f"{name} step {step:5d}  {listed}", flush=True)
    model.eval().save_pretrained(out)
    if lesson.processor is not None:
        (out / SETTINGS).write_text(json.dumps(lesson.processor, indent=1) + "\n")


def main(arguments: Sequence[str] | None = None) -> None:
    """Train the chosen models."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--models", nargs="+", choices=EVERY, default=list(EVERY))
    parser.add_argument("--mnist", metavar="FOLDER", help="train one model on the digits in this folder instead")
    parser.add_argument("--out", type=Path, help="folder for the models (default: the shipped weights are rewritten)")
    parser.add_argument("--steps", type=int, help="default: the recipe's own")
    parser.add_argument("--seed", type=int, help="default: the recipe's own")
    chosen = parser.parse_args(arguments)
    if chosen.mnist and not chosen.out:
        parser.error("--mnist needs --out")
    for name in ["mnist"] if chosen.mnist else chosen.models:
        lesson, recipe = (digits(chosen.mnist), Recipe()) if chosen.mnist else lesson_of(name)
        seed = recipe.seed if chosen.seed is None else chosen.seed
        recipe = replace(recipe, seed=seed, steps=chosen.steps or recipe.steps)
        out = chosen.out / name if chosen.out else model_dir(name)
        if not chosen.mnist and lesson is not seeing and out != model_dir(name):
            AutoTokenizer.from_pretrained(model_dir(name)).save_pretrained(out)
        train(name, out, lesson(name, recipe), recipe)


if __name__ == "__main__":
    main()
