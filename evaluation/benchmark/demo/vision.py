"""Small vision transformers: the demo's, of generated shapes, and one of MNIST's digits. Seeded; about a minute each.

`python -m evaluation.benchmark.demo.vision --mnist FOLDER --out FOLDER` trains the one of digits.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel, ViTConfig, ViTForImageClassification

from evaluation.benchmark.demo.card import write_card
from evaluation.benchmark.demo.fitting import Recipe, fit
from evaluation.benchmark.demo.lexicon import SHAPES as LABELS
from evaluation.benchmark.demo.shapes import PATCH, shapes
from evaluation.benchmark.pictures import SETTINGS, Preprocessing, decoded
from evaluation.benchmark.sources.files import fetch
from evaluation.benchmark.sources.pictures import MNIST

_LAYERS, _HEADS, _WIDTH = 3, 4, 48
_OF_SHAPES = """generated images of
`evaluation/benchmark/demo/shapes.py`. It exists so that `closelook run` has an image to explain without a network or a
GPU; it knows nothing beyond these shapes."""
_HELD_OUT = 5  # of the digits, every fifth is for the card alone


@dataclass(frozen=True)
class VisionRecipe(Recipe):
    """How a model of images is trained."""

    hidden: float = 0.0  # share of patches that are not seen, so that one which is gone says nothing
    shift: int = 0  # pixels by which an image is moved at random
    mean: float = 0.5  # what images are normalised by, and so which pixels are zero: grey, or black (0)


@dataclass(frozen=True)
class Images:
    """Images of one size, and the label of each."""

    pixels: np.ndarray  # [N, H, W, C] uint8
    labels: np.ndarray  # [N] int64


def train(name: str, out: Path, recipe: VisionRecipe) -> dict[str, float]:
    """Train the demo's model, write it with its settings and card into `out`, and return its accuracy by task."""
    seen = drawn(recipe.pool, recipe.seed, "train")
    unseen = drawn(recipe.evaluated, recipe.seed + 1, "test")
    card = {"about": _OF_SHAPES}
    return _train(name, "shapes", out, recipe, seen, unseen, LABELS, card)


def train_digits(folder: Path, out: Path, recipe: VisionRecipe) -> dict[str, float]:
    """The same of MNIST's digits in `folder`; every fifth is held out. Raises UserError where there are none."""
    rows = [
        (decoded(row["image"]), int(row["label"]))
        for file in fetch(str(folder), MNIST.suffixes)
        for record in MNIST.records(file)
        for row in MNIST.rows(record)
    ]
    pixels = np.stack([np.asarray(image)[..., None] for image, _ in rows])
    labels = np.array([label for _, label in rows])
    held = np.arange(len(rows)) % _HELD_OUT == 0
    seen, unseen = (Images(pixels[chosen], labels[chosen]) for chosen in (~held, held))
    command = "python -m evaluation.benchmark.demo.vision --mnist FOLDER --out FOLDER"
    card = {
        "about": "digits of MNIST.",
        "command": f"{command} --steps {recipe.steps} --seed {recipe.seed}",
        "data": f"{len(seen.labels):,} of {len(labels):,} images, each moved by up to {recipe.shift} pixels",
    }
    return _train("mnist", "mnist", out, recipe, seen, unseen, tuple(map(str, range(10))), card)


def drawn(count: int, seed: int, split: str) -> Images:
    """The first `count` generated images of a side of the split."""
    samples = list(islice(shapes(seed, "train" if split == "train" else "test"), count))
    return Images(np.stack([one.pixels for one in samples]), np.array([one.label for one in samples]))


def _train(
    name: str,
    task: str,
    out: Path,
    recipe: VisionRecipe,
    seen: Images,
    unseen: Images,
    labels: tuple[str, ...],
    card: Mapping[str, str],
) -> dict[str, float]:
    """`card` is what its card says beside the numbers."""
    started = time.monotonic()
    torch.manual_seed(recipe.seed)
    _, height, width, channels = seen.pixels.shape
    assert height == width
    model = new_model(width, PATCH, channels, labels).train()
    settings = preprocessing_settings(width, channels, recipe.mean)
    inputs = partial(_inputs, Preprocessing.of(settings, model.config.to_dict()))
    generator = torch.Generator().manual_seed(recipe.seed)

    def losses() -> dict[str, Tensor]:
        chosen = torch.randint(len(seen.labels), (recipe.batch,), generator=generator).numpy()
        pixels = _moved(seen.pixels[chosen], recipe.shift, generator)
        logits = model(pixel_values=_hidden(inputs(pixels), recipe.hidden, generator)).logits
        return {task: torch.nn.functional.cross_entropy(logits, torch.from_numpy(seen.labels[chosen]))}

    fit(name, model, recipe, losses)
    score = accuracy(model.eval(), inputs, unseen)
    model.save_pretrained(out)
    (out / SETTINGS).write_text(json.dumps(settings, indent=1) + "\n")
    write_card(
        out,
        name,
        model,
        recipe,
        tasks=(task,),
        rows={task: f"{score:.1%}"},
        title="Accuracy",
        meaning=f"Share of {len(unseen.labels):,} images not seen in training whose label is predicted:",
        wall_s=time.monotonic() - started,
        language="",
        **card,
    )
    return {task: score}


