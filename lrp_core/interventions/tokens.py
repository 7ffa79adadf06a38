"""Removal of tokens from the input: by zeroed embeddings, the mask token, other tokens, or deletion; and of pixels.

AttnLRP B.2 zeroes a token's input embedding; NormXLogit uses the mask token or, in causal models, deletion. Positions
and segments stay, except after a deletion, where later tokens move up. Of images, AttnLRP B.2 sets single pixels or
whole patches to zero after the image is normalised; Chefer et al. (2021) set them to zero before, to black.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor

from closelook.lrp_core.device.transfer import to_device
from closelook.lrp_core.records.kinds import DELETE, MASK, RESAMPLE, ZERO
from closelook.lrp_core.records.types import Batch, UserError
from closelook.lrp_core.records.variants import scaled
from closelook.lrp_core.views.images import ImageView
from closelook.lrp_core.views.view import ModelView


def check_way(view: ModelView, way: str, instead: int | Tensor | None = None) -> None:
    """Raise UserError for a way to remove tokens that the model does not support, and for MASK without its token."""
    known = view.kind.perturbations
    if way not in known:
        raise UserError(f"{view.family.title} have no perturbation {way!r}; choose {' or '.join(map(repr, known))}")
    if way == MASK and instead is None:
        raise UserError(
            f"the perturbation {MASK!r} needs the id of the mask token: pass it as `instead` (Flipper: `mask_id`), or "
            f"choose {ZERO!r} (in a run `perturb.ways: [{ZERO}]`) if the tokenizer has none"
        )


@contextmanager
def tokens_removed(
    view: ModelView, batch: Batch, removed: Tensor, way: str, instead: int | Tensor | None = None
) -> Iterator[Batch]:
    """Inside, yields a batch, on the model's device, that runs without the tokens where `removed` is True.

    `removed` is [B, T], or for an encoder-decoder [B, T + U], where the decoder's tokens can only be zeroed. Padding
    does not count. `way` is ZERO, MASK (the token `instead` takes the place), RESAMPLE (the tokens `instead` [B, T] do)
    or DELETE. After a deletion rows are padded on the right, and the readout position is the last remaining token up to
    the old one. Batch and mask should be on the CPU, so that no check waits for the device. Raises UserError for a way
    that the model does not support, if the slot of a masked model is removed, and if a deletion leaves no token to read
    the prediction from.
    """
    check_way(view, way, instead)
    if view.kind.slot and removed.to("cpu").gather(1, batch.position.to("cpu")[:, None]).any():
        raise UserError("the slot where a masked model predicts cannot be removed: leave the readout position in")
    if way == DELETE:
        yield _without(batch.to("cpu"), removed.to("cpu")).to(view.device)
        return
    batch, removed = batch.to(view.device), to_device(removed, view.device)
    if way == RESAMPLE and instead is None:
        raise UserError(f"the perturbation {RESAMPLE!r} needs replacements for the removed tokens: give instead [B, T]")
    if instead is not None and way in (MASK, RESAMPLE):
        length = batch.input_ids.shape[1]
        gone = removed[:, :length] & (batch.attention_mask > 0)
        tokens = to_device(instead, view.device) if isinstance(instead, Tensor) else instead
        yield replace(batch, input_ids=torch.where(gone, tokens, batch.input_ids))
        return
    with embeddings_zeroed(view, batch, removed) as rows:
        yield rows


@contextmanager
def embeddings_zeroed(view: ModelView, batch: Batch, removed: Tensor) -> Iterator[Batch]:
    """Inside, yields a batch that runs with the embeddings of the tokens where `removed` is True set to zero."""
    if isinstance(view, ImageView):
        with view.tokens_zeroed(removed):
            yield batch
        return
    yield scaled(batch, (~removed).float())


def _without(batch: Batch, removed: Tensor) -> Batch:
    """The batch, on the CPU, after the removed tokens were deleted; rows are padded on the right."""
    kept = (batch.attention_mask > 0) & ~removed[:, : batch.input_ids.shape[1]]  # [B, T]
    in_text, remaining = batch.decoder_input_ids is None, kept.cumsum(-1)

    def moved(positions: Tensor) -> Tensor:
        return remaining.gather(1, positions) - 1 if in_text else positions

    if ((moved(batch.read_positions) < 0).any(-1) | (kept.sum(-1) == 0)).any():
        raise UserError("a deletion must leave a token to read the prediction from: remove fewer tokens")
    count = kept.sum(-1, keepdim=True)
    width = int(count.max())
    first = torch.argsort(~kept, dim=-1, stable=True)[:, :width]  # kept tokens in their order
    inside = torch.arange(width, device=count.device) < count
    kept_first = batch.over_tokens(lambda of_tokens: of_tokens.gather(1, first), moved)
    return replace(kept_first, attention_mask=inside.to(batch.attention_mask.dtype))


def pixels_replaced(view: ModelView, batch: Batch, removed: Tensor, fill: Sequence[float]) -> Batch:
    """The batch, on the model's device, with the value `fill` of each channel (normalised) in removed pixels.

    `removed` is a mask of patches [B, T] (the class token does not count) or of pixels [B, H * W]. Raises UserError for
    a batch without images, a `fill` of another number of channels, and a mask of another shape.
    """
    batch = batch.to(view.device)
    pixels = batch.pixel_values
    if pixels is None:
        raise UserError("only images have pixels that can be replaced: give a batch with pixel_values")
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
    return replace(batch, pixel_values=torch.where(gone, values, pixels))


def _of_patches(view: ModelView, removed: Tensor, height: int, width: int) -> Tensor:
    """A mask of pixels [B, H, W] from a mask of tokens `removed` [B, T], whose first is the class token."""
    assert isinstance(view, ImageView)
    tall, wide = view.patch_shape
    rows, columns = height // tall, width // wide
    grid = removed[:, 1:].view(-1, rows, columns)
    whole = grid.repeat_interleave(tall, 1).repeat_interleave(wide, 2)
    return torch.nn.functional.pad(whole, (0, width - columns * wide, 0, height - rows * tall))
