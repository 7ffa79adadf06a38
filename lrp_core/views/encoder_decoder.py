"""The view of an encoder-decoder that a family describes: its two stacks and their attentions.

Numbers of tokens are laid out like `Batch.every_id`, the encoder's tokens and then the decoder's. The axis L of heads
is in the order of `attentions`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from torch import Tensor, nn

from closelook.lrp_core.families.base import Decoder
from closelook.lrp_core.parts.block import AttentionView, BlockView
from closelook.lrp_core.parts.layers import NormView
from closelook.lrp_core.records.types import Batch
from closelook.lrp_core.views.view import ModelView


@dataclass(frozen=True, repr=False)
class EncoderDecoderView(ModelView):
    """A view of both stacks of blocks."""

    @property
    def decoder(self) -> Decoder:
        """The description of the decoder."""
        assert self.family.decoder is not None
        return self.family.decoder

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
