"""Attention maps of encoder-decoders, chained from the encoder's tokens to the decoder's prediction."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lrp_core.encoder_decoder import EncoderDecoderView
from lrp_core.methods import ATTENDED, IDENTITY, LEFT_OUT
from lrp_core.types import Batch


class CrossRollout:
    """How encoder and decoder tokens are mixed into decoder tokens (Chefer et al. 2021, section 3, and their code).

    Layers come in the order of the forward; maps are means over heads, whatever they were weighted with. In a
    stack's own attention R += A R; where the decoder reads the encoder R_qi += norm(R_qq)^T A norm(R_ii), with
    norm(R) = I + the rest of R, its rows brought to a sum of 1 (0 where they have none). Decoder tokens behind the
    prediction, which it cannot see, have no part: the transpose would let them in.
    """

    def __init__(self, view: EncoderDecoderView, batch: Batch, dtype: torch.dtype) -> None:
        sizes = batch.input_ids.shape[1], batch.every_id.shape[1] - batch.input_ids.shape[1]
        of_maps: dict[str, Any] = {"dtype": dtype, "device": batch.input_ids.device}
        self.of_encoder, self.of_decoder = (torch.eye(size, **of_maps).repeat(len(batch), 1, 1) for size in sizes)
        self.attended = torch.zeros_like(self.of_decoder)  # that without the identity, all of whose digits it keeps
        self.mixed = torch.zeros(len(batch), sizes[1], sizes[0], **of_maps)  # [B, U, T]
        self._batch, self._encoder = batch, view.n_encoder_layers
        self._asking = view.asking(batch, view.n_encoder_layers)[..., None]  # [B, U, 1]
        self._cross = len(view.attentions) - len(view.cross_attentions)

    def add(self, layer: int, step: Tensor) -> None:
        """`step` [B, queries, keys] is the map of attention `layer`, on the axis of `view.attentions`."""
        step = step.to(self.mixed)
        if layer < self._encoder:
            self.of_encoder = self.of_encoder + step @ self.of_encoder
            return
        step = step * self._asking
        if layer < self._cross:
            self.mixed = self.mixed + step @ self.mixed
            attended = step @ self.of_decoder
            self.of_decoder, self.attended = self.of_decoder + attended, self.attended + attended
        else:
            read = step @ _rows_to_one(self.of_encoder)
            self.mixed = self.mixed + _rows_to_one(self.of_decoder).transpose(1, 2) @ read

    def parts(self, itself: str = IDENTITY) -> dict[str, Tensor]:
        """The rows of the predicted positions, as fields of a Relevance; `itself` as for `of_itself`."""
        batch = self._batch
        at = torch.arange(len(batch), device=batch.position.device), batch.position
        of_decoder = of_itself(self.of_decoder[at], self.attended[at], batch.position, itself)
        rows = torch.cat([self.mixed[at], of_decoder], 1)
        return batch.parted(rows.masked_fill(batch.every_mask == 0, 0))


def of_itself(whole: Tensor, attended: Tensor, position: Tensor, itself: str) -> Tensor:
    """Rows [B, T] of a rollout, with what `itself` says of the token at `position` [B].

    `whole` has the identity that is added to maps, `attended` what attention brought alone: they differ in that token.
    """
    if itself == LEFT_OUT:
        return whole.scatter(1, position[:, None].to(whole.device), 0)
    return attended if itself == ATTENDED else whole


def _rows_to_one(maps: Tensor) -> Tensor:
    """I + what else is in each row of [B, N, N], divided by its sum."""
    identity = torch.eye(maps.shape[1], dtype=maps.dtype, device=maps.device)
    rest = maps - identity
    total = rest.sum(-1, keepdim=True)
    return identity + torch.where(total == 0, 0, rest / total)
