"""Training of the demo's model that answers questions from one of several passages.

A word of a passage does not tell which person the passage is about. Without help, the model answers for a long time in
training with a word of any passage. A second loss helps: at every token, the states after the first layer must tell
which person was named last. They tell it along random directions, one for each person, which are drawn once and are not
part of the model. Training is seeded, as that of the other demo models.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize
from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerFast

from closelook.evaluation.benchmark.demo import lexicon
from closelook.evaluation.benchmark.demo.passages import SOURCES, Reading, readings
from closelook.lrp_core.opening.model import view_of
from closelook.lrp_core.readers.readout import over_vocabulary
from closelook.lrp_core.records.types import Batch, span_row
from closelook.lrp_core.views.view import ModelView
from tools.demo_models import fitting
from tools.demo_models.tokenizer import build

_MAX_LENGTH = 256
_LAYERS, _WIDTH = 3, 64
_VOCABULARY = 1000
_FEWEST = 2  # passages that a training text has at least
_ASKED = 4  # questions that follow the passages of one training text, at most
_SHARPNESS = 4.0  # of the second loss: a logit is this number times the state's component along a direction
_LLAMA = {"num_key_value_heads": fitting.HEADS, "intermediate_size": 2 * _WIDTH, "tie_word_embeddings": True}
_NONE = -100  # the label that cross entropy ignores


@dataclass(frozen=True)
class ReadingRecipe(fitting.Recipe):
    """The hyperparameters of a model that answers from passages."""

    steps: int = 2500
    batch: int = 16
    learning_rate: float = 4e-3
    persons_weight: float = 0.3  # weight of the second loss


def train(name: str, out: Path, recipe: ReadingRecipe) -> dict[str, float]:
    """Trains one model, writes it with its tokenizer and card into `out`, and returns its accuracy."""
    meaning = "Share of {n:,} test samples (seed {seed}) for which the model ranks every token of the answer first:"
    card = fitting.Card("Accuracy", meaning)
    seen = list(islice(readings(recipe.seed, "train", _FEWEST), recipe.pool))
    texts = [reading.prompt + reading.answer for reading in seen[:3000]]
    tokenizer = build("llama", texts, _MAX_LENGTH, whole=lexicon.answers(), size=_VOCABULARY)
    torch.manual_seed(recipe.seed)
    model = new_model(tokenizer)
    persons = Persons.of(tokenizer)
    generator, rng = torch.Generator().manual_seed(recipe.seed), random.Random(recipe.seed)

    def losses() -> dict[str, Tensor]:
        batch = fitting.sampled(seen, recipe, generator)
        answers, of_persons = losses_of(model, tokenizer, batch, persons, rng)
        return {SOURCES: answers, "persons": recipe.persons_weight * of_persons}

    def measure(trained: PreTrainedModel) -> dict[str, float]:
        return {SOURCES: accuracy(view_of(trained), tokenizer, n=recipe.evaluated, seed=recipe.seed + 1)}

    return fitting.Training(name, model, recipe, losses, measure, card, tokenizer).run(out)


def new_model(tokenizer: PreTrainedTokenizerFast) -> PreTrainedModel:
    """A Llama with random weights: three layers of width 64."""
    config = fitting.config_of("llama", _LAYERS, _WIDTH, **fitting.words_of(tokenizer), **_LLAMA)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config)
    return model


@dataclass(frozen=True)
class Persons:
    """The persons that texts of the demo name.

    `numbers` [V] gives for each token the number of the person that it names, or _NONE. `directions` [N, D] has a
    direction for each person.
    """

    numbers: Tensor
    directions: Tensor

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerFast) -> Persons:
        """The persons, with directions drawn by torch's global generator."""
        persons = lexicon.kinds()["person"]
        ids = [tokenizer(f" {person}", add_special_tokens=False)["input_ids"][0] for person in persons]
        numbers = torch.full((len(tokenizer),), _NONE)
        numbers[ids] = torch.arange(len(persons))
        return cls(numbers, normalize(torch.randn(len(persons), _WIDTH), dim=-1))

    def last_named(self, ids: Tensor) -> Tensor:
        """For each of the tokens `ids` [B, T], the number of the person named last up to it, or _NONE before any."""
        named = self.numbers[ids] != _NONE
        places = torch.arange(ids.shape[1]).expand_as(ids)
        last = torch.where(named, places, -1).cummax(dim=1).values
        return torch.where(last >= 0, self.numbers[ids.gather(1, last.clamp_min(0))], _NONE)


def losses_of(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    several: Sequence[Reading],
    persons: Persons,
    rng: random.Random,
) -> tuple[Tensor, Tensor]:
    """The two losses of a batch of texts, each with several questions about its passages.

    The first is the mean cross entropy of the answers' tokens; the second that of the persons named last, as the states
    after the first layer tell them.
    """
    texts, spans = zip(*(_with_questions(reading, rng) for reading in several), strict=True)
    inputs = tokenizer(list(texts), padding=True, return_offsets_mapping=True, return_tensors="pt")
    ids, mask, starts = inputs["input_ids"], inputs["attention_mask"], inputs["offset_mapping"][..., 0]  # [B, T]
    answers = torch.zeros_like(starts, dtype=torch.bool)
    for row, asked in enumerate(spans):
        for start, end in asked:
            answers[row] |= (starts[row] >= start) & (starts[row] < end)
    labels = ids.masked_fill(~answers | (mask == 0), _NONE)
    output = model(input_ids=ids, attention_mask=mask, labels=labels, output_hidden_states=True)
    logits = _SHARPNESS * output.hidden_states[1] @ persons.directions.T  # [B, T, N]
    named = persons.last_named(ids).masked_fill(mask == 0, _NONE)
    return output.loss, cross_entropy(logits.transpose(1, 2), named, ignore_index=_NONE)


def _with_questions(reading: Reading, rng: random.Random) -> tuple[str, list[tuple[int, int]]]:
    """A text of the passages and several questions with their answers, and the (start, end) of each answer in it."""
    order = rng.sample(range(len(reading.facts)), min(_ASKED, len(reading.facts)))
    asked = [reading.asked, *((at,) for at in order if at not in reading.asked)]
    text, spans = "", []
    for some in asked:
        some_asked = replace(reading, asked=some)
        text += some_asked.prompt if not text else some_asked.prompt[some_asked.prompt.index(" Question:") :]
        spans.append((len(text), len(text) + len(some_asked.answer)))
        text += some_asked.answer
    return text, spans


def _says(view: ModelView, rows: Sequence[fitting.Row]) -> Tensor:
    """For each sample, whether every token of the answer is the likeliest after the prompt and the tokens before it."""
    spans = [span_row(row, row["position"] - len(row["answer_ids"]) + 1, row["answer_ids"]) for row in rows]
    batch = Batch.collate(spans, view.pad_id)
    state = view.prediction(view.hidden(batch), batch)  # [B, G, D]
    _, likeliest = over_vocabulary(view, state.flatten(0, 1))
    assert batch.span_ids is not None
    return (likeliest.view_as(batch.span_ids) == batch.span_ids).all(1)


accuracy = partial(fitting.share_right, task=SOURCES, right=_says, words="all")
