"""Train the demo models: `python -m evaluation.benchmark.demo.train` rewrites the shipped ones in minutes on two cores.

Masked models learn the word in the slot and a few of the other tokens; causal models learn every next token, the one
in the slot above all. Everything is seeded; the figures of a run stand in each model's card.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

import torch
from torch import Tensor
from transformers import (
    BertConfig,
    BertForMaskedLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from evaluation.benchmark.demo import (
    ANSWERING,
    EVERY,
    HEADS,
    MODELS,
    TASKS,
    VISION,
    answering,
    generate,
    heads,
    model_dir,
    vision,
)
from evaluation.benchmark.demo.card import write_card
from evaluation.benchmark.demo.fitting import Recipe, fit
from evaluation.benchmark.demo.grammar import Draw, draws
from evaluation.benchmark.demo.tokenizer import build
from evaluation.benchmark.views import tokenise
from lrp_core.types import Batch
from lrp_core.view import ModelView

_MAX_LENGTH = 128
_LAYERS, _HEADS, _KV_HEADS, _WIDTH = 4, 4, 2, 64


@dataclass(frozen=True)
class WordsRecipe(Recipe):
    """How a model of words is trained."""

    batch: int = 32
    pool: int = 15_000
    other_weight: float = 0.1  # of the loss on tokens outside the slot
    noise: float = 0.03  # share of other tokens a masked model must restore


@dataclass(frozen=True)
class Encoded:
    """One completed draw: its tokens, and the index of the target among them."""

    input_ids: list[int]
    slot: int


def encode(draw: Draw, tokenizer: PreTrainedTokenizerFast) -> Encoded:
    completed = draw.completed()
    encoding = tokenizer(completed.text)
    return Encoded(encoding["input_ids"], encoding.char_to_token(completed.word[1] - 1))


def new_model(name: str, tokenizer: PreTrainedTokenizerFast) -> PreTrainedModel:
    """A freshly initialised demo model: four layers of width 64, no dropout, larger initial weights than usual."""
    shared = {"vocab_size": len(tokenizer), "initializer_range": 0.06, "pad_token_id": tokenizer.pad_token_id}
    if name == "bert":
        return BertForMaskedLM(
            BertConfig(
                **shared,
                hidden_size=_WIDTH,
                num_hidden_layers=_LAYERS,
                num_attention_heads=_HEADS,
                intermediate_size=4 * _WIDTH,
                max_position_embeddings=_MAX_LENGTH,
                hidden_dropout_prob=0.0,
                attention_probs_dropout_prob=0.0,
            )
        )
    ends = {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id}
    if name == "gpt2":
        return GPT2LMHeadModel(
            GPT2Config(
                **shared,
                **ends,
                n_embd=_WIDTH,
                n_layer=_LAYERS,
                n_head=_HEADS,
                n_positions=_MAX_LENGTH,
                resid_pdrop=0.0,
                embd_pdrop=0.0,
                attn_pdrop=0.0,
            )
        )
    return LlamaForCausalLM(
        LlamaConfig(
            **shared,
            **ends,
            hidden_size=_WIDTH,
            num_hidden_layers=_LAYERS,
            num_attention_heads=_HEADS,
            num_key_value_heads=_KV_HEADS,
            intermediate_size=3 * _WIDTH,
            max_position_embeddings=_MAX_LENGTH,
            tie_word_embeddings=False,
        )
    )


class Trainer:
    """Owns the encoded pool and makes padded batches of one task at a time."""

    def __init__(self, name: str, tokenizer: PreTrainedTokenizerFast, recipe: WordsRecipe) -> None:
        self._masked = name == "bert"
        self._tokenizer, self._recipe = tokenizer, recipe
        self._generator = torch.Generator().manual_seed(recipe.seed)
        self._pools = {
            task: [encode(draw, tokenizer) for draw in islice(draws(task, recipe.seed, "train"), recipe.pool)]
            for task in TASKS
        }

    def loss(self, model: PreTrainedModel, task: str) -> Tensor:
        pool = self._pools[task]
        chosen = torch.randint(len(pool), (self._recipe.batch,), generator=self._generator).tolist()
        rows = [pool[index] for index in chosen]
        ids, mask = padded(rows, self._tokenizer.pad_token_id)  # [B, T]
        slots = torch.tensor([row.slot for row in rows])[:, None]  # [B, 1]
        if self._masked:
            return self._restore(model, ids, mask, slots)
        return self._continue(model, ids, mask, slots)

    def _restore(self, model: PreTrainedModel, ids: Tensor, mask: Tensor, slots: Tensor) -> Tensor:
        hidden = (torch.rand(ids.shape, generator=self._generator) < self._recipe.noise) & mask.bool()
        hidden.scatter_(1, slots, True)
        logits = model(input_ids=ids.masked_fill(hidden, self._tokenizer.mask_token_id), attention_mask=mask).logits
        return self._mean(logits, ids, hidden, slots)

    def _continue(self, model: PreTrainedModel, ids: Tensor, mask: Tensor, slots: Tensor) -> Tensor:
        logits = model(input_ids=ids, attention_mask=mask).logits
        return self._mean(logits[:, :-1], ids[:, 1:], mask[:, 1:].bool(), slots - 1)

    def _mean(self, logits: Tensor, labels: Tensor, learnt: Tensor, slots: Tensor) -> Tensor:
        """Mean cross entropy in the slots [B, 1], plus the weighted mean over the other learnt [B, T] tokens."""
        losses = torch.nn.functional.cross_entropy(logits.transpose(1, 2), labels, reduction="none")  # [B, T]
        others = learnt.scatter(1, slots, False)
        return losses.gather(1, slots).mean() + self._recipe.other_weight * losses[others].mean()


def padded(rows: list[Encoded], pad_id: int) -> tuple[Tensor, Tensor]:
    """Right-padded ids [B, T] and their mask."""
    sequences = [torch.tensor(row.input_ids) for row in rows]
    ids = torch.nn.utils.rnn.pad_sequence(sequences, batch_first=True, padding_value=pad_id)
    lengths = torch.tensor([len(sequence) for sequence in sequences])[:, None]
    return ids, (torch.arange(ids.shape[1]) < lengths).long()


@torch.no_grad()
def accuracy(view: ModelView, tokenizer: PreTrainedTokenizerFast, task: str, n: int, seed: int) -> float:
    """Share of `n` draws not seen in training whose target has a larger logit than the foil.

    Raises RuntimeError where a draw does not fit the tokenizer.
    """
    rows, rejects = tokenise(generate(task, n, seed), tokenizer, kind=view.kind, max_length=tokenizer.model_max_length)
    if rejects:
        raise RuntimeError(
            f"{task}: {len(rejects)} draws do not fit the tokenizer, the first by {rejects[0]['reason']}"
        )
    right = 0
    for start in range(0, n, 250):
        batch = Batch.collate(rows[start : start + 250], tokenizer.pad_token_id)
        target, foil = view.logits(view.hidden(batch), batch).unbind(-1)
        right += int((target > foil).sum())
    return right / n


def train(name: str, out: Path, recipe: WordsRecipe) -> dict[str, float]:
    """Train one model, write it with its tokenizer and card into `out`, and return its accuracies by task."""
    started = time.monotonic()
    texts = [draw.completed().text for task in TASKS for draw in islice(draws(task, recipe.seed, "train"), 4000)]
    tokenizer = build(name, texts, _MAX_LENGTH)
    torch.manual_seed(recipe.seed)
    model = new_model(name, tokenizer).train()
    trainer = Trainer(name, tokenizer, recipe)
    fit(name, model, recipe, lambda: {task: trainer.loss(model, task) for task in TASKS})
    view = ModelView.of(model)
    scores = {task: accuracy(view, tokenizer, task, recipe.evaluated, recipe.seed + 1) for task in TASKS}
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    write_card(
        out,
        name,
        model,
        recipe,
        tasks=TASKS,
        rows={task: f"{score:.1%}" for task, score in scores.items()},
        title="Accuracy",
        meaning=f"Share of {recipe.evaluated:,} draws a task (seed {recipe.seed + 1}) not seen in training whose "
        "target has a larger logit than its foil:",
        wall_s=time.monotonic() - started,
    )
    return scores


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--models", nargs="+", choices=EVERY, default=list(EVERY))
    parser.add_argument("--out", type=Path, help="folder for the models (default: the shipped ones are rewritten)")
    parser.add_argument("--steps", type=int, help="default: the recipe's own")
    parser.add_argument("--seed", type=int, default=WordsRecipe.seed)
    chosen = parser.parse_args()
    for name in chosen.models:
        out = chosen.out / name if chosen.out else model_dir(name)
        if name in MODELS:
            scores = train(name, out, WordsRecipe(seed=chosen.seed, steps=chosen.steps or WordsRecipe.steps))
        elif name in ANSWERING:
            recipe = answering.AnswerRecipe(seed=chosen.seed)
            scores = answering.train(name, out, replace(recipe, steps=chosen.steps or recipe.steps))
        elif name in VISION:
            own = vision.SHAPES
            scores = vision.train(name, out, replace(own, steps=chosen.steps or own.steps, seed=chosen.seed))
        else:
            steps = chosen.steps or heads.STEPS[HEADS[name]]
            scores = heads.train(name, out, heads.HeadRecipe(steps, chosen.seed))
        print(f"{name} -> {out}  " + "  ".join(f"{task} {score:.3f}" for task, score in scores.items()))


if __name__ == "__main__":
    main()
