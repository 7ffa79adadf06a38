"""The view of a loaded model: its logits at the readout positions of a batch, and what its head makes of a state."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from closelook.lrp_core.device.precision import wide
from closelook.lrp_core.operations.forward import explained_numbers, in_order, logits_at, pieces_of
from closelook.lrp_core.parts.layers import check_unaltered, weights_of
from closelook.lrp_core.parts.model import ModelParts
from closelook.lrp_core.records.types import Batch, UserError


def up_to(position: Tensor, mask: Tensor) -> Tensor:
    """True up to and at the `position` [B] of each row, in the shape of `mask` [B, T]."""
    return torch.arange(mask.shape[1], device=mask.device) <= position.to(mask.device)[:, None]


@dataclass(frozen=True, repr=False)
class ModelView(ModelParts):
    """A model in evaluation mode with frozen parameters; `load_model` and `view_of` make it."""

    #: Returns the model's tokenizer, needed only to read words of users; None if the model was opened without one.
    read_tokenizer: Callable[[], Any] | None = field(default=None, compare=False)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {type(self.model).__name__}: {self.dtype} on {self.device}>"

    # the tokens that a prediction depends on

    def visible(self, batch: Batch) -> Tensor:
        """True for the tokens that the prediction may depend on, laid out like `batch.every_id`.

        Padding is False, and so are tokens after the readout position of a causal model or a decoder.
        """
        real = batch.attention_mask.bool()
        if batch.decoder_attention_mask is not None:
            written = batch.decoder_attention_mask.bool()
            return torch.cat([real, written & up_to(batch.position, written)], 1)
        return real & up_to(batch.position, real) if self.kind.causal else real

    def asking(self, batch: Batch, layer: int) -> Tensor:
        """True for the queries of an attention layer that the prediction may depend on, [B, queries]."""
        return self.visible(batch)

    @property
    def start_ids(self) -> list[int]:
        """The ids of the tokens that a decoder begins with in `generate`: its start token, then one that is forced.

        Raises UserError if the model names no start token.
        """
        settings = self.model.generation_config
        named = (settings.decoder_start_token_id, self.config.decoder_start_token_id, settings.bos_token_id)
        start = next((token for token in named if token is not None), None)
        if start is None:
            title = self.family.title
            raise UserError(f"the model's config has no decoder_start_token_id, which {title} need: set it")
        forced = settings.forced_bos_token_id
        return [start] if forced is None else [start, forced]

    def check_input(self, batch: Batch) -> None:
        """Raise UserError for a batch of images, which a model of text does not read."""
        if batch.pixel_values is not None:
            raise UserError(f"{self.family.title} read text: leave pixel_values out")

    def tokens(self, batch: Batch) -> Tensor:
        """Embeddings of the tokens of `input_ids`, [B, T, D]."""
        return self.token_embedding(batch.input_ids)

    # the model's predictions

    def all_logits(self, batch: Batch) -> Tensor:
        """The model's logits of all tokens, or labels, at the readout positions [B, N, V]; float32 at least."""
        parts = []
        for piece in pieces_of(self, batch.to(self.device)):
            _, logits = logits_at(self, piece.batch)
            parts.append((piece.rows, logits))
        return in_order(len(batch), parts)

    def logits(self, batch: Batch) -> Tensor:
        """Logits of target and foil [B, 2] ([B, 1] without foils) at the readout position."""
        logits, _ = explained_numbers(self, batch, ())
        return logits

    # what the head makes of any state

    def head(self, hidden: Tensor) -> Tensor:
        """Apply the head's transform (layers between hidden states and unembedding), if any: [..., D] to [..., D]."""
        if self.family.head_dense is None or self.head_activation is None:
            return hidden
        transformed = self.head_activation(self._at(self.family.head_dense)(hidden))
        return transformed if self.head_norm is None else self.head_norm.module(transformed)

    def unembedding_rows(self, ids: Tensor) -> tuple[Tensor, Tensor | None]:
        """Rows [..., D] of the unembedding, and their biases [...] (or None), for token ids [...]."""
        check_unaltered([self.model])
        with weights_of(self.unembedding) as module:
            ids = ids.to(module.weight.device)
            return module.weight.detach()[ids], None if module.bias is None else module.bias.detach()[ids]

    def unembed(self, state: Tensor, batch: Batch) -> Tensor:
        """Logits of target and foil [B, 2, T] ([B, 1, T] without foils) of `state` [B, T, D]; float32 at least."""
        rows, bias = self.unembedding_rows(batch.explained_ids)  # [B, 2, D]
        rows = wide(rows)
        logits = rows @ wide(state.to(rows.device)).mT
        if bias is not None:
            logits = logits + bias.to(logits)[..., None]
        cap = None if self.family.logit_cap_field is None else getattr(self.config, self.family.logit_cap_field)
        return logits if cap is None else torch.tanh(logits / cap) * cap
