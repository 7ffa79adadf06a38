"""Training of small vision transformers: the demo's, on generated shapes, and one on the digits of MNIST.

`python -m tools.demo_models.vision --mnist FOLDER --out FOLDER` trains the one on digits. Training is seeded; that on
digits takes about a minute and a half on one core.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from transformers import AutoModelForImageClassification, PreTrainedModel

from closelook.evaluation.benchmark.demo.lexicon import SHAPES as LABELS
from closelook.evaluation.benchmark.demo.shapes import PATCH, shapes
from closelook.evaluation.benchmark.demo.split import Split
from closelook.evaluation.benchmark.pictures import SETTINGS, Preprocessing, decoded
from closelook.evaluation.benchmark.sources.files import fetch
from closelook.evaluation.benchmark.sources.pictures import MNIST
from tools.demo_models import fitting

_LAYERS, _WIDTH = 3, 48
_OF_SHAPES = """generated images of
`evaluation/benchmark/demo/shapes.py`. It exists so that `closelook run` has an image to explain without a network or a
GPU; it knows nothing beyond these shapes."""
_HELD_OUT = 5  # every fifth digit is not trained on, but measured for the card


@dataclass(frozen=True)
class VisionRecipe(fitting.Recipe):
    """The hyperparameters of a model of images."""

    hidden: float = 0.0  # share of patches set to zero in training, so that a missing patch tells nothing of the label
    shift: int = 0  # pixels by which an image is moved at random, at most
    mean: float = 0.5  # subtracted when images are normalised, so it is the grey level that becomes zero (0: black)


@dataclass(frozen=True)
class Images:
    """Images of one size, with the label of each."""

    pixels: np.ndarray  # [N, H, W, C] uint8
    labels: np.ndarray  # [N] int64
    names: tuple[str, ...]  # the names of the labels

    def __getitem__(self, chosen: np.ndarray) -> Images:
        return replace(self, pixels=self.pixels[chosen], labels=self.labels[chosen])


Sides = tuple[Images, Images]  # training images, test images


def train(name: str, out: Path, recipe: VisionRecipe) -> dict[str, float]:
    """Trains the demo's model, writes it with its settings and card into `out`, and returns its accuracy by task."""
    card = _card_of(recipe.evaluated, _OF_SHAPES)
    seen, unseen = drawn(recipe.pool, recipe.seed, "train"), drawn(recipe.evaluated, recipe.seed + 1, "test")
    return _train(name, "shapes", out, recipe, (seen, unseen), card)


def train_digits(folder: Path, out: Path, recipe: VisionRecipe) -> dict[str, float]:
    """Trains the same model on MNIST's digits in `folder`, and measures it on every fifth, which it is not trained on.

    Raises UserError if the folder has no files of MNIST.
    """
    files = fetch(str(folder), MNIST.suffixes)
    rows = [row for file in files for record in MNIST.records(file) for row in MNIST.rows(record)]
    pixels = np.stack([np.asarray(decoded(row["image"]))[..., None] for row in rows])
    labels = np.array([int(row["label"]) for row in rows])
    digits = Images(pixels, labels, tuple("0123456789"))
    held = np.arange(len(rows)) % _HELD_OUT == 0
    seen, unseen = digits[~held], digits[held]
    command = "python -m tools.demo_models.vision --mnist FOLDER --out FOLDER"
    card = replace(
        _card_of(len(unseen.labels), "digits of MNIST."),
        command=f"{command} --steps {recipe.steps} --seed {recipe.seed}",
        data=f"{len(seen.labels):,} of {len(labels):,} images, each moved by up to {recipe.shift} pixels",
    )
    return _train("mnist", "mnist", out, recipe, (seen, unseen), card)


def _card_of(n: int, about: str) -> fitting.Card:
    """The card's texts for a model that is measured on `n` images; `about` describes the images."""
    meaning = f"Share of {n:,} images not seen in training whose label is predicted:"
    return fitting.Card("Accuracy", meaning, about=about, language="")


def drawn(count: int, seed: int, split: Split) -> Images:
    """The first `count` generated images for training or for testing."""
    drawings = list(islice(shapes(seed, split), count))
    pixels = np.stack([drawing.pixels for drawing in drawings])
    return Images(pixels, np.array([drawing.label for drawing in drawings]), LABELS)


