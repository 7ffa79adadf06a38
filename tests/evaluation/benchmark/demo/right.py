"""How often the shipped models of the demo are right on samples that they have not seen, and a short training."""

from dataclasses import replace
from itertools import islice

import torch
from transformers import AutoTokenizer

from closelook.evaluation.benchmark.demo import generate, model_dir
from closelook.evaluation.benchmark.demo.labelled import judged
from closelook.evaluation.benchmark.demo.passages import SOURCES
from closelook.evaluation.benchmark.views import tokenise
from closelook.evaluation.tasks import TASKS
from closelook.lrp_core.readers.predictions import predicted, rows_for
from closelook.lrp_core.records.types import Batch, span_row
from tools.demo_models import head_logits, lesson_of, train

UNSEEN_SEED = 77  # neither the training's nor the card's


@torch.no_grad()
def accuracy(view, tokenizer, task, n, seed=UNSEEN_SEED):
    """The share of samples whose target beats the foil, or whose answer's tokens are all the likeliest."""
    words = "all" if task == SOURCES else "single"
    samples = generate(task, n, seed)
    rows, rejects = tokenise(samples, tokenizer, kind=view.kind, max_length=view.max_length, words=words)
    assert not rejects
    known = rows_for(view, rows)
    return sum(int(is_right(view, task, known[at : at + 250]).sum()) for at in range(0, n, 250)) / n


def is_right(view, task, rows):
    """For each sample, whether the model is right [B]."""
    if task == SOURCES:
        rows = [span_row(row, row["position"] - len(row["answer_ids"]) + 1, row["answer_ids"]) for row in rows]
    batch = Batch.collate(rows, view.pad_id)
    if view.family.decoder is not None:
        return predicted(view, batch)[:, 0] == batch.target_ids
    if task == SOURCES:
        return (view.all_logits(batch).argmax(-1) == batch.span_ids).all(1)
    target, foil = view.logits(batch).unbind(-1)
    return target > foil


@torch.no_grad()
def judged_right(view, tokenizer, task, n, seed=UNSEEN_SEED):
    """The share of samples whose label is predicted, or Pearson's r of predicted and true scores."""
    several = list(islice(judged(task, seed, "test"), n))
    logits = torch.cat([head_logits(view.model, tokenizer, several[at : at + 250]) for at in range(0, n, 250)])
    if labels := TASKS[task].labels:
        true = torch.tensor([labels.index(draw.label) for draw in several])
        return float((logits.argmax(-1) == true).double().mean())
    true = torch.tensor([draw.score for draw in several])
    return float(torch.corrcoef(torch.stack([logits[:, 0], true]))[0, 1])


def trained(name, out):
    """The weights of a demo model after two short steps, as bytes; the model is written into `out`."""
    before = torch.get_num_threads()
    lesson, recipe = lesson_of(name)
    recipe = replace(recipe, steps=2, batch=4, pool=50)
    try:
        train(name, out, lesson(name, recipe), recipe)
    finally:
        torch.set_num_threads(before)
    if (model_dir(name) / "tokenizer.json").exists():
        AutoTokenizer.from_pretrained(model_dir(name)).save_pretrained(out)
    return (out / "model.safetensors").read_bytes()
