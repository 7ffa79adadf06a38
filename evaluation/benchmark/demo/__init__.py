"""The embedded default: a generated language with exact evidence, and tiny models trained on it."""

from __future__ import annotations

from pathlib import Path

from closelook.evaluation.benchmark.demo.grammar import TASKS, generate
from closelook.lrp_core.records.types import UserError, nearest

__all__ = [
    "ANSWERING",
    "EVERY",
    "HEADS",
    "IDS",
    "MODELS",
    "READING",
    "SEEDS",
    "TASKS",
    "VISION",
    "generate",
    "model_dir",
    "place_of",
]

IDS = "demo/"  # ids of the shipped models begin so

MODELS = ("bert", "gpt2", "llama")  # language models
SEEDS = {"gpt2-seed1": 1, "gpt2-seed2": 2}  # gpt2 again, from other weights and draws with the same tokenizer
#: Models with a classifier or a regressor on top, and the task of each.
HEADS = {
    "bert-sentiment": "sentiment",
    "gpt2-sentiment": "sentiment",
    "bert-score": "similarity",
    "megatron-brackets": "brackets",
    "bert-triggers": "triggers",
}
ANSWERING = {"t5": "qa"}  # encoder-decoders, and the task of each
VISION = ("vit",)  # models of images
READING = ("sources",)  # language models that answer from one of several passages
EVERY = (*MODELS, *SEEDS, *HEADS, *ANSWERING, *VISION, *READING)


def model_dir(name: str) -> Path:
    """The folder of the shipped model `name`, one of EVERY, with its tokenizer or image processor.

    Raises ValueError for another name.
    """
    if name not in EVERY:
        raise ValueError(f"there is no demo model {name!r}; the demo models are {', '.join(EVERY)}")
    return Path(__file__).parent / "models" / name


def place_of(model: str) -> str:
    """The folder of a model with this id, the folder that it names, or the id itself.

    Raises UserError for a shipped model that does not exist.
    """
    if model.startswith(IDS):
        name = model.removeprefix(IDS)
        if name not in EVERY:
            raise UserError(f"unknown id {model!r}{nearest(model, [IDS + known for known in EVERY])}")
        return str(model_dir(name))
    folder = Path(model).expanduser()
    return str(folder) if folder.is_dir() else model
