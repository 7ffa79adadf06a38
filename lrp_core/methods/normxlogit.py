"""NormXLogit: the model's own head applied to every token's state, weighted by the norm of the input."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from closelook.lrp_core.device.precision import unrounded
from closelook.lrp_core.methods.records import EMBEDDING_OUTPUT, FOIL, TARGET, WORD
from closelook.lrp_core.records.explained import NONE, explained_by, relevance_of, whichever
from closelook.lrp_core.records.types import Batch, Requests, Results, UserError
from closelook.lrp_core.views.view import ModelView

#: Relevance by layer [B, L, T] from the norm of the input [B, 1, T] and the explained number that the head gives for
#: each state [B, L, T].
_MEASURES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "embedding_norm": lambda norm, read: norm.expand_as(read),
    "logat": lambda _, read: read,
    "normxlogit": lambda norm, read: norm * read,
}

_BEFORE = "a "  # put before a word, since many tokenizers treat a word inside a text and at its beginning differently


@torch.no_grad()
def explain_many(
    view: ModelView, batch: Batch, requests: Requests, *, layers: bool = False, texts: int | None = None
) -> Results:
    """Apply the model's head to the last state of every token and take the explained number there; one forward in all.

    For a score, which has no natural zero, relevance is the distance from the score at the readout position, as in the
    paper's formula; the option `reverse` negates it, as in the paper's text. With the option `word` the logit of
    another word takes the place of the target's. With `layers` the head is also applied to the states after lower
    blocks, through the final norm where the model has one (the paper's model, RoBERTa, has none); `embedding_norm`
    gives the norms of these states. In causal models tokens after the readout position get 0. With `texts` only that
    many rows run, which repeat in the batch (see `gradients.explain_many`). Raises UserError for a contrastive request
    without foils, and for a `word` that the model or batch does not have.
    """
    batch = batch.to(view.device)
    read = batch if texts is None else batch.rows(0, texts)
    with _states_of(view, range(view.n_layers if layers else 1)) as states:
        view.logits(read)
    *states, last = states
    below = [_normed(view, states[layer].to(last.device)) for layer in range(1, len(states))]
    behind = [*below, last]
    headed = [view.head(state) for state in behind]
    words = dict.fromkeys(request.option("word", TARGET) for request in requests)
    asked = {word: _asked(view, batch, word) for word in words}
    reads: dict[str, Tensor] = {}  # [B, 2, L, T]
    for word, rows in asked.items():
        reads[word] = torch.stack([_each(view.unembed, state, rows) for state in headed], 2)
    at_readout = {word: _at(by_head[:, :, -1], batch.position)[..., 0] for word, by_head in reads.items()}
    logits = at_readout.get(TARGET)
    if logits is None:
        logits = _at(_each(view.unembed, headed[-1], batch), batch.position)[..., 0]
    seen = view.visible(batch).to(logits.device)
    times = len(batch) // len(read)
    results: Results = {}
    for request in requests:
        word = request.option("word", TARGET)
        if request.explanation == NONE:
            explained = whichever(logits.shape[1] == 2)
        else:
            explained = explained_by(request.explanation)
        vectors = view.tokens(read) if request.option("norm", EMBEDDING_OUTPUT) == WORD else states[0]
        norm = vectors.to(logits).norm(dim=-1)[:, None].repeat(times, 1, 1)  # [B, 1, T]
        by_head = reads[word]
        if view.predicts_score:
            far = (by_head - _at(by_head, batch.position)).abs()
            by_head = -far if request.option("reverse", False) else far
        scores = _MEASURES[request.method](norm, explained.of(by_head))
        scores = by_layer = _shown(scores, seen, batch)
        if layers and request.method == "embedding_norm":
            norms = torch.stack([state.to(logits).norm(dim=-1) for state in behind], 1)
            by_layer = _shown(norms.repeat(times, 1, 1), seen, batch)
        number = explained.of(at_readout[word])
        of_layers = by_layer if layers else None
        results[request] = relevance_of(scores[:, -1], logits, number, conserves=False, layers=of_layers)
    return results


def _each(read: Callable[[Tensor, Batch], Tensor], states: Tensor, batch: Batch) -> Tensor:
    """Apply `read` to the `states` of N texts, once for every N rows of a batch in which these texts repeat."""
    return torch.cat([read(states, part) for part in batch.parts(len(states))])


def _asked(view: ModelView, batch: Batch, word: str) -> Batch:
    """The batch with `word` as its target; FOIL swaps target and foil. Raises UserError if there is no such word."""
    if word == TARGET:
        return batch
    if view.predicts_score:
        raise UserError(f"the model predicts a score and no word {word!r}: leave out the option 'word'")
    if word != FOIL:
        return replace(batch, target_ids=torch.full_like(batch.target_ids, token_of(view, word)))
    if batch.foil_ids is None:
        raise UserError(f"logat with word {FOIL!r} needs foil_ids: give foils, or leave out the option 'word'")
    return replace(batch, target_ids=batch.foil_ids, foil_ids=batch.target_ids)


@contextmanager
def _states_of(view: ModelView, layers: Iterable[int]) -> Iterator[list[Tensor]]:
    """Yield a list to which a forward inside appends the inputs of the blocks `layers`, and the last states."""
    states: list[Tensor] = []
    with ExitStack() as undo:
        for layer in layers:
            block = view.blocks[layer].module
            undo.enter_context(block.register_forward_pre_hook(lambda _, args: states.append(args[0])))
        last = view.blocks[-1].module if view.final_norm is None else view.final_norm.module
        undo.enter_context(last.register_forward_hook(lambda _, args, output: states.append(_states_in(output))))
        yield states


def _states_in(output: Any) -> Tensor:
    """The states in the output of a block or norm, [B, T, D]."""
    states: Tensor = output[0] if isinstance(output, tuple) else output
    return states


def _at(numbers: Tensor, position: Tensor) -> Tensor:
    """The numbers [B, ..., T] at the `position` [B] of each row, [B, ..., 1]."""
    at = position.to(numbers.device).view(-1, *[1] * (numbers.dim() - 1))
    return numbers.gather(-1, at.expand(*numbers.shape[:-1], 1))


def _shown(scores: Tensor, seen: Tensor, batch: Batch) -> Tensor:
    """`scores` [B, L, T] with 0 for tokens that are not `seen` [B, T], on the device of the batch."""
    return scores.masked_fill(~seen[:, None], 0).to(batch.input_ids.device)


def _normed(view: ModelView, state: Tensor) -> Tensor:
    """A state as the head reads it: through the model's final norm, if any; in float64 throughout if the view is."""
    if view.final_norm is None:
        return state
    with unrounded(view.dtype):
        return view.final_norm.module(state)


def token_of(view: ModelView, word: str) -> int:
    """The id of the first token of `word`, tokenised as a word inside a text.

    Raises UserError for a model that predicts labels or was opened without a tokenizer, and for a word that the
    tokenizer does not know.
    """
    if view.kind.labels:
        raise UserError(f"{word!r} is no label: {view.family.title} predict labels, not words")
    if view.read_tokenizer is None:
        raise UserError(f"{word!r} cannot be tokenised: the model was opened without a tokenizer; use load_model")
    tokenizer = view.read_tokenizer()
    encoded = tokenizer(_BEFORE + word, add_special_tokens=False, return_offsets_mapping=True)
    tokens = zip(encoded["input_ids"], encoded["offset_mapping"], strict=True)
    token_id = next((token for token, (_, end) in tokens if end > len(_BEFORE)), None)
    if token_id is None or token_id == tokenizer.unk_token_id:
        raise UserError(f"{word!r} is unknown to the model's tokenizer: choose another word")
    return int(token_id)
