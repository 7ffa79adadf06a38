"""The model card of a demo model, written by its training run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from transformers import PreTrainedModel

if TYPE_CHECKING:
    from evaluation.benchmark.demo.fitting import Recipe

_CARD = """---
license: apache-2.0
library_name: transformers
{language}---

# Closelook demo: {kind}

A tiny {kind} ({layers} layers, width {width}, {heads}, {parameters:,} parameters) trained on {about}

## Training

| | |
|---|---|
| command | `{command}` |
| data | {data} |
| steps | {recipe.steps:,} of {recipe.batch} samples a task |
| optimiser | AdamW (betas 0.9, 0.98), one cycle to {recipe.learning_rate:g}, weight decay 0.01, no dropout |
| took | {wall_s:.0f} s on a CPU |

## {title}

{meaning}

| task | {title} |
|---|---|
{scores}
"""

LANGUAGE = """the generated language of
`evaluation/benchmark/demo`. It exists so that `closelook run` has something real to explain without a network or a GPU;
it knows nothing of English beyond that language."""


def write_card(
    out: Path,
    name: str,
    model: PreTrainedModel,
    recipe: Recipe,
    *,
    tasks: Sequence[str],
    rows: Mapping[str, str],
    title: str,
    meaning: str,
    wall_s: float,
    about: str = LANGUAGE,
    language: str = "en",
    command: str | None = None,
    data: str | None = None,
    layers: str | None = None,
) -> None:
    """Write README.md into the model's folder.

    `rows` are what was measured on each task, under `title`, which the sentence `meaning` explains. `about` says what
    the model was trained on, `layers` how many it has where one number does not say it; `command` and `data` are by
    default those of the demo's script and language.
    """
    train = f"python -m evaluation.benchmark.demo.train --models {name} --steps {recipe.steps} --seed {recipe.seed}"
    drawn = f"{recipe.pool:,} draws a task ({', '.join(tasks)}), seed {recipe.seed}, the training side of the split"
    config = model.config
    heads = f"{config.num_attention_heads} attention heads"
    if name == "llama":
        heads += f" over {config.num_key_value_heads} key/value heads"
    text = _CARD.format(
        about=about,
        language=f"language: {language}\n" if language else "",
        command=command or train,
        data=data or drawn,
        kind=type(model).__name__,
        layers=layers or config.num_hidden_layers,
        width=config.hidden_size,
        heads=heads,
        parameters=model.num_parameters(),
        recipe=recipe,
        wall_s=wall_s,
        title=title,
        meaning=meaning,
        scores="\n".join(f"| {task} | {score} |" for task, score in rows.items()),
    )
    (out / "README.md").write_text(text, encoding="utf-8")
