"""Views of texts and pairs of texts that a classifier or a regressor reads whole."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby

import numpy as np
from transformers import PreTrainedTokenizerBase

from evaluation.benchmark.encoding import Encoding, encode
from evaluation.benchmark.samples import Malformed, Row
from lrp_core.kinds import Kind


def separates(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether the template of a fast tokenizer puts a token between two texts."""
    [encoding] = encode(tokenizer, ["a"], seconds=["b"])
    assert encoding.sequence is not None
    first, second = (np.flatnonzero(encoding.sequence == which) for which in (0, 1))
    return len(first) > 0 and len(second) > 0 and bool(second[0] > first[-1] + 1)


def read_whole(
    rows: Sequence[Row],
    tokenizer: PreTrainedTokenizerBase,
    kind: Kind,
    max_length: int,
    truncate: bool,
    refuse: Callable[[Row, Malformed], None],
) -> list[Row]:
    """View rows of generic rows without a slot; `refuse` is told of the others.

    A label is the model's own prediction (`target_id` null), a score the only number that there is. A text longer than
    `max_length` tokens is refused, or, with `truncate`, loses tokens at its end until it fits; of a pair the longer.
    """
    views = []
    for paired, group in groupby(rows, lambda row: row["second"] is not None):
        own = list(group)
        if paired and not separates(tokenizer):
            for row in own:
                refuse(row, Malformed("the tokenizer puts nothing between two texts"))
            continue
        for row, whole in zip(own, _encoded(own, paired, tokenizer), strict=True):
            try:
                encoding, cut = whole, None
                if len(whole) > max_length:
                    if not truncate:
                        raise Malformed("too long", f"{len(whole)} tokens, the model takes {max_length}")
                    [encoding] = _encoded([row], paired, tokenizer, max_length)
                    cut = len(whole) - len(encoding)
                views.append(_view(row, encoding, kind) | {"cut": cut})
            except Malformed as error:
                refuse(row, error)
    return views


def _encoded(
    rows: Sequence[Row], paired: bool, tokenizer: PreTrainedTokenizerBase, max_length: int | None = None
) -> list[Encoding]:
    seconds = [row["second"] for row in rows] if paired else None
    return encode(tokenizer, [row["text"] for row in rows], seconds=seconds, max_length=max_length)


def _view(row: Row, encoding: Encoding, kind: Kind) -> Row:
    """Raises Malformed where no token of the text, or of its evidence, is left."""
    if encoding.special.all():
        raise Malformed("the text has no token")
    evidence, scope = (None if not row[name] else encoding.covers(row[name]) for name in ("evidence", "scope"))
    if evidence is not None and not evidence.any():
        raise Malformed("the evidence has no token")
    return {
        "sample_id": row["sample_id"],
        "input_ids": encoding.ids,
        "position": 0 if kind.reads == "first" else len(encoding) - 1,
        "target_id": None if row["score"] is None else 0,
        "foil_id": None,
        "evidence_mask": None if evidence is None else evidence.tolist(),
        "special_mask": encoding.special.tolist(),
        "scope_mask": None if scope is None else scope.tolist(),
        "length": len(encoding),
        "token_type_ids": encoding.types,
        "label": row["label"],
        "score": row["score"],
    }
