"""Views of texts and pairs of texts that a classifier or a regressor reads whole."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import numpy as np
from transformers import PreTrainedTokenizerBase

from evaluation.benchmark.encoding import Encoding, encode
from evaluation.benchmark.samples import Malformed, Row, rejecting, view_row
from lrp_core.records.kinds import Kind

TOO_LONG = "too long"  # why a text is rejected that does not fit the model


def separates(tokenizer: PreTrainedTokenizerBase) -> bool:
    """True if the tokenizer, a fast one, puts at least one special token between the two texts of a pair."""
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
    rejects: list[Row],
) -> list[Row]:
    """View rows of generic rows without a slot; rows that cannot become a view are appended to `rejects`.

    A classifier's predicted label is explained, so that `target_id` is None; of a regressor it is 0, its only output. A
    text of more than `max_length` tokens is rejected, or, with `truncate`, loses tokens at its end, of a pair the
    longer text.
    """
    views = []
    for paired, group in groupby(rows, lambda row: row["second"] is not None):
        alike = list(group)
        apart = not paired or separates(tokenizer)
        for row, whole in zip(alike, _encoded(alike, paired, tokenizer), strict=True):
            with rejecting(rejects, "view", sample_id=row["sample_id"]):
                if not apart:
                    raise Malformed("the tokenizer puts nothing between two texts", "a pair would be read as one text")
                encoding, cut = whole, None
                if len(whole) > max_length:
                    if not truncate:
                        raise Malformed(TOO_LONG, f"{len(whole)} tokens, the model takes {max_length}")
                    [encoding] = _encoded([row], paired, tokenizer, max_length)
                    cut = len(whole) - len(encoding)
                views.append(_view(row, encoding, kind, cut))
    return views


def _encoded(
    rows: Sequence[Row], paired: bool, tokenizer: PreTrainedTokenizerBase, max_length: int | None = None
) -> list[Encoding]:
    """The encodings of the rows' texts or, if `paired`, of their pairs, cut to `max_length` tokens unless None."""
    seconds = [row["second"] for row in rows] if paired else None
    return encode(tokenizer, [row["text"] for row in rows], seconds=seconds, max_length=max_length)


def _view(row: Row, encoding: Encoding, kind: Kind, cut: int | None) -> Row:
    """The view row of an encoded row; `cut` is the number of tokens that the text lost, None if it was not cut.

    Raises Malformed if no token of the text, or of its evidence, is left.
    """
    if encoding.special.all():
        raise Malformed("the text has no token")
    evidence, scope = (encoding.mask(row[name] or None) for name in ("evidence", "scope"))
    if evidence is not None and not any(evidence):
        raise Malformed("the evidence has no token")
    position = 0 if kind.reads == "first" else len(encoding) - 1
    return view_row(
        row,
        encoding.ids,
        encoding.special.tolist(),
        position,
        target=None if row["score"] is None else 0,
        evidence=evidence,
        scope=scope,
        token_type_ids=encoding.types,
        label=row["label"],
        score=row["score"],
        cut=cut,
    )
