"""Forward passes of a batch: the model's own, on its ordinary inputs, read at the readout positions.

Texts run with their padding on the right, where models need no position ids, or without padding where a model may
treat it in any way.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from inspect import signature
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from closelook.lrp_core.device.precision import unrounded, wide, wide_dtype
from closelook.lrp_core.device.transfer import to_device
from closelook.lrp_core.operations.embeddings import ScaledEmbeddings
from closelook.lrp_core.operations.explain import PIXELS, Forward, run
from closelook.lrp_core.operations.watching import read_from
from closelook.lrp_core.parts.layers import weights_of
from closelook.lrp_core.records.explained import explained_by
from closelook.lrp_core.records.types import Batch, Relevance, UserError
from closelook.lrp_core.rules.records import Composite

if TYPE_CHECKING:
    from closelook.lrp_core.views.view import ModelView


# rows that run together


@dataclass(frozen=True)
class Piece:
    """Rows of a batch that run together."""

    rows: Tensor  # [R], of the whole batch
    columns: Tensor  # [R, T'], the column in the whole batch of each token
    batch: Batch  # these rows, padded on the right
    size: int  # the number of different texts: row i has text i modulo this number

    def is_whole(self, batch: Batch) -> bool:
        """True if it is the batch, with every token in its place."""
        return self.batch.input_ids.shape == batch.input_ids.shape and bool((self.columns.diff() == 1).all())


def pieces_of(view: ModelView, batch: Batch, size: int | None = None) -> Iterator[Piece]:
    """The pieces of a batch in which the same `size` texts repeat (default: all differ)."""
    size = len(batch) if size is None else size
    mask = batch.attention_mask[:size]
    order = torch.argsort(1 - mask, dim=1, stable=True)
    if not view.family.is_generic:
        yield _piece(batch, size, torch.arange(size, device=mask.device), order)
        return
    lengths = (mask != 0).sum(-1).cpu()
    for length in lengths.unique().flip(0).tolist():
        if length:
            rows = to_device((lengths == length).nonzero().flatten(), mask.device)
            yield _piece(batch, size, rows, order[rows, :length])


def _piece(batch: Batch, size: int, texts: Tensor, columns: Tensor) -> Piece:
    """The piece of the `texts` [N] of a batch of `size` texts, with the tokens at their `columns` [N, T']."""
    times = len(batch) // max(size, 1)
    rows = (torch.arange(times, device=texts.device)[:, None] * size + texts).flatten()
    columns = columns.repeat(times, 1)
    of_rows = batch.mapped(lambda values: values[rows])
    counted = (of_rows.attention_mask.cumsum(-1) - 1).clamp_min(0)

    def moved(positions: Tensor) -> Tensor:
        """Positions among the remaining tokens; those of a decoder's text stay."""
        return positions if batch.decoder_input_ids is not None else counted.gather(1, positions)

    of_rows = of_rows.over_tokens(lambda of_tokens: of_tokens.gather(1, columns), moved)
    return Piece(rows, columns, of_rows, len(texts))


def joined(batch: Batch, parts: Sequence[tuple[Piece, Relevance]]) -> Relevance:
    """The relevance of a batch from that of its pieces; 0 for rows that are in none."""
    if not parts:  # rows of padding alone
        zeros = batch.attention_mask.float()
        return Relevance(zeros, zeros[:, 0], zeros[:, 0], None if batch.foil_ids is None else zeros[:, 0])
    (piece, first), *others = parts
    if not others and piece.is_whole(batch):
        return first
    fields: dict[str, Any] = {}
    for name in first.tensors:
        fields[name] = _whole(batch, name, [(piece, part.tensors[name]) for piece, part in parts])
    return replace(first.mapped(torch.clone), **fields)


def _whole(batch: Batch, name: str, parts: Sequence[tuple[Piece, Tensor]]) -> Tensor:
    """The field `name` of a Relevance, from its values for pieces of the batch."""
    like = parts[0][1]
    over_tokens = name in ("tokens", "layers")
    width = batch.input_ids.shape[1]
    shape = (len(batch), *like.shape[1:-1], width) if over_tokens else (len(batch), *like.shape[1:])
    whole = like.new_zeros(shape)
    for piece, values in parts:
        rows, columns = (to_device(indices, values.device) for indices in (piece.rows, piece.columns))
        if name == "neuron_positions":
            positions = columns.gather(1, values.clamp_min(0).flatten(1)).view_as(values)
            values = positions.masked_fill(values < 0, -1)
        if over_tokens:
            at = columns.view(len(rows), *[1] * (values.dim() - 2), -1).expand_as(values)
            values = values.new_zeros(len(rows), *shape[1:]).scatter(-1, at, values)
        whole[rows] = values
    return whole


# the model's inputs


def inputs_of(view: ModelView, texts: Batch) -> dict[str, Any]:
    """The arguments of the model's forward for some texts."""
    if texts.pixel_values is not None:
        return {PIXELS: texts.pixel_values.to(view.dtype)}
    pad = _pad_id(view, texts)
    inputs = {
        "input_ids": texts.input_ids if pad is None else texts.input_ids.masked_fill(texts.attention_mask == 0, pad),
        "attention_mask": texts.attention_mask,
        "token_type_ids": texts.token_type_ids,
        "decoder_input_ids": texts.decoder_input_ids,
        "decoder_attention_mask": texts.decoder_attention_mask,
        "use_cache": False,
        "return_dict": True,
    }
    takes = signature(view.model.forward).parameters
    return {name: value for name, value in inputs.items() if value is not None and name in takes}


def _pad_id(view: ModelView, texts: Batch) -> int | None:
    """The id that stands for padding, by which some models count positions; or None."""
    pad = view.config.pad_token_id
    if pad is None and view.kind.labels and view.kind.causal:
        return int(torch.ones(view.vocab).index_fill(0, texts.input_ids.flatten().cpu(), 0).argmax())
    return pad if pad is not None and 0 <= pad < view.vocab else None


@contextmanager
def _padding_named(view: ModelView, texts: Batch) -> Iterator[None]:
    """Inside, the config of a model without a padding token names the id that stands for padding."""
    if texts.pixel_values is not None or view.config.pad_token_id is not None:
        yield
        return
    view.config.pad_token_id = _pad_id(view, texts)
    try:
        yield
    finally:
        view.config.pad_token_id = None


# the readout

_ROWS = 8192  # of output embeddings that are in float32 at once


def ids_of(batch: Batch) -> Tensor:
    """Ids [R, N, 2] of the target and the foil at each readout position; [R, N, 1] without foils."""
    return batch.explained_ids[:, None] if batch.span_ids is None else batch.span_ids[..., None]


def _is_linear(module: Any) -> bool:
    """True for a linear layer that computes what its weights say: nothing hooks into it or replaces its forward."""
    hooks = nn.modules.module._global_forward_hooks or nn.modules.module._global_forward_pre_hooks
    if type(module) is not nn.Linear or hooks or "forward" in vars(module):
        return False
    return not module._forward_hooks and not module._forward_pre_hooks


class ReadRows:
    """Computes logits at readout positions alone, where the model's output embeddings read hidden states."""

    def __init__(self, view: ModelView, batch: Batch, reads_pairs: bool = False) -> None:
        """`batch` are R rows, in which the texts that run may repeat; `reads_pairs`: target and foil suffice."""
        self._head: Any = None if view.kind.labels else view.model.get_output_embeddings()
        self._at, self._ids = batch.read_positions, ids_of(batch)
        self._is_linear = _is_linear(self._head)
        self._reads_pairs = reads_pairs and self._is_linear
        self._states: Tensor | None = None  # [R, N, D], what the output embeddings read
        self._output: Tensor | None = None  # [R, N, V]

    @contextmanager
    def chosen(self) -> Iterator[None]:
        """Inside, the output embeddings get hidden states [R, N, D] at the readout positions of R rows."""
        if not isinstance(self._head, nn.Module):
            yield
            return
        with self._head.register_forward_pre_hook(self._choose), self._head.register_forward_hook(self._note):
            yield

    def _choose(self, _: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Forward pre-hook of the output embeddings."""
        states, *others = args
        self._states = self._rows(states)
        return (self._states, *others)

    def _note(self, _: nn.Module, args: tuple[Any, ...], output: Tensor) -> Tensor:
        """Forward hook of the output embeddings, whose gradient needs the rows of explained tokens alone."""
        if not torch.is_grad_enabled():
            output = self._exact(output)
        self._output = output
        if not self._reads_pairs:
            return output
        with weights_of(self._head) as weights:
            rows = weights.weight.detach()[self._ids.to(weights.weight.device)]  # [R, N, 2, D]
        return read_from(output, args[0], rows, self._ids)

    def _exact(self, output: Tensor) -> Tensor:
        """The output [R, N, V] of half-precision output embeddings without rounding, in float32."""
        precise = wide_dtype(output.dtype)
        if precise == output.dtype or not self._is_linear or self._states is None:
            return output
        states, exact = self._states.to(precise), output.to(precise)
        with weights_of(self._head) as weights:
            for start in range(0, output.shape[-1], _ROWS):
                some = slice(start, start + _ROWS)
                bias = None if weights.bias is None else weights.bias[some].to(precise)
                exact[..., some] = nn.functional.linear(states, weights.weight[some].to(precise), bias)
        return exact

    def _rows(self, of_texts: Tensor) -> Tensor:
        """The values [R, N, ...] at the readout positions of rows, from those of texts [B, T, ...]."""
        at = self._at.to(of_texts.device)
        text = torch.arange(len(at), device=at.device) % max(len(of_texts), 1)
        return of_texts[text[:, None], at]

    def read(self, logits: Tensor) -> Tensor:
        """The logits [R, N, V] of rows in the model's output, or [R, 1, C] of labels; float32 at least."""
        if logits.dim() == 2:
            return wide(logits.repeat(len(self._at) // max(len(logits), 1), 1)[:, None])
        return wide(logits if self._states is not None else self._rows(logits))

    def unrounded(self, pairs: Tensor, ids: Tensor) -> Tensor:
        """The logits [R, N, 2] of the tokens `ids`, without the rounding of half-precision output embeddings.

        Logits that the model changes afterwards, as by a soft cap, stay as they are.
        """
        states, output, head = self._states, self._output, self._head
        if states is None or output is None or not self._is_linear:
            return pairs
        rounded = wide(output.detach().gather(2, ids))
        if wide_dtype(output.dtype) == output.dtype or not torch.equal(rounded, pairs.detach()):
            return pairs
        with weights_of(head) as weights:
            rows = wide(weights.weight.detach()[ids])
            bias = 0 if weights.bias is None else wide(weights.bias.detach()[ids])
        exact = torch.einsum("rnd,rncd->rnc", wide(states.detach()), rows) + bias
        return pairs + (exact - rounded)


def numbers_of(
    view: ModelView, head: ReadRows, logits: Tensor, batch: Batch, explanations: Iterable[str]
) -> dict[str, Tensor]:
    """The explained numbers [R] by explanation, from `logits` [R, N, V].

    "logits" are those of target and foil, [R, 2] ([R, 1] without foils). Raises what `Explained.of` raises, and
    UserError for the log-probability of a score.
    """
    choices = [explained_by(name) for name in explanations]
    if view.predicts_score and not all(choice.linear for choice in choices):
        raise UserError("a score has no probability: explain it by 'target'")
    ids = ids_of(batch).to(logits.device)
    pairs = head.unrounded(logits.gather(2, ids), ids)
    weights = pairs.new_ones(pairs.shape[:2]) if batch.span_weights is None else batch.span_weights.to(pairs)
    others = None
    if not all(choice.linear for choice in choices):
        others = without(logits, ids[..., :1]).flatten()
    numbers = {"logits": (pairs * weights[..., None]).sum(1)}
    for choice in choices:
        number = choice.of(pairs.flatten(0, 1), others).view(weights.shape)
        numbers[choice.name] = (number * weights).sum(1)
    return numbers


def without(logits: Tensor, ids: Tensor) -> Tensor:
    """The logsumexp [R, N] of logits [R, N, V] but those of the tokens `ids` [R, N, 1]."""
    return logits.scatter(2, ids, -torch.inf).logsumexp(-1)


# forward passes


@contextmanager
def _ready(view: ModelView, texts: Batch, inputs: Mapping[str, Any]) -> Iterator[None]:
    """Inside, the model runs `inputs`, those of `texts`, with their factors."""
    factors = {"input_ids": texts.factors, "decoder_input_ids": texts.decoder_factors}
    known = {name: value for name, value in factors.items() if value is not None}
    with ExitStack() as undo:
        undo.enter_context(_padding_named(view, texts))
        if known:
            ids = {name: inputs[name] for name in factors if name in inputs}
            undo.enter_context(ScaledEmbeddings(view.model, ids, known))
        yield


def logits_at(view: ModelView, batch: Batch, texts: Batch | None = None) -> tuple[ReadRows, Tensor]:
    """Logits [R, N, V] at the readout positions of R rows, without rules, and their reader; a single forward pass.

    `texts` are the texts that run (default: the batch), padded on the right, whose rows repeat in the batch.
    """
    texts = batch if texts is None else texts
    inputs, head = inputs_of(view, texts), ReadRows(view, batch)
    with _ready(view, texts, inputs), unrounded(view.dtype), head.chosen():
        output = view.model(**inputs)
    return head, head.read(output.logits)


def explained_numbers(view: ModelView, batch: Batch, explanations: Iterable[str]) -> tuple[Tensor, dict[str, Tensor]]:
    """Logits [B, 2] of target and foil ([B, 1] without foils), and the explained number [B] of each of `explanations`.

    Raises as `numbers_of`.
    """
    names = tuple(dict.fromkeys(explanations))
    parts: list[tuple[Tensor, dict[str, Tensor]]] = []
    for piece in pieces_of(view, batch.to(view.device)):
        head, logits = logits_at(view, piece.batch)
        parts.append((piece.rows, numbers_of(view, head, logits, piece.batch, names)))
    numbers = {name: in_order(len(batch), [(rows, part[name]) for rows, part in parts]) for name in ("logits", *names)}
    return numbers.pop("logits"), numbers


def in_order(size: int, parts: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
    """Numbers [B, ...] of `size` rows from those of pieces, each with its rows; 0 for rows in none."""
    if len(parts) == 1 and len(parts[0][1]) == size:
        return parts[0][1]
    whole = parts[0][1].new_zeros(size, *parts[0][1].shape[1:])
    for rows, values in parts:
        whole[rows.to(whole.device)] = values
    return whole


def forward_pass(
    view: ModelView,
    batch: Batch,
    texts: Batch,
    explanations: Sequence[str],
    composites: Sequence[Composite],
    stacks: Sequence[str] = (),
    instead: Mapping[str, Tensor] | None = None,
) -> Forward:
    """A forward pass under the rules of `composites`, whose `output` has the "logits" and the numbers by explanation.

    `batch` and `texts` are those of `logits_at`. For `stacks` and `instead` see `run`.
    """
    head = ReadRows(view, batch, all(explained_by(name).linear for name in explanations))
    inputs = inputs_of(view, texts)

    def numbers(output: Any) -> dict[str, Tensor]:
        return numbers_of(view, head, head.read(output.logits), batch, explanations)

    with _ready(view, texts, inputs), head.chosen():
        return run(view.model, inputs, numbers, composites, view.dtype, stacks, instead)
