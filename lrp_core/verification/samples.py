"""Random samples of a model, as view rows: tokens, pictures, labels, and what a decoder has seen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from lrp_core.views.images import ImageView
from lrp_core.views.view import ModelView

LENGTHS = (7, 4, 10)  # tokens of the samples
_FIRST = 3  # ids below are special in most vocabularies
_SPECIAL = ("pad", "bos", "eos", "cls", "sep", "mask", "decoder_start")

Row = dict[str, Any]


def random_rows(view: ModelView, lengths: Sequence[int] = LENGTHS, seed: int = 0) -> list[Row]:
    """A row for each length, of ordinary tokens; of a model of images as many rows, of random pixels.

    Causal models predict after the last token, masked ones inside, encoder-decoders after what the decoder has seen
    (the start token, and as many others as there are rows before), classifiers where their head reads.
    """
    if isinstance(view, ImageView):
        return _pictures(view, len(lengths), seed)
    generator = torch.Generator().manual_seed(seed)
    if view.kind.labels:
        return [_labelled(view, _tokens(view, length, generator), at) for at, length in enumerate(lengths)]
    rows: list[Row] = []
    for length in lengths:
        ids = _tokens(view, length, generator)
        target, foil = _tokens(view, 2, generator)
        position = length // 2 if view.kind.slot else length - 1
        rows.append({"input_ids": ids, "position": position, "target_id": target, "foil_id": foil})
    if view.kind.decoder:
        start = view.config.decoder_start_token_id
        for seen, row in enumerate(rows):
            row |= {"decoder_input_ids": [start, *_tokens(view, seen, generator)], "position": seen}
    return rows


def beginning(view: ModelView, row: Mapping[str, Any], length: int) -> Row:
    """The first `length` tokens of a row that is longer, read at a position that they have."""
    shorter = {**row, "input_ids": row["input_ids"][:length]}
    if not view.kind.decoder:
        at_end = view.kind.reads == "last" or (view.kind.reads == "anywhere" and not view.kind.slot)
        shorter["position"] = length - 1 if at_end else min(row["position"], length - 1)
    return shorter


def _tokens(view: ModelView, count: int, generator: torch.Generator) -> list[int]:
    """Random tokens without those that the config names as special ones."""
    special: set[int | None] = set()
    for name in _SPECIAL:
        ids = getattr(view.config, f"{name}_token_id", None)
        special.update(ids if isinstance(ids, list) else [ids])
    drawn = torch.randint(_FIRST, view.vocab, (count,), generator=generator).tolist()
    ordinary = next(token for token in range(_FIRST, view.vocab) if token not in special)
    return [ordinary if token in special else token for token in drawn]


def _labelled(view: ModelView, ids: list[int], at: int) -> Row:
    position = 0 if view.kind.reads == "first" else len(ids) - 1
    row = {"input_ids": ids, "position": position, "target_id": at % view.n_targets}
    return row if view.predicts_score else {**row, "foil_id": (at + 1) % view.n_targets}


def _pictures(view: ImageView, count: int, seed: int) -> list[Row]:
    generator = torch.Generator().manual_seed(seed)
    rows = []
    for at in range(count):
        pixels = torch.randn(view.image_shape, generator=generator).numpy()
        targets = {"target_id": at % view.n_targets, "foil_id": (at + 1) % view.n_targets}
        rows.append({"input_ids": [0] * view.max_length, "pixel_values": pixels, "position": 0, **targets})
    return rows
