"""The embedded default: a generated language with exact evidence, and tiny models trained on it."""

from __future__ import annotations

from pathlib import Path

from evaluation.benchmark.demo.grammar import TASKS, generate

__all__ = ["HEADS", "MODELS", "TASKS", "generate", "model_dir"]

MODELS = ("bert", "gpt2", "llama")  # language models
#: Models with a classifier or a regressor on top, and the task of each.
HEADS = {"bert-sentiment": "sentiment", "gpt2-sentiment": "sentiment", "bert-score": "similarity"}


def model_dir(name: str) -> Path:
    """Where the shipped model `name`, one of MODELS or HEADS, and its tokenizer lie.

    Raises ValueError for another name.
    """
    if name not in (*MODELS, *HEADS):
        raise ValueError(f"there is no demo model {name!r}; the demo models are {', '.join((*MODELS, *HEADS))}")
    return Path(__file__).parent / "models" / name
