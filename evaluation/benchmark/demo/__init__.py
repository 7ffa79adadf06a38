"""The embedded default: a generated language with exact evidence, and three tiny models trained on it."""

from __future__ import annotations

from pathlib import Path

from evaluation.benchmark.demo.grammar import TASKS, generate

__all__ = ["MODELS", "TASKS", "generate", "model_dir"]

MODELS = ("bert", "gpt2", "llama")


def model_dir(name: str) -> Path:
    """Where the shipped model `name` (bert, gpt2 or llama) and its tokenizer lie.

    Raises ValueError for another name.
    """
    if name not in MODELS:
        raise ValueError(f"there is no demo model {name!r}; the demo models are {', '.join(MODELS)}")
    return Path(__file__).parent / "models" / name
