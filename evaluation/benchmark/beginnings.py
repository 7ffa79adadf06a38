"""Views of texts that a model is to go on with: their first tokens, and the one that it predicts next."""

from __future__ import annotations

from transformers import PreTrainedTokenizerBase

from evaluation.benchmark.encoding import encode
from evaluation.benchmark.samples import Beginning, Malformed, Row, view_row
from lrp_core.records.kinds import Kind


def begin(
    row: Row, tokenizer: PreTrainedTokenizerBase, kind: Kind, max_length: int, beginning: Beginning | None
) -> Row:
    """The view of a generic row without a slot.

    A causal model reads the first tokens of the text, a masked one has a mask token behind them; what the template adds
    comes on top. A text that is shorter is read but for its last token, so that one always follows.
    Raises Malformed for a text of a single token, and where no beginning is asked for.
    """
    if beginning is None:
        raise Malformed("no slot", "the task does not say how much of a text is read")
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
