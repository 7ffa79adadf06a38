"""The model card of a demo model, written by its training run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from transformers import PreTrainedModel

if TYPE_CHECKING:
    from evaluation.benchmark.demo.heads import HeadRecipe
    from evaluation.benchmark.demo.train import Recipe

_CARD = """---
license: apache-2.0
library_name: transformers
language: en
---

# Closelook demo: {kind}

A tiny {kind} ({layers} layers, width {width}, {heads}, {parameters:,} parameters) trained on the generated language of
`evaluation/benchmark/demo`. It exists so that `closelook run` has something real to explain without a network or a GPU;
it knows nothing of English beyond that language.

## Training

| | |
|---|---|
| command | `python -m evaluation.benchmark.demo.train --models {name} --steps {recipe.steps} --seed {recipe.seed}` |
| data | {recipe.pool:,} draws a task ({tasks}), seed {recipe.seed}, the training side of the split |
| steps | {recipe.steps:,} of {recipe.batch} samples a task |
| optimiser | AdamW (betas 0.9, 0.98), one cycle to {recipe.learning_rate:g}, weight decay 0.01, no dropout |
| took | {wall_s:.0f} s on a CPU |

## {title}

{found}

| task | {title} |
|---|---|
{scores}
"""


def write_card(
    out: Path,
    name: str,
    model: PreTrainedModel,
    recipe: Recipe | HeadRecipe,
    *,
    tasks: Sequence[str],
    rows: Mapping[str, str],
    title: str,
    found: str,
    wall_s: float,
) -> None:
    """Write README.md into the model's folder.

    `rows` are what was measured on each task, under `title`, which the sentence `found` explains.
    """
    config = model.config
    heads = f"{config.num_attention_heads} attention heads"
    if name == "llama":
        heads += f" over {config.num_key_value_heads} key/value heads"
    text = _CARD.format(
        name=name,
        tasks=", ".join(tasks),
        kind=type(model).__name__,
        layers=config.num_hidden_layers,
        width=config.hidden_size,
        heads=heads,
        parameters=model.num_parameters(),
        recipe=recipe,
        wall_s=wall_s,
        title=title,
        found=found,
        scores="\n".join(f"| {task} | {score} |" for task, score in rows.items()),
    )
    (out / "README.md").write_text(text, encoding="utf-8")