def new_model(size: int, patch: int, channels: int, labels: tuple[str, ...]) -> PreTrainedModel:
    """A freshly initialised vision transformer: three layers of width 48, no dropout."""
    config = ViTConfig(
        hidden_size=_WIDTH,
        num_hidden_layers=_LAYERS,
        num_attention_heads=_HEADS,
        intermediate_size=4 * _WIDTH,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        initializer_range=0.06,
        image_size=size,
        patch_size=patch,
        num_channels=channels,
        id2label=dict(enumerate(labels)),
        label2id={label: at for at, label in enumerate(labels)},
    )
    return ViTForImageClassification(config)


def preprocessing_settings(size: int, channels: int, mean: float) -> dict[str, object]:
    """What `preprocessor_config.json` says of a model of images with this edge."""
    return {
        "image_processor_type": "ViTImageProcessor",
        "do_resize": True,
        "size": {"height": size, "width": size},
        "resample": 2,
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": [mean] * channels,
        "image_std": [0.5] * channels,
    }


def _inputs(preprocessing: Preprocessing, pixels: np.ndarray) -> Tensor:
    """What the model computes with [B, C, H, W], of images [B, H, W, C]."""
    return torch.from_numpy(np.stack([preprocessing.values(one) for one in pixels]))


def _hidden(values: Tensor, share: float, generator: torch.Generator) -> Tensor:
    """`values` [B, C, H, W] with a share of their patches zero."""
    count, _, height, width = values.shape
    gone = torch.rand(count, 1, height // PATCH, width // PATCH, generator=generator) < share
    return values.masked_fill(gone.repeat_interleave(PATCH, 2).repeat_interleave(PATCH, 3), 0.0)


def _moved(pixels: np.ndarray, shift: int, generator: torch.Generator) -> np.ndarray:
    """Each of the images [B, H, W, C] moved by up to `shift` pixels; what comes in is black."""
    if not shift:
        return pixels
    moved = np.zeros_like(pixels)
    by = torch.randint(-shift, shift + 1, (len(pixels), 2), generator=generator).tolist()
    height, width = pixels.shape[1:3]
    for one, to, (down, right) in zip(pixels, moved, by, strict=True):
        rows, columns = (
            slice(max(0, down), height + min(0, down)),
            slice(max(0, right), width + min(0, right)),
        )
        to[rows, columns] = one[max(0, -down) : height + min(0, -down), max(0, -right) : width + min(0, -right)]
    return moved


@torch.no_grad()
def accuracy(model: PreTrainedModel, inputs: Callable[[np.ndarray], Tensor], images: Images) -> float:
    """Share of the images whose label is predicted."""
    predicted = [
        model(pixel_values=inputs(images.pixels[at : at + 250])).logits.argmax(-1).numpy()
        for at in range(0, len(images.labels), 250)
    ]
    return float((np.concatenate(predicted) == images.labels).mean())


SHAPES = VisionRecipe(steps=3000, hidden=0.1)
DIGITS = VisionRecipe(steps=1000, shift=2, mean=0.0)


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a small vision transformer on MNIST's digits.")
    parser.add_argument("--mnist", type=Path, required=True, help="folder with the IDX files")
    parser.add_argument("--out", type=Path, required=True, help="folder for the model")
    parser.add_argument("--steps", type=int, default=DIGITS.steps)
    parser.add_argument("--seed", type=int, default=DIGITS.seed)
    chosen = parser.parse_args()
    chosen.out.mkdir(parents=True, exist_ok=True)
    recipe = replace(DIGITS, steps=chosen.steps, seed=chosen.seed)
    scores = train_digits(chosen.mnist, chosen.out, recipe)
    print(f"mnist -> {chosen.out}  " + "  ".join(f"{task} {score:.3f}" for task, score in scores.items()))


if __name__ == "__main__":
    main()
