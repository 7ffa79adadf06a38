"""The view of an encoder-decoder: the encoder reads the text, the decoder predicts the next token of its own text.

Embeddings are laid out like `Batch.every_id`, the encoder's tokens and then the decoder's, so that one tensor takes the
gradients of both. The axis L of heads is in the order of `attentions`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from closelook.lrp_core.families.base import Decoder, Family
from closelook.lrp_core.parts.block import AttentionView, BlockView
from closelook.lrp_core.parts.layers import NormView, weights_of
from closelook.lrp_core.records.types import Batch, UserError
from closelook.lrp_core.views.view import ModelView, counted_by, up_to


@dataclass(frozen=True, repr=False)
class EncoderDecoderView(ModelView):
    """A view of both stacks of blocks. Its `hidden` states are the decoder's, [B, U, D]."""

    @property
    def decoder(self) -> Decoder:
        """The description of the decoder."""
        assert self.family.decoder is not None
        return self.family.decoder

    # geometry

    @property
    def n_layers(self) -> int:
        """The number of attention layers: one for each block of the encoder, two for each block of the decoder."""
        return len(self.attentions)

    @property
    def n_encoder_layers(self) -> int:
        """The number of blocks of the encoder."""
        return len(self.encoder_blocks)

    @property
    def n_shared_layers(self) -> int:
        """As in `ModelParts`; here the index of the decoder's first layer."""
        return self.n_encoder_layers

    @property
    def start_ids(self) -> list[int]:
        """The ids of the tokens that the decoder begins with in `generate`: its start token, then one that is forced.

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

    # parts

    @cached_property
    def decoder_embedding(self) -> Any:
        """The module that embeds the decoder's tokens."""
        return self.model.get_submodule(self.decoder.family.token_embedding)

    @cached_property
    def encoder_stack(self) -> nn.Module:
        """The module that runs the whole encoder."""
        return self.model.get_submodule(self.decoder.encoder_stack)

    @cached_property
    def decoder_stack(self) -> nn.Module:
        """The module that runs the whole decoder."""
        return self.model.get_submodule(self.decoder.stack)

    @cached_property
    def encoder_blocks(self) -> list[BlockView]:
        return self._blocks_of(self.family)

    @cached_property
    def decoder_blocks(self) -> list[BlockView]:
        return self._blocks_of(self.decoder.family)

    @cached_property
    def blocks(self) -> list[BlockView]:
        """The blocks of the encoder, then those of the decoder."""
        return [*self.encoder_blocks, *self.decoder_blocks]

    @cached_property
    def cross_attentions(self) -> list[AttentionView]:
        """The cross-attention of each block of the decoder: its keys and values are the encoder's."""
        cross = self.decoder.cross
        return [AttentionView(**AttentionView.parts(block.module, cross)) for block in self.decoder_blocks]

    @cached_property
    def attentions(self) -> Sequence[AttentionView]:
        """The self-attention of the encoder's blocks, then that of the decoder's, then the cross-attention of these."""
        return [*self.blocks, *self.cross_attentions]

    @property
    def attentions_over_text(self) -> Sequence[AttentionView]:
        """The attentions whose keys are the encoder's tokens."""
        return [*self.attentions[: self.n_encoder_layers], *self.cross_attentions]

    def asking(self, batch: Batch, layer: int) -> Tensor:
        """As `ModelView.asking`: for the encoder's tokens [B, T] in its layers, the decoder's [B, U] in others."""
        width = batch.input_ids.shape[1]
        visible = self.visible(batch)
        return visible[:, :width] if layer < self.n_encoder_layers else visible[:, width:]

    @property
    def stacks(self) -> tuple[str, ...]:
        return (self.family.blocks, self.decoder.family.blocks)

    def norms(self) -> list[NormView]:
        of_decoder = self.decoder.family
        cross = [NormView.of(block.module, self.decoder.cross.norm, of_decoder) for block in self.decoder_blocks]
        paths = (of_decoder.embedding_norm, of_decoder.final_norm)
        others = [NormView.optional(self.model, path, of_decoder) for path in paths]
        return [*super().norms(), *cross, *(norm for norm in others if norm is not None)]

    def visible(self, batch: Batch) -> Tensor:
        assert batch.decoder_attention_mask is not None
        seen = batch.decoder_attention_mask.bool()
        return torch.cat([batch.attention_mask.bool(), seen & up_to(batch.position, seen)], 1)

    # computation

    def tokens(self, batch: Batch) -> Tensor:
        """Token embeddings of encoder and decoder [B, T + U, D]."""
        assert batch.decoder_input_ids is not None
        encoder, decoder = self.token_embedding(batch.input_ids), self.decoder_embedding(batch.decoder_input_ids)
        return torch.cat([encoder, decoder.to(encoder.device)], 1)

    def embed(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Token embeddings of encoder and decoder, and their sum with learned positions, both [B, T + U, D]."""
        token = self.tokens(batch)
        added = [self._positions(stack, mask) for stack, mask in self._counted_stacks(batch)]
        return token, token + torch.cat(added, 1) if added else token

    def embeddings_of(self, batch: Batch) -> list[tuple[nn.Module, slice]]:
        width = batch.input_ids.shape[1]
        return [(self.token_embedding, slice(width)), (self.decoder_embedding, slice(width, None))]

    def _hidden(self, batch: Batch, token: Tensor | None, positions: Tensor | None) -> Tensor:
        """The decoder's last hidden states [B, U, D] for embeddings `token` [B, T + U, D] (default: the batch's).

        Positions are counted by the masks; `positions` must be None.
        """
        assert positions is None
        width = batch.input_ids.shape[1]
        token = self.tokens(batch) if token is None else token
        with self._counted(batch):
            mask, prefix_mask = batch.attention_mask, batch.decoder_attention_mask
            read = self.encoder_stack(inputs_embeds=token[:, :width], attention_mask=mask, return_dict=True)
            written = token[:, width:]
            states = self.decoder_stack(
                inputs_embeds=written,
                attention_mask=prefix_mask,
                encoder_hidden_states=read.last_hidden_state,
                encoder_attention_mask=mask,
                return_dict=True,
                **self.kind.forward_options,
            )
        return states.last_hidden_state

    def head(self, hidden: Tensor) -> Tensor:
        """Hidden states as the unembedding reads them, [..., D] to [..., D].

        T5 v1.0 divides them by sqrt(D), since its unembedding shares the weights of its embeddings.
        """
        field = self.decoder.scaled_field
        return hidden * self.d_model**-0.5 if field is not None and getattr(self.config, field) else hidden

    @contextmanager
    def unembedded(self) -> Iterator[tuple[Tensor, Tensor | None]]:
        with super().unembedded() as (weight, bias):
            path = self.decoder.logits_bias
            yield weight, bias if path is None else self.model.get_buffer(path)[0].to(weight)

    def _counted_stacks(self, batch: Batch) -> list[tuple[Any, Tensor]]:
        """(description, mask of its tokens) of each stack that has learned positions."""
        assert batch.decoder_attention_mask is not None
        stacks = (self.family, batch.attention_mask), (self.decoder.family, batch.decoder_attention_mask)
        return [(stack, mask) for stack, mask in stacks if stack.position_embedding]

    def _positions(self, family: Family, mask: Tensor) -> Tensor:
        """Embeddings of learned positions [B, T, D], counted by the mask [B, T] without padding on either side."""
        assert family.position_embedding is not None
        ids = counted_by(mask) + family.position_shift
        with weights_of(self.model.get_submodule(family.position_embedding)) as module:
            return nn.functional.embedding(ids, module.weight)

    @contextmanager
    def _counted(self, batch: Batch) -> Iterator[None]:
        """Inside, the stacks add position embeddings counted without padding; by themselves they count padding too."""
        with ExitStack() as undo:
            for stack, mask in self._counted_stacks(batch):
                added = self._positions(stack, mask)
                embedding = self._at(stack.position_embedding)
                undo.enter_context(embedding.register_forward_hook(lambda *_, added=added: added))
            yield
