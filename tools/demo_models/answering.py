"""Training of the demo's encoder-decoder, which reads a passage and a question and generates the answer.

Training is seeded, as that of the other demo models.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForSeq2SeqLM, PreTrainedModel, PreTrainedTokenizerFast

from closelook.evaluation.benchmark.demo import ANSWERING, lexicon
from closelook.evaluation.benchmark.demo.grammar import Draw, draws
from closelook.lrp_core.opening.model import view_of
from closelook.lrp_core.readers.predictions import predicted
from closelook.lrp_core.records.types import Batch
from closelook.lrp_core.views.view import ModelView
from tools.demo_models import fitting
from tools.demo_models.tokenizer import build

_MAX_LENGTH = 128
_LAYERS, _WIDTH = 2, 48
_VOCABULARY = 600


@dataclass(frozen=True)
class AnswerRecipe(fitting.Recipe):
    """The hyperparameters of an encoder-decoder that answers."""

    steps: int = 600
    learning_rate: float = 3e-3


def train(name: str, out: Path, recipe: AnswerRecipe) -> dict[str, float]:
    """Trains one model, writes it with its tokenizer and card into `out`, and returns its accuracy by task."""
    meaning = "Share of {n:,} draws (seed {seed}) not seen in training whose answer is the likeliest of all tokens:"
    card = fitting.Card("Accuracy", meaning, layers=f"twice {_LAYERS}")
    task = ANSWERING[name]
    seen = list(islice(draws(task, recipe.seed, "train"), recipe.pool))
    texts = [draw.completed().text for draw in seen[:4000]]
    tokenizer = build(name, texts, _MAX_LENGTH, whole=lexicon.answers(), size=_VOCABULARY)
    torch.manual_seed(recipe.seed)
    model = new_model(tokenizer)
    generator = torch.Generator().manual_seed(recipe.seed)

    def losses() -> dict[str, Tensor]:
        return {task: loss_of(model, tokenizer, fitting.sampled(seen, recipe, generator))}

    def measure(trained: PreTrainedModel) -> dict[str, float]:
        return {task: accuracy(view_of(trained), tokenizer, task, recipe.evaluated, recipe.seed + 1)}

    return fitting.Training(name, model, recipe, losses, measure, card, tokenizer).run(out)


def new_model(tokenizer: PreTrainedTokenizerFast) -> PreTrainedModel:
    """A T5 1.1 with random weights (gated GELU, separate output embeddings, no dropout).

    Encoder and decoder have two layers each.
    """
    sizes = {"d_model": _WIDTH, "d_kv": _WIDTH // fitting.HEADS, "d_ff": 2 * _WIDTH, "num_heads": fitting.HEADS}
    sizes |= {"num_layers": _LAYERS, "num_decoder_layers": _LAYERS, "vocab_size": len(tokenizer)}
    sizes |= {"relative_attention_num_buckets": 16, "relative_attention_max_distance": 32, "n_positions": _MAX_LENGTH}
    form = {"dropout_rate": 0.0, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}
    pad = tokenizer.pad_token_id
    tokens = {"pad_token_id": pad, "decoder_start_token_id": pad, "eos_token_id": tokenizer.eos_token_id}
    config = AutoConfig.for_model("t5", **sizes, **form, **tokens)
    model: PreTrainedModel = AutoModelForSeq2SeqLM.from_config(config)
    return model


def loss_of(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, several: list[Draw]) -> Tensor:
    """The mean cross entropy of the answers' tokens and of the end tokens after them."""
    inputs = tokenizer([draw.text[: draw.slot] for draw in several], padding=True, return_tensors="pt")
    answers = tokenizer([draw.target for draw in several], padding=True, return_tensors="pt")
    labels = answers["input_ids"].masked_fill(answers["attention_mask"] == 0, -100)
    loss: Tensor = model(**inputs, labels=labels).loss
    return loss


def _is_likeliest(view: ModelView, rows: Sequence[fitting.Row]) -> Tensor:
    """For each sample, whether the target is the likeliest of all tokens."""
    batch = Batch.collate(rows, view.pad_id)
    return predicted(view, batch)[:, 0] == batch.target_ids


accuracy = partial(fitting.share_right, right=_is_likeliest)
