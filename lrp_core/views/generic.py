"""The view of a model that no family describes: it runs as a whole, from token embeddings to the predicted logits.

How it treats positions, masks and padding is unknown, so samples run without padding, those of equal length together.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn

from closelook.lrp_core.device.precision import wide
from closelook.lrp_core.device.transfer import to_device, to_host
from closelook.lrp_core.parts.block import BlockView
from closelook.lrp_core.parts.layers import LinearLayer, NormView
from closelook.lrp_core.records.types import Batch, UnsupportedModel, UnusableRows
from closelook.lrp_core.views.guard import undisturbed
from closelook.lrp_core.views.view import ModelView

_PROBE = 6  # tokens of the text on which a model is tested
_ROUNDING = {torch.bfloat16: 0.1, torch.float16: 0.02}  # relative to the largest logit; 1e-4 in wider precisions


@dataclass(frozen=True, repr=False)
class GenericView(ModelView):
    """A view whose `hidden` states are logits [B, V]: of all tokens, or labels, at each sample's readout position."""

    def check(self) -> GenericView:
        """Test the model on a short text; return the view.

        Raises UnsupportedModel for a model that takes no embeddings, has fewer logits than tokens or labels, gives
        other logits for embeddings than for the tokens, or is said to be causal but depends on later tokens.
        """
        name, embedding = type(self.model).__name__, self.model.get_input_embeddings()
        if not isinstance(embedding, nn.Module) or "inputs_embeds" not in self._takes:
            raise UnsupportedModel(f"{name} takes no embeddings in place of tokens, which every method needs")
        with torch.no_grad():
            ids = self._probe()
            whole = self._logits(input_ids=ids)
            if whole.shape[-1] < self.n_targets:
                raise UnsupportedModel(
                    f"{name} has {whole.shape[-1]} outputs for {self.n_targets} tokens or labels: give one for each"
                )
            again = self._logits(inputs_embeds=embedding(ids))
            self._same(whole, again, "gives other logits for the embeddings of tokens than for the tokens")
            if self.kind.causal and not self.kind.labels:
                ids[0, -1] = ids[0, 0]
                ahead = "lets later tokens change earlier predictions, as no causal model does"
                self._same(whole[:, :-1], self._logits(input_ids=ids)[:, :-1], ahead)
        return self

    def _probe(self) -> Tensor:
        """A text [1, T] of _PROBE different tokens without the padding token; fewer if the vocabulary is smaller."""
        pad = self.config.pad_token_id
        unpadded = [i for i in range(max(0, self.vocab - _PROBE - 1), self.vocab) if i != pad]
        return torch.tensor([unpadded[:_PROBE]], device=self.device)

    def _same(self, first: Tensor, other: Tensor, otherwise: str) -> None:
        """Raise UnsupportedModel, saying what the model does `otherwise`, unless logits are equal up to rounding."""
        if not _equal(first, other):
            raise UnsupportedModel(f"{type(self.model).__name__} {otherwise}: no method can explain it")

    def check_input(self, batch: Batch) -> None:
        """Raise UnusableRows for texts that hold the padding token, if the model treats it unlike other tokens."""
        super().check_input(batch)
        pad = self.config.pad_token_id
        if pad is None:
            return
        rows = ((batch.input_ids == pad) & (batch.attention_mask != 0)).any(-1)
        if rows.any() and self._minds_padding:
            detail = f"the text holds the padding token {pad}, which this model treats as padding: remove it"
            raise UnusableRows(rows.nonzero().flatten().tolist(), "padding", detail)

    @cached_property
    def _minds_padding(self) -> bool:
        """True if padding tokens given as ids change logits in another way than their embeddings do."""
        ids = self._probe().repeat_interleave(2, 1)
        ids[0, 1::2] = self.config.pad_token_id
        with undisturbed(self), torch.no_grad():
            return not _equal(self._logits(input_ids=ids), self._logits(inputs_embeds=self.token_embedding(ids)))

    # geometry

    @property
    def vocab(self) -> int:
        return self.token_embedding.weight.shape[0]

    @property
    def d_model(self) -> int:
        return self.token_embedding.weight.shape[1]

    @property
    def n_segments(self) -> int:
        return getattr(self.config, "type_vocab_size", 0) if "token_type_ids" in self._takes else 0

    # parts

    @cached_property
    def token_embedding(self) -> Any:
        return self.model.get_input_embeddings()

    @cached_property
    def blocks(self) -> list[BlockView]:
        return []

    def norms(self) -> list[NormView]:
        return []

    def linear_layers(self) -> Iterator[LinearLayer]:
        return iter(())

    # computation

    def embed(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Token embeddings [B, T, D], returned twice: the sum with other embeddings is unknown."""
        token = self.tokens(batch)
        return token, token

    def _hidden(self, batch: Batch, token: Tensor | None, positions: Tensor | None) -> Tensor:
        """Logits [B, V] at each sample's readout position; 0 for a row that is all padding.

        `positions` is not used: the model counts positions itself.
        """
        token = self.tokens(batch) if token is None else token
        mask, read_at = to_host([batch.attention_mask, batch.position])  # on the CPU, since lengths decide shapes
        real = mask.bool()
        types, lengths = batch.token_type_ids, real.sum(-1)
        order: list[Tensor] = []
        read: list[Tensor] = []
        position = real.cumsum(-1).gather(1, read_at[:, None])[:, 0] - 1
        for rows in alike(self, lengths):
            order.append(rows)
            of_rows = None if types is None else _without_padding(types, rows, real)
            read.append(self._read(_without_padding(token, rows, real), of_rows, position[rows]))
        empty = (lengths == 0).nonzero().flatten()
        width = read[0].shape[-1] if read else self.n_targets
        logits = torch.cat([*read, (read[0] if read else token).new_zeros(len(empty), width)])
        return logits[to_device(torch.cat([*order, empty]).argsort(), logits.device)]

    def head(self, hidden: Tensor) -> Tensor:
        return hidden

    def prediction(self, hidden: Tensor, batch: Batch) -> Tensor:
        """Logits [B, V]: `hidden`, repeated if the batch repeats its texts and so has more rows."""
        return hidden.repeat(len(batch) // max(len(hidden), 1), 1) if len(batch) > len(hidden) else hidden

    def unembed(self, state: Tensor, batch: Batch) -> Tensor:
        """Logits of target and foil [B, 2] ([B, 1] without foils) of all logits [B, V], in float32 at least."""
        return wide(state.gather(1, batch.explained_ids.to(state.device)))

    def all_logits(self, state: Tensor, size: int) -> Iterator[tuple[int, Tensor]]:
        yield 0, wide(state)

    def _read(self, token: Tensor, types: Tensor | None, at: Tensor) -> Tensor:
        """Logits [B, V] at positions `at` [B] (on the CPU) of samples without padding, from embeddings [B, T, D]."""
        options: dict[str, Any] = {}
        if types is not None:
            options["token_type_ids"] = types
        if "logits_to_keep" in self._takes and not self.kind.labels:
            kept, at = at.unique(return_inverse=True)
            options["logits_to_keep"] = to_device(kept, token.device)
        logits = self._logits(inputs_embeds=token, **options)
        if self.kind.labels:
            return logits
        return logits[torch.arange(len(at), device=logits.device), to_device(at, logits.device)]

    @cached_property
    def _takes(self) -> frozenset[str]:
        """The names of the parameters of the model's `forward`."""
        return frozenset(signature(self.model.forward).parameters)

    def _logits(self, **inputs: Any) -> Tensor:
        """The model's output, [B, T, V] or [B, C], for `input_ids` or `inputs_embeds` without padding."""
        options = {"return_dict": True, **self.kind.forward_options}
        known = {name: value for name, value in options.items() if name in self._takes}
        if "attention_mask" in self._takes:
            tokens = next(iter(inputs.values()))
            known["attention_mask"] = torch.ones(tokens.shape[:2], dtype=torch.int64, device=tokens.device)
        return self.model(**inputs, **known).logits


def alike(view: ModelView, lengths: Tensor) -> Iterator[Tensor]:
    """Yield indices of samples that run together: those of equal length, the longest first.

    A causal classifier without a padding token takes a single sample at a time.
    """
    singly = view.kind.labels and view.kind.causal and view.config.pad_token_id is None
    for length in lengths.unique().flip(0).tolist():
        rows = (lengths == length).nonzero().flatten()
        if length:
            yield from rows.split(1) if singly else (rows,)


def _equal(first: Tensor, other: Tensor) -> bool:
    """True if two tensors of logits are equal up to rounding."""
    gap = float((first - other).abs().max() / first.abs().max().clamp_min(1e-9))
    return gap <= _ROUNDING.get(first.dtype, 1e-4)


def _without_padding(of_tokens: Tensor, rows: Tensor, real: Tensor) -> Tensor:
    """The tokens of some `rows` of [B, T, ...] that are `real` [B, T] (no padding), equally many in each row.

    `rows` and `real` are on the CPU.
    """
    columns = real[rows].nonzero()[:, 1].view(len(rows), -1)
    return of_tokens[to_device(rows, of_tokens.device)[:, None], to_device(columns, of_tokens.device)]
