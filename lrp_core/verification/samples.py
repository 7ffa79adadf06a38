"""Random samples for a model, as view rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from closelook.lrp_core.views.images import ImageView
from closelook.lrp_core.views.view import ModelView

LENGTHS = (7, 4, 10)  # the numbers of tokens of the samples
_FIRST = 3  # lower ids are special tokens in most vocabularies
_SPECIAL = ("pad", "bos", "eos", "cls", "sep", "mask", "decoder_start")

Row = dict[str, Any]


def random_rows(view: ModelView, lengths: Sequence[int] = LENGTHS, seed: int = 0) -> list[Row]:
    """A view row for each of `lengths`, of random ordinary tokens; for a model of images, of random pixels.

    The readout position is the last token of causal models, a token inside for masked models, and the token that the
    head reads for classifiers. In encoder-decoders it is the last token of the decoder's text: the start token and, in
    the n-th row, n - 1 more.
    """
    generator = torch.Generator().manual_seed(seed)
    if isinstance(view, ImageView):
        return [_picture(view, at, generator) for at in range(len(lengths))]
    if view.kind.labels:
        return [_labelled(view, _tokens(view, length, generator), at) for at, length in enumerate(lengths)]
    rows: list[Row] = []
    for length in lengths:
        ids = _tokens(view, length, generator)
        target, foil = _tokens(view, 2, generator)
        position = length // 2 if view.kind.slot else length - 1
        rows.append({"input_ids": ids, "position": position, "target_id": target, "foil_id": foil})
    if view.kind.decoder:
        for seen, row in enumerate(rows):
            ids = [*view.start_ids, *_tokens(view, seen, generator)]
            row |= {"decoder_input_ids": ids, "position": len(ids) - 1}
    return rows


def _tokens(view: ModelView, count: int, generator: torch.Generator) -> list[int]:
    """`count` random token ids, none of which the config names as a special token."""
    special: set[int | None] = set()
    for name in _SPECIAL:
        ids = getattr(view.config, f"{name}_token_id", None)
        special.update(ids if isinstance(ids, list) else [ids])
    drawn = torch.randint(_FIRST, view.vocab, (count,), generator=generator).tolist()
    ordinary = next(token for token in range(_FIRST, view.vocab) if token not in special)
    return [ordinary if token in special else token for token in drawn]


def _labelled(view: ModelView, ids: list[int], at: int) -> Row:
    """The view row number `at` of a classifier or regressor, with another target label from row to row."""
    position = 0 if view.kind.reads == "first" else len(ids) - 1
    row = {"input_ids": ids, "position": position, "target_id": at % view.n_targets}
    return row if view.predicts_score else {**row, "foil_id": (at + 1) % view.n_targets}


def _picture(view: ImageView, at: int, generator: torch.Generator) -> Row:
    """The view row number `at` of a classifier of images, of random pixels."""
    pixels = torch.randn(view.image_shape, generator=generator, dtype=torch.float32).numpy()
    return {**_labelled(view, [0] * view.max_length, at), "pixel_values": pixels}
