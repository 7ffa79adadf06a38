"""Models that read images as a class token and patches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lrp_core.families.base import Family
from lrp_core.records.capabilities import UNCENTRED, Capability


@dataclass(frozen=True, kw_only=True)
class ImageFamily(Family):
    """`token_embedding` is the convolution that makes a token of each patch; more paths are those of its neighbours."""

    embeddings: str = ""  # the module that adds positions to the class token and the patches
    class_token: str = "cls_token"  # its parameters, [1, 1, D] and [1, T, D]
    positions: str = "position_embeddings"

    @property
    def title(self) -> str:
        return f"{self.name} models"

    @property
    def capabilities(self) -> frozenset[Capability]:
        """Gradients are taken at pixels, which no norm stands behind."""
        return (super().capabilities | {UNCENTRED}).difference(self.lacks)

    def most_tokens(self, config: Any) -> int:
        """The number of tokens: one for the class and one for each patch."""
        (height, width), (of_patch, across) = both(config.image_size), both(config.patch_size)
        return 1 + (height // of_patch) * (width // across)


def both(size: int | Sequence[int]) -> tuple[int, int]:
    """Height and width from a config value that is one number or a pair."""
    if isinstance(size, int):
        return size, size
    height, width = size
    return height, width
