"""Words of users as tokens of a model's vocabulary."""

from __future__ import annotations

from lrp_core.records.types import UserError
from lrp_core.views.view import ModelView

_BEFORE = "a "  # put before a word, since many tokenizers treat a word inside a text and at its beginning differently


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
