"""A loaded model seen through its family: named parts, embeddings, the backbone, and logits where they are needed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from accelerate.utils import has_offloaded_params
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.activations import ACT2FN

from lrp_core.families import Family, family_of, without_head
from lrp_core.families.generic import GenericFamily
from lrp_core.families.images import ImageFamily
from lrp_core.kinds import Kind
from lrp_core.neuron_names import NeuronNames
from lrp_core.parts import AttentionView, BlockView, ExpertsView, LinearLayer, NormView, Readout, SoftCap, weights_of
from lrp_core.shared_layers import unrolled
from lrp_core.types import Batch, UnsupportedModel, UserError


def _at(root: nn.Module, path: str) -> Any:  # a module; its parameters are untyped in torch
    return root.get_submodule(path)


@dataclass(frozen=True)
class Traced:
    """The embeddings of a batch with a graph behind them: where gradients are taken."""

    token: Tensor  # [B, T, D]
    full: Tensor  # [B, T, D], with positions and segments; without a graph
    pixels: Tensor | None = None  # [B, C, H, W], of models of images


def _calls_parts(model: Any) -> bool:
    """Whether experts call their activation, where rules can stand, and in this precision: float64 is eager's alone."""
    known = ("eager",) if model.dtype == torch.float64 else ("eager", "batched_mm", "grouped_mm")
    return model.config._experts_implementation in known


