"""The record that describes families of models that read images as a class token and patches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lrp_core.families.base import Family
from lrp_core.records.capabilities import UNCENTRED, Capability


@dataclass(frozen=True, kw_only=True)
class ImageFamily(Family):
    """The description of a family of image models; `token_embedding` is the convolution that embeds patches."""

    embeddings: str = ""  # path of the module that adds positions to the class token and the patches
    class_token: str = "cls_token"  # its parameter [1, 1, D]
    positions: str = "position_embeddings"  # its parameter [1, T, D]

    @property
    def title(self) -> str:
        return f"{self.name} models"

    @property
    def capabilities(self) -> frozenset[Capability]:
        """As of other families, and UNCENTRED: gradients are taken at pixels, which no norm follows directly."""
        return (super().capabilities | {UNCENTRED}).difference(self.lacks)

    def most_tokens(self, config: Any) -> int:
        """The number of tokens of an image: one for the class and one for each patch."""
        (height, width), (of_patch, across) = both(config.image_size), both(config.patch_size)
        return 1 + (height // of_patch) * (width // across)


def both(size: int | Sequence[int]) -> tuple[int, int]:
    """(height, width) from a config value that is one number or a pair."""
    if isinstance(size, int):
        return size, size
    height, width = size
    return height, width