def _train(name: str, task: str, out: Path, recipe: VisionRecipe, sides: Sides, card: fitting.Card) -> dict[str, float]:
    """Trains a model on the first of the `sides`, writes it into `out`, and returns its accuracy on the second."""
    seen, unseen = sides
    torch.manual_seed(recipe.seed)
    _, height, width, channels = seen.pixels.shape
    assert height == width
    model = new_model(width, channels, seen.names)
    settings = preprocessing_settings(width, channels, recipe.mean)
    inputs = partial(_inputs, Preprocessing.of(settings, model.config.to_dict()))
    generator = torch.Generator().manual_seed(recipe.seed)

    def losses() -> dict[str, Tensor]:
        batch = seen[torch.randint(len(seen.labels), (recipe.batch,), generator=generator).numpy()]
        values = inputs(_moved(batch.pixels, recipe.shift, generator))
        logits = model(pixel_values=_hidden(values, recipe.hidden, generator)).logits
        return {task: torch.nn.functional.cross_entropy(logits, torch.from_numpy(batch.labels))}

    def measure(trained: PreTrainedModel) -> dict[str, float]:
        return {task: accuracy(trained, inputs, unseen)}

    scores = fitting.Training(name, model, recipe, losses, measure, card).run(out)
    (out / SETTINGS).write_text(json.dumps(settings, indent=1) + "\n")
    return scores


def new_model(size: int, channels: int, labels: tuple[str, ...]) -> PreTrainedModel:
    """A vision transformer with random weights: three layers of width 48."""
    numbers = {label: index for index, label in enumerate(labels)}
    image = {"image_size": size, "patch_size": PATCH, "num_channels": channels}
    config = fitting.config_of("vit", _LAYERS, _WIDTH, **image, id2label=dict(enumerate(labels)), label2id=numbers)
    model: PreTrainedModel = AutoModelForImageClassification.from_config(config)
    return model


def preprocessing_settings(size: int, channels: int, mean: float) -> dict[str, object]:
    """The `preprocessor_config.json` of a model whose images are `size` pixels wide and high."""
    resize = {"do_resize": True, "size": {"height": size, "width": size}, "resample": 2}
    rescale = {"do_rescale": True, "rescale_factor": 1 / 255}
    normalise = {"do_normalize": True, "image_mean": [mean] * channels, "image_std": [0.5] * channels}
    return {"image_processor_type": "ViTImageProcessor", **resize, **rescale, **normalise}


def _inputs(preprocessing: Preprocessing, pixels: np.ndarray) -> Tensor:
    """The numbers [B, C, H, W] that the model reads for images [B, H, W, C]."""
    return torch.from_numpy(np.stack([preprocessing.values(image) for image in pixels]))


def _hidden(values: Tensor, share: float, generator: torch.Generator) -> Tensor:
    """`values` [B, C, H, W] with a random share of their patches set to zero."""
    count, _, height, width = values.shape
    gone = torch.rand(count, 1, height // PATCH, width // PATCH, generator=generator) < share
    return values.masked_fill(gone.repeat_interleave(PATCH, 2).repeat_interleave(PATCH, 3), 0.0)


def _moved(pixels: np.ndarray, shift: int, generator: torch.Generator) -> np.ndarray:
    """Each of the images [B, H, W, C] moved by up to `shift` pixels at random; uncovered pixels are black."""
    if not shift:
        return pixels
    height, width = pixels.shape[1:3]
    framed = np.pad(pixels, ((0, 0), (shift, shift), (shift, shift), (0, 0)))
    corners = shift - torch.randint(-shift, shift + 1, (len(pixels), 2), generator=generator)
    cut = [image[top : top + height, left : left + width] for image, (top, left) in zip(framed, corners, strict=True)]
    return np.stack(cut)


@torch.no_grad()
def accuracy(model: PreTrainedModel, inputs: Callable[[np.ndarray], Tensor], images: Images) -> float:
    """The share of images whose label the model predicts."""
    logits = [model(pixel_values=part).logits for part in inputs(images.pixels).split(fitting.TOGETHER)]
    return float((torch.cat(logits).argmax(-1).numpy() == images.labels).mean())


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
