"""Views of texts without a slot: a classifier or a regressor reads them whole, other models read their first tokens.

The latter predict the next token.
"""

from __future__ import annotations

import numpy as np
from transformers import PreTrainedTokenizerBase

from closelook.evaluation.benchmark.encoding import Encoding, encode, view_row
from closelook.evaluation.benchmark.samples import Beginning, Malformed, Row
from closelook.lrp_core.records.kinds import Kind

TOO_LONG = "too long"  # why a text is rejected that does not fit the model


def separates(tokenizer: PreTrainedTokenizerBase) -> bool:
    """True if the tokenizer, a fast one, puts at least one special token between the two texts of a pair."""
    [encoding] = encode(tokenizer, ["a"], seconds=["b"])
    assert encoding.sequence is not None
    first, second = (np.flatnonzero(encoding.sequence == which) for which in (0, 1))
    return len(first) > 0 and len(second) > 0 and bool(second[0] > first[-1] + 1)


def read_whole(row: Row, tokenizer: PreTrainedTokenizerBase, kind: Kind, max_length: int, truncate: bool) -> Row:
    """The view row of a text, or of a pair, without a slot.

    A classifier's predicted label is explained, so that `target_id` is None; of a regressor it is 0, its only output. A
    text of more than `max_length` tokens, with `truncate`, loses tokens at its end, of a pair the longer text; `cut` is
    their number. Raises Malformed for a text that is too long otherwise, for a pair that the tokenizer would join, and
    if no token of the text, or of its evidence, is left.
    """
    seconds = None if row["second"] is None else [row["second"]]
    if seconds is not None and not separates(tokenizer):
        raise Malformed("the tokenizer puts nothing between two texts", "a pair would be read as one text")
    [encoding] = encode(tokenizer, [row["text"]], seconds=seconds)
    cut, length = None, len(encoding)
    if length > max_length:
        if not truncate:
            raise too_long(length, max_length)
        [encoding] = encode(tokenizer, [row["text"]], seconds=seconds, max_length=max_length)
        cut = length - len(encoding)
    if encoding.special.all():
        raise Malformed("the text has no token")
    return view_row(
        row,
        encoding,
        0 if kind.reads == "first" else len(encoding) - 1,
        target=None if row["score"] is None else 0,
        evidence=encoding.evidence(row["evidence"]),
        scope=encoding.covers(row["scope"]) if row["scope"] else None,
        token_type_ids=encoding.types,
        label=row["label"],
        score=row["score"],
        cut=cut,
    )


def too_long(length: int, max_length: int) -> Malformed:
    """The error of a text with more tokens than the model takes."""
    return Malformed(TOO_LONG, f"{length} tokens, the model takes {max_length}")


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
    read = text[:count] + ([tokenizer.mask_token_id] if kind.slot else [])
    special = np.repeat([True, False, True], [len(before), len(read), len(behind)])
    ids = [*before, *read, *behind]
    target = text[count] if beginning.explains == "true" else None
    shown = Encoding(ids, np.zeros((len(ids), 2), np.int32), special)
    return view_row(row, shown, len(before) + len(read) - 1, target=target)
