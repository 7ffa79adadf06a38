"""Views of texts without a slot: the model reads their first tokens and predicts the next one."""

from __future__ import annotations

from transformers import PreTrainedTokenizerBase

from evaluation.benchmark.encoding import encode
from evaluation.benchmark.samples import Beginning, Malformed, Row, view_row
from lrp_core.records.kinds import Kind


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
