"""Views of texts without a slot: a classifier or a regressor reads them whole, other models read their first tokens.

The latter predict the next token.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import numpy as np
from transformers import PreTrainedTokenizerBase

from closelook.evaluation.benchmark.encoding import Encoding, encode
from closelook.evaluation.benchmark.samples import Beginning, Malformed, Row, rejecting, view_row
from closelook.lrp_core.records.kinds import Kind

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
        for row, whole in zip(alike, _encodings(alike, paired, tokenizer), strict=True):
            with rejecting(rejects, "view", sample_id=row["sample_id"]):
                if not apart:
                    raise Malformed("the tokenizer puts nothing between two texts", "a pair would be read as one text")
                encoding, cut = whole, None
                if len(whole) > max_length:
                    if not truncate:
                        raise Malformed(TOO_LONG, f"{len(whole)} tokens, the model takes {max_length}")
                    [encoding] = _encodings([row], paired, tokenizer, max_length)
                    cut = len(whole) - len(encoding)
                views.append(_whole_view(row, encoding, kind, cut))
    return views


def _encodings(
    rows: Sequence[Row], paired: bool, tokenizer: PreTrainedTokenizerBase, max_length: int | None = None
) -> list[Encoding]:
    """The encodings of the rows' texts or, if `paired`, of their pairs, cut to `max_length` tokens unless None."""
    seconds = [row["second"] for row in rows] if paired else None
    return encode(tokenizer, [row["text"] for row in rows], seconds=seconds, max_length=max_length)


def _whole_view(row: Row, encoding: Encoding, kind: Kind, cut: int | None) -> Row:
    """The view row of an encoded row; `cut` is the number of tokens that the text lost, None if it was not cut.

    Raises Malformed if no token of the text, or of its evidence, is left.
    """
    if encoding.special.all():
        raise Malformed("the text has no token")
    evidence = encoding.evidence(row["evidence"])
    position = 0 if kind.reads == "first" else len(encoding) - 1
    return view_row(
        row,
        encoding.ids,
        encoding.special.tolist(),
        position,
        target=None if row["score"] is None else 0,
        evidence=None if evidence is None else evidence.tolist(),
        scope=encoding.covers(row["scope"]).tolist() if row["scope"] else None,
        token_type_ids=encoding.types,
        label=row["label"],
        score=row["score"],
        cut=cut,
    )


def begin(
    row: Row, tokenizer: PreTrainedTokenizerBase, kind: Kind, max_length: int, beginning: Beginning | None
) -> Row:
    """The view of a generic row without a slot, read as `beginning` says.

    A causal model reads the first tokens of the text; a masked one reads a mask token after them. Special tokens that
    the template adds come on top. Of a text that is too short, all tokens but the last are read, so that a token always
    follows. Raises Malformed for a text of fewer than two tokens, and if `beginning` is None.
    """
    if beginning is None:
        raise Malformed("no slot", "the task's record has no `beginning`, which says how many tokens are read")
    [encoding] = encode(tokenizer, [row["text"]])
    ordinary = (~encoding.special).nonzero()[0]
    if not len(ordinary):
        raise Malformed("no token follows the beginning", "the text has 0 tokens")
    behind = encoding.ids[ordinary[-1] + 1 :] if kind.slot else []
    before = encoding.ids[: ordinary[0]]
    room = max_length - len(before) - len(behind) - kind.slot
    count = min(beginning.tokens, room, len(ordinary) - 1)
    if count < 1:
        raise Malformed("no token follows the beginning", f"the text has {len(ordinary)} tokens")
    text = [encoding.ids[at] for at in ordinary[: count + 1]]
    mask = [tokenizer.mask_token_id] if kind.slot else []
    ids = [*before, *text[:count], *mask, *behind]
    read = count + kind.slot
    special = [True] * len(before) + [False] * read + [True] * len(behind)
    target = text[count] if beginning.explains == "true" else None
    return view_row(row, ids, special, len(before) + read - 1, target=target)
