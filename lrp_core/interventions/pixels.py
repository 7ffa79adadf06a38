"""Removal of single pixels or whole patches from images: other values are put in their place.

AttnLRP B.2 sets pixels to zero after the image is normalised; Chefer et al. (2021) set them to zero before, to black.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from lrp_core.device.transfer import to_device
from lrp_core.records.types import Batch, UserError
from lrp_core.views.images import ImageView
from lrp_core.views.view import ModelView


def pixels_replaced(view: ModelView, batch: Batch, removed: Tensor, fill: Sequence[float]) -> Batch:
    """The batch, on the model's device, with the value `fill` of each channel (normalised) in removed pixels.

    `removed` is a mask of patches [B, T] (the class token does not count) or of pixels [B, H * W]. Raises UserError for
    a batch without images, a `fill` of another number of channels, and a mask of another shape.
    """
    if batch.pixel_values is None:
        raise UserError("only images have pixels that can be replaced: give a batch with pixel_values")
    pixels = batch.to(view.device).pixel_values
    assert pixels is not None
    count, channels, height, width = pixels.shape
    if len(fill) != channels:
        raise UserError(f"an image of {channels} channels needs {channels} numbers as fill, not {len(fill)}")
    if removed.shape[1] == height * width:
        gone = removed.view(count, height, width)
    elif removed.shape[1] == batch.input_ids.shape[1]:
        gone = _of_patches(view, removed, height, width)
    else:
        patches = batch.input_ids.shape[1]
        raise UserError(
            f"a mask must have {patches} entries for each image (its tokens) or {height * width} (its pixels), not "
            f"{removed.shape[1]}"
        )
    values = to_device(torch.tensor(fill, dtype=pixels.dtype), pixels.device)[:, None, None]
    gone = to_device(gone, pixels.device)[:, None]
    return replace(batch.to(view.device), pixel_values=torch.where(gone, values, pixels))


def _of_patches(view: ModelView, removed: Tensor, height: int, width: int) -> Tensor:
    """A mask of pixels [B, H, W] from a mask of tokens `removed` [B, T], whose first is the class token.

    Pixels at the right and lower edge that fill no patch are False.
    """
    assert isinstance(view, ImageView)
    tall, wide = view.patch_shape
    rows, columns = height // tall, width // wide
    grid = removed[:, 1:].view(-1, rows, columns)
    whole = grid.repeat_interleave(tall, 1).repeat_interleave(wide, 2)
    return torch.nn.functional.pad(whole, (0, width - columns * wide, 0, height - rows * tall))
