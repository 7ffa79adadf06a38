"""Training of the demo's encoder-decoder, which reads passage and question and says the answer; seeded like others."""

from __future__ import annotations

import time
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerFast, T5Config, T5ForConditionalGeneration

from evaluation.benchmark.demo import ANSWERING, generate, lexicon
from evaluation.benchmark.demo.card import write_card
from evaluation.benchmark.demo.fitting import Recipe, fit
from evaluation.benchmark.demo.grammar import Draw, draws
from evaluation.benchmark.demo.tokenizer import build
from evaluation.benchmark.views import tokenise
from lrp_core.readout import predicted, rows_for
from lrp_core.types import Batch
from lrp_core.view import ModelView

_MAX_LENGTH = 128
_LAYERS, _HEADS, _WIDTH = 2, 4, 48
_VOCABULARY = 600


@dataclass(frozen=True)
class AnswerRecipe(Recipe):
    """How a model that answers is trained."""

    steps: int = 600
    learning_rate: float = 3e-3


def train(name: str, out: Path, recipe: AnswerRecipe) -> dict[str, float]:
    """Train one model, write it with its tokenizer and card into `out`, and return its accuracy by task."""
    started = time.monotonic()
    task = ANSWERING[name]
    seen = list(islice(draws(task, recipe.seed, "train"), recipe.pool))
    texts = [draw.completed().text for draw in seen[:4000]]
    tokenizer = build(name, texts, _MAX_LENGTH, whole=lexicon.answers(), size=_VOCABULARY)
    torch.manual_seed(recipe.seed)
    model = new_model(tokenizer).train()
    generator = torch.Generator().manual_seed(recipe.seed)

    def losses() -> dict[str, Tensor]:
        chosen = torch.randint(len(seen), (recipe.batch,), generator=generator).tolist()
        return {task: loss_of(model, tokenizer, [seen[index] for index in chosen])}

    fit(name, model, recipe, losses)
    scores = {task: accuracy(ModelView.of(model.eval()), tokenizer, task, recipe.evaluated, recipe.seed + 1)}
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    write_card(
        out,
        name,
        model,
        recipe,
        tasks=(task,),
        rows={task: f"{scores[task]:.1%}"},
        title="Accuracy",
        layers=f"twice {_LAYERS}",
        meaning=f"Share of {recipe.evaluated:,} draws (seed {recipe.seed + 1}) not seen in training whose answer is "
        "the likeliest of all tokens:",
        wall_s=time.monotonic() - started,
    )
    return scores


def new_model(tokenizer: PreTrainedTokenizerFast) -> PreTrainedModel:
    """A freshly initialised T5 1.1 (gated GELU, output embeddings of its own): twice two layers, no dropout."""
    settings: dict[str, Any] = {
        "vocab_size": len(tokenizer),
        "d_model": _WIDTH,
        "d_kv": _WIDTH // _HEADS,
        "d_ff": 2 * _WIDTH,
        "num_layers": _LAYERS,
        "num_decoder_layers": _LAYERS,
        "num_heads": _HEADS,
        "relative_attention_num_buckets": 16,
        "relative_attention_max_distance": 32,
        "n_positions": _MAX_LENGTH,
        "dropout_rate": 0.0,
        "feed_forward_proj": "gated-gelu",
        "tie_word_embeddings": False,
        "pad_token_id": tokenizer.pad_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "decoder_start_token_id": tokenizer.pad_token_id,
    }
    return T5ForConditionalGeneration(T5Config(**settings))


def loss_of(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, several: list[Draw]) -> Tensor:
    """Mean cross entropy of the answers and of the ends behind them."""
    asked = tokenizer([draw.text[: draw.slot] for draw in several], padding=True, return_tensors="pt")
    labels = tokenizer([draw.target for draw in several], padding=True, return_tensors="pt")
    told = labels["input_ids"].masked_fill(labels["attention_mask"] == 0, -100)
    loss: Tensor = model(input_ids=asked["input_ids"], attention_mask=asked["attention_mask"], labels=told).loss
    return loss


def accuracy(view: ModelView, tokenizer: PreTrainedTokenizerFast, task: str, n: int, seed: int) -> float:
    """Share of `n` draws not seen in training whose target is the likeliest of all tokens.

    Raises RuntimeError where a draw does not fit the tokenizer.
    """
    rows, rejects = tokenise(generate(task, n, seed), tokenizer, kind=view.kind, max_length=view.max_length)
    if rejects:
        raise RuntimeError(f"{task}: {len(rejects)} draws do not fit the tokenizer: {rejects[0]['reason']}")
    right, asked = 0, rows_for(view, rows)
    for start in range(0, n, 250):
        batch = Batch.collate(asked[start : start + 250], view.pad_id)
        right += int((predicted(view, batch)[:, 0] == batch.target_ids).sum())
    return right / n
