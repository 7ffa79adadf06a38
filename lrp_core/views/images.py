"""The view of a model that reads images: its tokens are a class token, then one for each patch.

Rows have one of `input_ids` for each token, all 0, and `pixel_values` [C, H, W]: C channels, height H and width W.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from closelook.lrp_core.families.images import ImageFamily, both
from closelook.lrp_core.parts.layers import weights_of
from closelook.lrp_core.records.types import Batch, UserError, by
from closelook.lrp_core.views.view import ModelView


@dataclass(frozen=True, repr=False)
class ImageView(ModelView):
    """A view of an image model."""

    family: ImageFamily

    @property
    def vocab(self) -> int:
        return 1

    @property
    def pad_id(self) -> int:
        return 0

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(channels, height, width) of the images that the model takes."""
        return (self.config.num_channels, *both(self.config.image_size))

    @property
    def patch_shape(self) -> tuple[int, int]:
        """(height, width) of a patch."""
        return both(self.config.patch_size)

    @cached_property
    def token_embedding(self) -> Any:
        """The convolution that embeds patches."""
        return self.model.get_submodule(self.family.token_embedding)

    def tokens(self, batch: Batch) -> Tensor:
        """Embeddings of the class token and the patches, [B, T, D]."""
        assert batch.pixel_values is not None
        patches = self.token_embedding(batch.pixel_values.to(self.device, self.dtype)).flatten(2).mT
        return torch.cat([self._parameter(self.family.class_token).expand(len(patches), -1, -1), patches], 1)

    def _parameter(self, name: str) -> Tensor:
        """A parameter of the module that holds the embeddings, by name, without a graph."""
        with weights_of(self.model.get_submodule(self.family.embeddings)) as module:
            parameter: Tensor = getattr(module, name)
            return parameter.detach()

    @contextmanager
    def tokens_zeroed(self, removed: Tensor) -> Iterator[None]:
        """Inside, the embeddings of the tokens where `removed` [B, T] is True are those of their positions alone."""
        embeddings = self.model.get_submodule(self.family.embeddings)
        positions = self._parameter(self.family.positions)

        def hook(_: nn.Module, args: Any, embedded: Tensor) -> Tensor:
            return embedded.where(~removed.to(embedded.device)[..., None], positions.to(embedded))

        with embeddings.register_forward_hook(hook):
            yield

    def check_input(self, batch: Batch) -> None:
        """Raise UserError for a batch without pixels, or whose image size or number of tokens is not the model's."""
        if batch.pixel_values is None:
            raise UserError(f"{self.family.title} read images: give pixel_values")
        shape, expected = tuple(batch.pixel_values.shape[1:]), self.image_shape
        if shape != expected:
            raise UserError(
                f"the image is {by(shape)} (channels, height, width), the model takes {by(expected)}: resize it"
            )
        if batch.input_ids.shape[1] != self.max_length:
            count = batch.input_ids.shape[1]
            raise UserError(
                f"an image has {self.max_length} tokens for {self.family.title}, `input_ids` have {count}: "
                f"give {self.max_length} zeros"
            )


def over_patches(view: ModelView, pixels: Tensor) -> Tensor:
    """Sums over the pixels of each patch, [B, T], from numbers of pixels [B, H, W]; 0 for the class token.

    Pixels at the right and lower edge that fill no patch are left out.
    """
    assert isinstance(view, ImageView)
    height, width = view.patch_shape
    rows, columns = pixels.shape[1] // height, pixels.shape[2] // width
    whole = pixels[:, : rows * height, : columns * width].unflatten(1, (rows, height)).unflatten(3, (columns, width))
    return nn.functional.pad(whole.sum((2, 4)).flatten(1), (1, 0))
