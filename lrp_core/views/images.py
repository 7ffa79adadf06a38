"""The view of a model that reads images: its tokens are a class token, then one for each patch.

Rows have one of `input_ids` for each token, all 0, and `pixel_values` [C, H, W]: C channels, height H and width W.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from closelook.lrp_core.families.images import ImageFamily, both
from closelook.lrp_core.parts.layers import CONVOLUTION, LinearLayer, weights_of
from closelook.lrp_core.records.types import Batch, UserError, by
from closelook.lrp_core.views.view import ModelView


class PatchTokens(nn.Module):
    """The embedding of images: pixels [B, C, H, W] to [B, T, D], the class token and then the patches row by row."""

    def __init__(self, projection: nn.Module, class_token: Callable[[], Tensor]) -> None:
        super().__init__()
        self.projection = projection
        self._class_token = class_token

    def forward(self, pixels: Tensor) -> Tensor:
        patches = self.projection(pixels).flatten(2).transpose(1, 2)
        return torch.cat([self._class_token().to(patches).expand(len(patches), -1, -1), patches], 1)


@dataclass(frozen=True, repr=False)
class ImageView(ModelView):
    """A view of an image model: its `source` is pixels, from which `token_embedding` makes the tokens."""

    family: ImageFamily

    # geometry

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

    # parts

    @cached_property
    def token_embedding(self) -> Any:
        return PatchTokens(self._embedding_weights, lambda: self._parameter(self.family.class_token))

    @property
    def _embedding_weights(self) -> Any:
        return self.model.get_submodule(self.family.token_embedding)

    def linear_layers(self) -> Iterator[LinearLayer]:
        """The convolution of patches, then those of the blocks."""
        yield LinearLayer(self._embedding_weights, CONVOLUTION, transposed=False)
        yield from super().linear_layers()

    def _parameter(self, name: str) -> Tensor:
        """A parameter of the module that holds the embeddings, by name, without a graph."""
        with weights_of(self.model.get_submodule(self.family.embeddings)) as module:
            parameter: Tensor = getattr(module, name)
            return parameter.detach()

    # computation

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

    def tokens(self, batch: Batch) -> Tensor:
        return self.token_embedding(self.source(batch))

    def source(self, batch: Batch) -> Tensor:
        """Pixels [B, C, H, W] in the model's precision."""
        assert batch.pixel_values is not None
        return batch.pixel_values.to(self.device, self.dtype)

    def hidden_from(self, batch: Batch, source: Tensor) -> Tensor:
        return self.hidden(replace(batch, pixel_values=source))

    def embed(self, batch: Batch) -> tuple[Tensor, Tensor]:
        token = self.tokens(batch)
        return token, self._with_positions(token)

    def _with_positions(self, token: Tensor) -> Tensor:
        return token + self._parameter(self.family.positions).to(token)

    def _hidden(self, batch: Batch, token: Tensor | None, positions: Tensor | None) -> Tensor:
        """Last hidden state [B, T, D], final norm included, of `token` embeddings [B, T, D] (default: the batch's).

        `positions` is not used: the model adds its own.
        """
        token = self.tokens(batch) if token is None else token
        full = self._with_positions(token)
        embeddings = self.model.get_submodule(self.family.embeddings)
        with torch.no_grad():  # the model embeds the pixels, and the hook replaces the result by `token`
            pixels = self.source(batch)
        with embeddings.register_forward_hook(lambda *_: full):
            return self.model.base_model(pixel_values=pixels, return_dict=True).last_hidden_state


def over_patches(view: ModelView, pixels: Tensor) -> Tensor:
    """Sums over the pixels of each patch, [B, T], from numbers of pixels [B, H, W]; 0 for the class token.

    Pixels at the right and lower edge that fill no patch are left out.
    """
    assert isinstance(view, ImageView)
    height, width = view.patch_shape
    rows, columns = pixels.shape[1] // height, pixels.shape[2] // width
    whole = pixels[:, : rows * height, : columns * width].unflatten(1, (rows, height)).unflatten(3, (columns, width))
    return nn.functional.pad(whole.sum((2, 4)).flatten(1), (1, 0))
