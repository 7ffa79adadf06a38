"""The parts of a model, as its family describes them: sizes, embeddings, blocks, norms, head and unembedding."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from inspect import signature
from typing import Any

import torch
from accelerate.utils import has_offloaded_params
from torch import nn
from transformers import PreTrainedModel
from transformers.activations import ACT2FN

from closelook.lrp_core.families import Family
from closelook.lrp_core.parts.block import AttentionView, BlockView
from closelook.lrp_core.parts.layers import LinearLayer, NormView
from closelook.lrp_core.parts.neuron_names import NeuronNames
from closelook.lrp_core.records.kinds import Kind


@dataclass(frozen=True)
class ModelParts:
    """A model with its sizes and parts; it computes nothing."""

    model: PreTrainedModel
    family: Family

    # geometry

    @property
    def config(self) -> Any:
        return self.model.config

    @property
    def kind(self) -> Kind:
        return self.family.kind

    @property
    def n_layers(self) -> int:
        return self.config.num_hidden_layers

    @property
    def n_heads(self) -> int:
        return self.config.num_attention_heads

    @property
    def n_kv_heads(self) -> int:
        return self.config.num_key_value_heads if self.family.grouped else self.n_heads

    @property
    def d_model(self) -> int:
        return self.config.hidden_size

    @cached_property
    def head_dim(self) -> int:
        """The head width K, from the shape of an output projection [D, H * K], since not every config tells it."""
        output = self._at(self.family.blocks)[0].get_submodule(self.family.output)
        return output.weight.numel() // (self.d_model * self.n_heads)

    @cached_property
    def n_neurons(self) -> int:
        """The number of neurons F of the block that has most, those of all its experts together."""
        return max(block.n_neurons for block in self.blocks)

    @property
    def routed(self) -> bool:
        """True if any block has experts."""
        return any(block.experts is not None for block in self.blocks)

    @cached_property
    def neuron_names(self) -> NeuronNames:
        """The names of the model's neurons."""
        return NeuronNames(tuple(block.feed_forwards for block in self.blocks))

    @property
    def vocab(self) -> int:
        return len(self.token_embedding.weight) if self.family.is_generic else self.config.vocab_size

    @property
    def n_targets(self) -> int:
        """The number of tokens, or labels, for which the head has logits."""
        return self.config.num_labels if self.kind.labels else self.vocab

    @property
    def predicts_score(self) -> bool:
        """True if the model is a regressor: its head outputs a score, not logits of tokens or labels."""
        return self.kind.labels and (self.n_targets == 1 or self.config.problem_type == "regression")

    @property
    def max_length(self) -> int:
        """The most tokens that a sample may have."""
        return self.family.most_tokens(self.config)

    @property
    def n_segments(self) -> int:
        """The number of segments (token types) that the model knows; 0 if it has none."""
        takes = "token_type_ids" in signature(self.model.forward).parameters
        return getattr(self.config, "type_vocab_size", 0) if takes else 0

    @property
    def device(self) -> torch.device:
        """The device of the token embeddings, on which inputs must be."""
        embedding = self.token_embedding
        if has_offloaded_params(embedding):
            return torch.device(embedding._hf_hook.execution_device)
        return embedding.weight.device

    @property
    def dtype(self) -> torch.dtype:
        return self.token_embedding.weight.dtype

    @property
    def pad_id(self) -> int:
        """The id to put into `input_ids` on padding; 0 if the config names none."""
        return self.config.pad_token_id or 0

    # parts

    @cached_property
    def token_embedding(self) -> Any:
        """The module that turns token ids [B, T] into embeddings [B, T, D]."""
        return self.model.get_input_embeddings()

    @cached_property
    def unembedding(self) -> Any:
        """The linear layer that makes logits: it has a row for each token of the vocabulary, or for each label."""
        path = self.family.unembedding
        return self.model.get_output_embeddings() if path is None else self._at(path)

    @cached_property
    def blocks(self) -> list[BlockView]:
        return [] if self.family.is_generic else self._blocks_of(self.family)

    @cached_property
    def attentions(self) -> Sequence[AttentionView]:
        """Every attention layer, in the order of the axis L of heads."""
        return self.blocks

    @property
    def n_shared_layers(self) -> int:
        """The largest index in `attentions` at which rows of a forward pass may branch (`interventions.heads`)."""
        return self.n_layers - 1

    @property
    def attentions_over_text(self) -> Sequence[AttentionView]:
        """The attention layers whose keys are the tokens of the text, `input_ids`."""
        return self.attentions

    @property
    def stacks(self) -> tuple[str, ...]:
        """Paths of the lists of blocks."""
        return (self.family.blocks,) if self.blocks else ()

    @cached_property
    def embedding_norm(self) -> NormView | None:
        return NormView.optional(self.model, self.family.embedding_norm, self.family)

    @cached_property
    def final_norm(self) -> NormView | None:
        return NormView.optional(self.model, self.family.final_norm, self.family)

    @cached_property
    def head_norm(self) -> NormView | None:
        return NormView.optional(self.model, self.family.head_norm, self.family)

    @cached_property
    def head_activation(self) -> nn.Module | None:
        """The activation of the head transform as a new module, since some families call a function; or None."""
        return ACT2FN[self.head_activation_name] if self.family.head_dense else None

    @property
    def head_activation_name(self) -> str:
        return self.family.head_activation or self.activation_name

    @property
    def activation_name(self) -> str:
        return getattr(self.config, self.family.activation_field)

    def norms(self) -> list[NormView]:
        """All norms of the model, each once."""
        per_block = [norm for block in self.blocks for norm in block.norms]
        every = (self.embedding_norm, *per_block, self.final_norm, self.head_norm)
        return [norm for norm in every if norm is not None]

    def linear_layers(self) -> Iterator[LinearLayer]:
        """Yield all linear layers but the unembedding, with their groups; a fused module comes once."""
        path = self.family.embedding_projection
        if path is not None and path in dict(self.model.named_modules()):
            yield LinearLayer(self._at(path), "linear", transposed=False)
        for attention in self.attentions:
            for module in dict.fromkeys((attention.query, attention.key, attention.value)):
                yield LinearLayer(module, "input_projection", self.family.transposed)
            yield LinearLayer(attention.output, "output_projection", self.family.transposed)
        for block in self.blocks:
            for layer in dict.fromkeys((block.gate, block.up, block.down)):
                if layer is not None:
                    yield LinearLayer(layer, "linear", self.family.transposed)
        if self.head_layer is not None:
            yield self.head_layer

    @property
    def head_layer(self) -> LinearLayer | None:
        """The linear layer of the head's transform, before the unembedding; None if there is none."""
        path = self.family.head_dense
        return None if path is None else LinearLayer(self._at(path), "linear", transposed=False)

    def _blocks_of(self, family: Family) -> list[BlockView]:
        """The views of the blocks of the stack that `family` describes."""
        sizes = self.n_heads, self.n_kv_heads, self.head_dim
        return [BlockView.of(block, family, *sizes) for block in self._at(family.blocks)]

    def _at(self, path: str) -> Any:
        """The submodule at `path`; typed Any, since torch does not type the attributes of modules."""
        return self.model.get_submodule(path)