@dataclass(frozen=True)
class ModelView:
    """A model in evaluation mode with frozen parameters, and its named parts; from `load_model` or `ModelView.of`."""

    model: PreTrainedModel
    family: Family
    #: Gives its tokenizer, where whoever opened the model knows it; words of one's own are asked of it alone.
    read_tokenizer: Callable[[], Any] | None = field(default=None, compare=False)

    @classmethod
    def of(cls, model: PreTrainedModel, family: str | None = None) -> ModelView:
        """Wraps a model, puts it in evaluation mode and freezes its parameters.

        `family` is "generic" for a model that is run as a whole, described or not.
        Raises UnsupportedModel for an unknown family, a model whose head predicts neither tokens nor labels, and norms
        without weights.
        """
        described = family_of(model.config, type(model).__name__, family)
        if isinstance(described, GenericFamily):
            from lrp_core.generic import GenericView

            return GenericView(model.eval().requires_grad_(False), described).check()
        if described.unembedding is None and model.get_output_embeddings() is None:
            raise UnsupportedModel(without_head(type(model).__name__, described))
        if isinstance(described, ImageFamily):
            from lrp_core.images import ImageView

            cls = ImageView
        if described.experts is not None and not _calls_parts(model):
            model.set_experts_implementation("eager")
        if described.decoder is not None:
            from lrp_core.encoder_decoder import EncoderDecoderView

            cls = EncoderDecoderView
        view = cls(unrolled(model.eval().requires_grad_(False), described), described)
        bare = next((norm.module for norm in view.norms() if norm.module.weight is None), None)
        if bare is not None:
            path = next(name for name, module in model.named_modules() if module is bare)
            raise UnsupportedModel(f"{type(model).__name__}: the norm {path} has no weights, which no rule covers")
        return view

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
        output = _at(_at(self.model, self.family.blocks)[0], self.family.output)
        return output.weight.numel() // (self.d_model * self.n_heads)

    @cached_property
    def n_neurons(self) -> int:
        """Neurons of a feed-forward layer, F, of the widest where they differ, those of all its experts together."""
        return max(block.n_neurons for block in self.blocks)

    @property
    def routed(self) -> bool:
        """Whether some layer has experts."""
        return any(block.experts is not None for block in self.blocks)

    @cached_property
    def neuron_names(self) -> NeuronNames:
        return NeuronNames(tuple(block.feed_forwards for block in self.blocks))

    @property
    def vocab(self) -> int:
        return self.config.vocab_size

    @property
    def n_targets(self) -> int:
        """How many tokens, or labels, the head may predict."""
        return self.config.num_labels if self.kind.labels else self.vocab

    @property
    def predicts_score(self) -> bool:
        """Whether what the head puts out is a number by itself, rather than the logit of a token or a class."""
        return self.kind.labels and (self.n_targets == 1 or self.config.problem_type == "regression")

    @property
    def max_length(self) -> int:
        """Most tokens a sample may have."""
        return self.family.most_tokens(self.config)

    @property
    def n_segments(self) -> int:
        """How many segments the model tells apart; 0 where it has no such thing."""
        return 0 if self.family.segment_embedding is None else self.config.type_vocab_size

    @property
    def device(self) -> torch.device:
        """Where the token embeddings are computed, hence where inputs go."""
        embedding = self._embedding_weights
        if has_offloaded_params(embedding):
            return torch.device(embedding._hf_hook.execution_device)
        return embedding.weight.device

    @property
    def dtype(self) -> torch.dtype:
        return self._embedding_weights.weight.dtype

    @property
    def pad_id(self) -> int:
        """What stands in `input_ids` where there is no token."""
        return self.config.pad_token_id or 0

    # parts

    @cached_property
    def token_embedding(self) -> Any:
        """A module: what it puts out are the embeddings of tokens [B, T, D]."""
        return _at(self.model, self.family.token_embedding)

    @property
    def _embedding_weights(self) -> Any:
        """The module that holds the weights of `token_embedding`."""
        return self.token_embedding

    @cached_property
    def unembedding(self) -> Any:
        """The linear layer that gives logits: a row for each token of the vocabulary, or for each label."""
        path = self.family.unembedding
        return self.model.get_output_embeddings() if path is None else _at(self.model, path)

    @cached_property
    def readout(self) -> Readout:
        """The product of states and rows of the unembedding."""
        return Readout()

    @cached_property
    def blocks(self) -> list[BlockView]:
        return [self._block(block, self.family) for block in _at(self.model, self.family.blocks)]

    @cached_property
    def attentions(self) -> list[AttentionView]:
        """Every attention layer, in the order of the axis L of heads."""
        return [AttentionView(one.attention, one.query, one.key, one.value, one.output) for one in self.blocks]

    @property
    def n_shared_layers(self) -> int:
        """The last of `attentions` before which rows of a pass may branch."""
        return self.n_layers - 1

    @property
    def attentions_over_text(self) -> list[AttentionView]:
        """The attentions whose keys are the tokens of the text."""
        return self.attentions

    def asking(self, batch: Batch, layer: int) -> Tensor:
        """Mask [B, queries] of the real queries of an attention layer."""
        return batch.attention_mask

    @property
    def stacks(self) -> tuple[str, ...]:
        """Paths of the lists of blocks."""
        return (self.family.blocks,) if self.blocks else ()

    @cached_property
    def embedding_norm(self) -> NormView | None:
        return self._optional_norm(self.model, self.family.embedding_norm)

    @cached_property
    def final_norm(self) -> NormView | None:
        return self._optional_norm(self.model, self.family.final_norm)

    @cached_property
    def head_norm(self) -> NormView | None:
        return self._optional_norm(self.model, self.family.head_norm)

    @cached_property
    def head_activation(self) -> nn.Module | None:
        """Our own instance of the head transform's activation, since some families call a function there."""
        return ACT2FN[self.head_activation_name] if self.family.head_dense else None

    @cached_property
    def logit_cap(self) -> SoftCap | None:
        """What logits go through last; a module, so that it can have a rule."""
        field = self.family.logit_cap_field
        cap = None if field is None else getattr(self.config, field)
        return None if cap is None else SoftCap(cap)

    @property
    def caps_scores(self) -> bool:
        """Whether attention scores go through a soft cap before their softmax."""
        field = self.family.score_cap_field
        return field is not None and getattr(self.config, field) is not None

    @property
    def head_activation_name(self) -> str:
        return self.family.head_activation or self.activation_name

    @property
    def activation_name(self) -> str:
        return getattr(self.config, self.family.activation_field)

    def norms(self) -> list[NormView]:
        """Every norm once."""
        per_block = [norm for block in self.blocks for norm in block.norms]
        every = (self.embedding_norm, *per_block, self.final_norm, self.head_norm)
        return [norm for norm in every if norm is not None]

    def linear_layers(self) -> Iterator[LinearLayer]:
        """Every linear layer but the unembedding, by group; a module that fuses projections comes once."""
        path = self.family.embedding_projection
        if path is not None and path in dict(self.model.named_modules()):
            yield LinearLayer(_at(self.model, path), "linear", transposed=False)
        for attention in self.attentions:
            for module in dict.fromkeys((attention.query, attention.key, attention.value)):
                yield LinearLayer(module, "input_projection", self.family.transposed)
            yield LinearLayer(attention.output, "output_projection", self.family.transposed)
        for block in self.blocks:
            for layer in (block.gate, block.up, block.down):
                if layer is not None:
                    yield LinearLayer(layer, "linear", self.family.transposed)
        if self.head_layer is not None:
            yield self.head_layer

    @property
    def head_layer(self) -> LinearLayer | None:
        """The linear layer before the unembedding, where there is one."""
        path = self.family.head_dense
        return None if path is None else LinearLayer(_at(self.model, path), "linear", transposed=False)

    # computation

    def position_ids(self, attention_mask: Tensor) -> Tensor:
        """Positions [B, T] that ignore padding on either side."""
        counted = attention_mask.cumsum(-1) - 1  # [B, T]
        if self.family.positions_after_padding:
            return (counted + 1) * attention_mask + self.config.pad_token_id
        return counted.clamp_min(0)

    def check_input(self, batch: Batch) -> None:
        """Raises UserError for a batch whose input is not of this model's kind."""
        if batch.pixel_values is not None:
            raise UserError(f"{self.family.title} read text: leave pixel_values out")

    def tokens(self, batch: Batch) -> Tensor:
        """Token embeddings [B, T, D]."""
        return self.token_embedding(batch.input_ids)

    def traced(self, batch: Batch) -> Traced:
        """Embeddings of which gradients may be taken."""
        token, full = self.embed(batch)
        return Traced(token.detach().requires_grad_(), full.detach())

    def source(self, batch: Batch) -> Tensor:
        """What methods move to see how the prediction changes: token embeddings [B, T, D]."""
        return self.tokens(batch)

    def hidden_from(self, batch: Batch, source: Tensor) -> Tensor:
        """Last hidden state [B, T, D] of a `source` that was moved."""
        return self.hidden(batch, source)

    def embed(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Token embeddings and their sum with position and segment embeddings, both [B, T, D]."""
        token = self.tokens(batch)
        full = token
        if self.family.position_embedding:
            ids = self.position_ids(batch.attention_mask) + self.family.position_shift
            with weights_of(_at(self.model, self.family.position_embedding)) as module:
                full = full + nn.functional.embedding(ids, module.weight)
        if self.family.segment_embedding:
            ids = torch.zeros_like(batch.input_ids) if batch.token_type_ids is None else batch.token_type_ids
            full = full + _at(self.model, self.family.segment_embedding)(ids)
        return token, full

    def embeddings_of(self, batch: Batch) -> list[tuple[nn.Module, slice]]:
        """The modules that embed tokens, and which of `batch.every_id`."""
        return [(self.token_embedding, slice(None))]

    def hidden(self, batch: Batch, token: Tensor | None = None, positions: Tensor | None = None) -> Tensor:
        """Last hidden state [B, T, D], final norm included, of `token` embeddings [B, T, D] (default: the batch's).

        `positions` [B, T] are by default those that the attention mask counts.
        """
        with self._finite_masks():
            return self._hidden(batch, token, positions)

    def _finite_masks(self) -> AbstractContextManager[None]:
        """Eager kernels of float64 models take their softmax in float32, where the least float64 is minus infinity:
        padding that sees no token, as left padding and sliding windows make, would become NaN and reach real tokens."""
        if self.dtype != torch.float64 or self.config._attn_implementation != "eager":
            return nullcontext()
        from lrp_core.attention import around_attention  # which knows views

        return around_attention(self, {})

    def _hidden(self, batch: Batch, token: Tensor | None, positions: Tensor | None) -> Tensor:
        segments = {} if batch.token_type_ids is None else {"token_type_ids": batch.token_type_ids}
        return self.model.base_model(
            inputs_embeds=self.tokens(batch) if token is None else token,
            attention_mask=batch.attention_mask,
            position_ids=self.position_ids(batch.attention_mask) if positions is None else positions,
            return_dict=True,
            **segments,
            **self.kind.forward_options,
        ).last_hidden_state

    def head(self, hidden: Tensor) -> Tensor:
        """What stands between hidden states and the unembedding, if anything does. [..., D] to [..., D]."""
        if self.family.head_dense is None or self.head_activation is None:
            return hidden
        transformed = self.head_activation(_at(self.model, self.family.head_dense)(hidden))
        return transformed if self.head_norm is None else self.head_norm.module(transformed)

    @contextmanager
    def unembedded(self) -> Iterator[tuple[Tensor, Tensor | None]]:
        """Weight [V, D] and bias [V] (None where there is none) of the unembedding."""
        with weights_of(self.unembedding) as module:
            yield module.weight.detach(), None if module.bias is None else module.bias.detach()

    def unembedding_rows(self, ids: Tensor) -> tuple[Tensor, Tensor | None]:
        """Rows [..., D] and biases [...] (None where there are none) of the unembedding for token ids [...]."""
        with self.unembedded() as (weight, bias):
            ids = ids.to(weight.device)
            return weight[ids], None if bias is None else bias[ids]

    def all_logits(self, state: Tensor, size: int) -> Iterator[tuple[int, Tensor]]:
        """Logits of all tokens, or labels, of `state` [B, D], `size` at a time: the first one's id and [B, `size`].

        In float32 at least.
        """
        wide = torch.promote_types(state.dtype, torch.float32)
        with self.unembedded() as (weight, bias):
            state = state.to(weight.device, wide)
            for start in range(0, len(weight), size):
                of_labels = None if bias is None else bias[start : start + size].to(wide)
                logits = self.readout(state, weight[start : start + size].to(wide), of_labels)
                yield start, logits if self.logit_cap is None else self.logit_cap(logits)

    def logits(self, hidden: Tensor, batch: Batch) -> Tensor:
        """Logits of target and foil [B, 2] ([B, 1] without foils) at the predicted position of `hidden` [B, T, D].

        No logits of other tokens or positions are formed.
        """
        return self.unembed(self.prediction(hidden, batch), batch)

    def prediction(self, hidden: Tensor, batch: Batch) -> Tensor:
        """What the unembedding reads [B, D]: the predicted position of `hidden` [B, T, D], head transform included."""
        at = torch.arange(len(batch), device=hidden.device)
        return self.head(hidden[at, batch.position.to(hidden.device)])

    def unembed(self, state: Tensor, batch: Batch) -> Tensor:
        """Logits of target and foil [B, 2, ...] ([B, 1, ...] without foils) of `state` [B, ..., D].

        In float32 at least. A sample may have many states, such as one for each of its tokens.
        """
        ids = (
            batch.target_ids[:, None] if batch.foil_ids is None else torch.stack([batch.target_ids, batch.foil_ids], -1)
        )
        rows, bias = self.unembedding_rows(ids)  # [B, 2, D]
        wide = torch.promote_types(state.dtype, torch.float32)
        state = state.to(rows.device, wide)
        logits = self.readout(state, rows.to(wide), None if bias is None else bias.to(wide))
        return logits if self.logit_cap is None else self.logit_cap(logits)

    # assembly

    def _norm(self, root: nn.Module, path: str) -> NormView:
        module = _at(root, path)
        return NormView(module, self.family.norm, getattr(module, self.family.norm_eps), self.family.norm_offset)

    def _optional_norm(self, root: nn.Module, path: str | None) -> NormView | None:
        return None if path is None or isinstance(_at(root, path), nn.Identity) else self._norm(root, path)

    def _block(self, module: nn.Module, family: Family) -> BlockView:
        known = family.experts
        if known is not None and known.all not in dict(module.named_modules()):
            known = None  # a block with an MLP

        def of_mlp(path: str | None) -> Any:
            if path is None or known is None:
                return None if path is None else _at(module, path)
            return None if known.shared is None else _at(module, path.replace(known.mlp, known.shared, 1))

        return BlockView(
            module=module,
            attention=_at(module, family.attention),
            query=_at(module, family.query),
            key=_at(module, family.key),
            value=_at(module, family.value),
            output=_at(module, family.output),
            attention_norm=self._optional_norm(module, family.attention_norm),
            mlp_norm=self._norm(module, family.mlp_norm),
            added_norms=tuple(self._norm(module, path) for path in family.added_norms),
            head_norms=tuple(self._norm(module, path) for path in (family.query_norm, family.key_norm) if path),
            activation=of_mlp(family.activation),
            gate=of_mlp(family.gate),
            up=of_mlp(family.up),
            down=of_mlp(family.down),
            experts=None
            if known is None
            else ExpertsView(
                router=_at(module, known.router),
                all=_at(module, known.all),
                shared=_at(module, known.shared) if known.shared else None,
                shared_gate=_at(module, known.shared_gate) if known.shared_gate else None,
            ),
            adds=_at(module, family.down if known is None else known.mlp),
            family=family,
            n_heads=self.n_heads,
            n_kv_heads=self.n_kv_heads,
            head_dim=self.head_dim,
        )
