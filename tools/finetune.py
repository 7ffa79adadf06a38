"""Fine-tunes a text classifier: `python -m tools.finetune MODEL --task sst2 --train FILE --to FOLDER`.

AdamW with warm-up over a tenth of the steps and linear decay; a plain loop, to be read and changed.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import cross_entropy
from transformers import AutoModelForSequenceClassification, AutoTokenizer, get_linear_schedule_with_warmup

from closelook.evaluation.benchmark.reading import Origin, read, survey
from closelook.evaluation.benchmark.samples import Row, is_reject
from closelook.evaluation.benchmark.sources.own import Wanted
from closelook.evaluation.tasks import TASKS

WARM_UP = 0.1  # share of the steps
SAID_EVERY = 50  # steps


def labelled_rows(task: str, path: Path) -> list[Row]:
    """The labelled samples of a task in its published layout, or of a user's own files (`closelook tasks`)."""
    source = TASKS[task].sources[0].name if task in TASKS else "samples"
    fields = Wanted(output="label", evidence=False)
    drawn = survey(Origin(task, source, path=str(path)), fields=fields)
    return [row for row in read(drawn, fields) if not is_reject(row) and row["label"] is not None]


def batches(count: int, size: int, generator: torch.Generator) -> Iterator[list[int]]:
    """The numbers of `count` samples in random order, `size` at a time."""
    order = torch.randperm(count, generator=generator).tolist()
    for start in range(0, count, size):
        yield order[start : start + size]


class Classifier:
    """A model and tokenizer that give texts a label."""

    def __init__(self, base: str, labels: Sequence[str], most_tokens: int) -> None:
        self.labels, self.most_tokens = list(labels), most_tokens
        self.tokenizer = AutoTokenizer.from_pretrained(base)
        self.model = AutoModelForSequenceClassification.from_pretrained(
            base,
            num_labels=len(labels),
            id2label=dict(enumerate(labels)),
            label2id={label: number for number, label in enumerate(labels)},
            dtype=torch.float32,
        )

    def logits(self, rows: Sequence[Row]) -> torch.Tensor:
        """The logits of rows [B, labels]."""
        texts, seconds = [row["text"] for row in rows], [row["second"] for row in rows]
        pairs = None if seconds[0] is None else seconds
        encoded = self.tokenizer(
            texts, pairs, truncation=True, max_length=self.most_tokens, padding=True, return_tensors="pt"
        )
        return self.model(**encoded.to(self.model.device)).logits

    def numbers(self, rows: Sequence[Row]) -> torch.Tensor:
        """The numbers of the rows' labels [B]."""
        return torch.tensor([self.labels.index(row["label"]) for row in rows], device=self.model.device)

    def train(self, rows: Sequence[Row], settings: argparse.Namespace) -> None:
        """Fine-tune all weights on `rows`."""
        generator = torch.Generator().manual_seed(settings.seed)
        optimizer = torch.optim.AdamW(self.model.parameters(), lr=settings.rate)
        steps = settings.epochs * -(-len(rows) // settings.batch)
        steps = min(steps, settings.steps or steps)
        schedule = get_linear_schedule_with_warmup(optimizer, int(WARM_UP * steps), steps)
        done = 0
        self.model.train()
        for _ in range(settings.epochs):
            for numbers in batches(len(rows), settings.batch, generator):
                if done == steps:
                    return
                batch = [rows[number] for number in numbers]
                loss = cross_entropy(self.logits(batch), self.numbers(batch))
                optimizer.zero_grad()
                loss.backward()
                torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
                optimizer.step()
                schedule.step()
                done += 1
                if done % SAID_EVERY == 0:
                    print(f"step {done} of {steps}: loss {loss.item():.3f}", flush=True)

    @torch.inference_mode()
    def accuracy(self, rows: Sequence[Row], batch: int) -> float:
        """The share of `rows` whose label the model predicts."""
        self.model.eval()
        right = 0
        for start in range(0, len(rows), batch):
            some = rows[start : start + batch]
            right += int((self.logits(some).argmax(1) == self.numbers(some)).sum())
        return right / len(rows)


def parsed(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command's arguments."""
    parser = argparse.ArgumentParser(prog="python -m tools.finetune", description=__doc__)
    known: dict[str, dict[str, Any]] = {
        "model": {"help": "folder or hub id of an encoder"},
        "--task": {"required": True, "help": "a task with labels, or any name for files of your own"},
        "--train": {"type": Path, "required": True, "help": "samples to train on"},
        "--test": {"type": Path, "help": "samples to measure accuracy on"},
        "--to": {"type": Path, "required": True, "help": "folder of the fine-tuned model"},
        "--epochs": {"type": int, "default": 3},
        "--steps": {"type": int, "help": "at most so many"},
        "--rate": {"type": float, "default": 1e-4},
        "--batch": {"type": int, "default": 32},
        "--tokens": {"type": int, "default": 64, "help": "longer texts are cut"},
        "--seed": {"type": int, "default": 0},
    }
    for name, facts in known.items():
        parser.add_argument(name, **facts)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    """Fine-tune, print the accuracy and save the model with its tokenizer."""
    settings = parsed(arguments)
    torch.manual_seed(settings.seed)
    rows = labelled_rows(settings.task, settings.train)
    known = TASKS[settings.task].labels if settings.task in TASKS else ()
    classifier = Classifier(settings.model, known or sorted({row["label"] for row in rows}), settings.tokens)
    classifier.train(rows, settings)
    if settings.test is not None:
        accuracy = classifier.accuracy(labelled_rows(settings.task, settings.test), settings.batch)
        print(f"accuracy on {settings.test}: {accuracy:.1%}")
    classifier.model.save_pretrained(settings.to)
    classifier.tokenizer.save_pretrained(settings.to)


if __name__ == "__main__":
    main()
