"""Pixels taken away from images: other values in their place, those of single pixels or of whole patches.

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
    """`batch`, on the model's device, with `fill` (by channel, normalised) where pixels are `removed`.

    `removed` is bool, [B, T] of patches (what it says of the class token does not matter) or [B, H * W] of pixels.
    Raises UserError for a batch without images, another number of channels, and a mask of neither form.
    """
    if batch.pixel_values is None:
        raise UserError("only images have pixels that can be replaced")
    pixels = batch.to(view.device).pixel_values
    assert pixels is not None
    count, channels, height, width = pixels.shape
    if len(fill) != channels:
        raise UserError(f"an image of {channels} channels is filled by as many numbers, not {len(fill)}")
    if removed.shape[1] == height * width:
        gone = removed.view(count, height, width)
    elif removed.shape[1] == batch.input_ids.shape[1]:
        gone = _of_patches(view, removed, height, width)
    else:
        raise UserError(f"{removed.shape[1]} entries are neither the patches nor the pixels of the images")
    values = to_device(torch.tensor(fill, dtype=pixels.dtype), pixels.device)[:, None, None]
    gone = to_device(gone, pixels.device)[:, None]
    return replace(batch.to(view.device), pixel_values=torch.where(gone, values, pixels))


def _of_patches(view: ModelView, removed: Tensor, height: int, width: int) -> Tensor:
    """The pixels [B, H, W] of the patches `removed` [B, T], the class token first."""
    assert isinstance(view, ImageView)
    tall, wide = view.patch_shape
    rows, columns = height // tall, width // wide
    grid = removed[:, 1:].view(-1, rows, columns)
    whole = grid.repeat_interleave(tall, 1).repeat_interleave(wide, 2)
    return torch.nn.functional.pad(whole, (0, width - columns * wide, 0, height - rows * tall))
