"""Generated images of two classes: shapes with a disc among them, or with a cross instead.

An image is 24 × 24 pixels in colour: a grey, noisy background with the shape that decides the class and two others
(bars, rods or frames), apart from each other. Places, sizes and colours are drawn in the same way for both classes, so
that only the deciding shape tells them apart. The evidence is its pixels. The background has the mean colour of pixels
that are zero after normalisation, so that removed pixels look like background.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from closelook.evaluation.benchmark.demo.lexicon import SHAPES as LABELS
from closelook.evaluation.benchmark.demo.split import Split, distinct
from closelook.evaluation.benchmark.pictures import encoded, picture
from closelook.evaluation.benchmark.samples import Row

SIZE, PATCH = 24, 4  # pixels
_APART = 1  # pixels of background between two shapes, at least
_OTHERS = ("bar", "rod", "frame")


@dataclass(frozen=True)
class Drawing:
    """An image: `pixels` [24, 24, 3] uint8, its label, and the `mask` [24, 24] bool of the deciding shape's pixels."""

    pixels: np.ndarray
    label: int
    mask: np.ndarray

    @property
    def key(self) -> str:
        """The pixels in hex, by which images are told apart and split."""
        return self.pixels.tobytes().hex()

    content = key

    @property
    def regions(self) -> list[tuple[int, int, int, int]]:
        """The pixels of the deciding shape as regions (top, left, bottom, right), one for each run within a row."""
        steps = np.diff(np.pad(self.mask.astype(int), ((0, 0), (1, 1))))  # [24, 25]: 1 at a start, -1 behind an end
        starts, ends = np.argwhere(steps == 1).tolist(), np.argwhere(steps == -1).tolist()
        return [(row, start, row + 1, end) for (row, start), (_, end) in zip(starts, ends, strict=True)]

    def row(self, name: str) -> Row:
        """The image as a sample called `name`."""
        return picture("demo", name, encoded(self.pixels), label=LABELS[self.label], regions=self.regions)


def shapes(seed: int, split: Split) -> Iterator[Drawing]:
    """Distinct images for training or test, in an order fixed by `seed`."""
    return distinct("shapes", _drawing, seed, split)


def _drawing(rng: random.Random) -> Drawing:
    """A random image."""
    noise = np.random.default_rng(rng.getrandbits(64))
    pixels = noise.integers(98, 158, (SIZE, SIZE, 3))
    label = rng.randrange(len(LABELS))
    taken = np.zeros((SIZE, SIZE), bool)
    masks = []
    for shape in (LABELS[label], *rng.choices(_OTHERS, k=2)):
        mask = _placed(shape, rng, taken)
        colour = np.array([rng.choice((rng.randrange(70), rng.randrange(186, 256))) for _ in range(3)])
        pixels[mask] = np.clip(colour + noise.integers(-20, 21, (int(mask.sum()), 3)), 0, 255)
        taken |= mask
        masks.append(mask)
    return Drawing(pixels.astype(np.uint8), label, masks[0])


def _placed(shape: str, rng: random.Random, taken: np.ndarray) -> np.ndarray:
    """The pixels [24, 24] bool of a shape at a random place, away from the pixels `taken` by other shapes."""
    while True:
        form = _form(shape, rng)
        top, left = (rng.randrange(SIZE - edge + 1) for edge in form.shape)
        bottom, right = top + form.shape[0], left + form.shape[1]
        around = taken[max(0, top - _APART) : bottom + _APART, max(0, left - _APART) : right + _APART]
        if not around.any():
            mask = np.zeros_like(taken)
            mask[top:bottom, left:right] = form
            return mask


def _form(shape: str, rng: random.Random) -> np.ndarray:
    """The pixels [h, w] bool of a shape of random size, in the smallest box around it."""
    edge = rng.choice((7, 8))
    if shape == "bar":
        return np.ones((2, edge), bool)
    if shape == "rod":
        return np.ones((edge, 2), bool)
    offsets = np.arange(edge) - (edge - 1) / 2
    if shape == "disc":
        return offsets[:, None] ** 2 + offsets**2 <= (edge / 2) ** 2
    if shape == "cross":
        middle = np.abs(offsets) <= 1
        return middle[:, None] | middle
    rim = np.abs(offsets) > (edge - 2) / 2
    return rim[:, None] | rim
