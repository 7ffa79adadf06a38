"""Tokenised views: a generic sample as the tokens that a kind of model reads.

A masked model reads the text with the mask token in the slot. A causal model reads the text up to the slot, and the
tokens that target and foil share at their beginning. The encoder of an encoder-decoder reads the text up to the slot,
its decoder these shared tokens. Spans of characters become tokens through the tokenizer's offsets. Tokens that the
tokenizer's template adds are *special*; the mask token is not. A sample's *scope*, if it has one, are the spans of
its text to which scores and perturbation may be limited, such as the context of a question.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from transformers import PreTrainedTokenizerBase

from closelook.evaluation.benchmark.answers.reading import answer_view
from closelook.evaluation.benchmark.encoding import Encoding, encode, has_spaces, opening_of, view_row
from closelook.evaluation.benchmark.samples import (
    Beginning,
    Filled,
    Malformed,
    Prompt,
    Row,
    UnitKind,
    Words,
    rejecting,
)
from closelook.evaluation.benchmark.slotless import begin, read_whole, too_long
from closelook.evaluation.benchmark.slots import Prediction, answering, continuing, filling
from closelook.lrp_core.records.kinds import Kind
from closelook.lrp_core.records.types import UserError

VERSION = 5  # raised when other tokens come out of the same samples: views of older versions are made again


def tokenise(
    rows: Iterable[Row],
    tokenizer: PreTrainedTokenizerBase,
    *,
    kind: Kind,
    max_length: int,
    truncate: bool = False,
    answers: bool = False,
    words: Words = "single",
    beginning: Beginning | None = None,
    first_piece: bool = False,
    decoder_tokenizer: PreTrainedTokenizerBase | None = None,
    units: UnitKind | None = None,
) -> tuple[list[Row], list[Row]]:
    """Makes views of generic rows for one tokenizer: (view rows, reject rows), one row for each that came in.

    * `kind`: what the model reads and predicts.
    * `max_length`, `truncate`: a text of more tokens is rejected; one that is read whole loses its end with `truncate`.
    * `answers`: targets and foils may have several words, of which a masked model predicts the first.
    * `words`: which tokens of target and foil are explained (see :mod:`slots`); `all`: a whole answer.
    * `beginning`: how texts without a slot are read; models of labels read them whole.
    * `first_piece`: of an evidence word of several tokens only the first counts, in texts with a slot.
    * `decoder_tokenizer`: of an encoder-decoder, the tokenizer of targets and foils, if it is not `tokenizer`.
    * `units`: of whole answers, the parts of prompts that are removed one by one.

    Raises UserError for a tokenizer that gives no offsets, or has no mask token where the model needs one.
    """
    writer = decoder_tokenizer or tokenizer
    _check(tokenizer, kind)
    _check(writer, kind)
    reader = _Reader(tokenizer, writer, kind, max_length, truncate, answers, words, beginning, first_piece, units)
    views: list[Row] = []
    rejects: list[Row] = []
    for row in rows:
        with rejecting(rejects, "view", sample_id=row["sample_id"]):
            views.append(reader.view(row))
    return views, rejects


def _check(tokenizer: PreTrainedTokenizerBase, kind: Kind) -> None:
    """Raises UserError for a tokenizer of which no views of this kind can be made."""
    if not tokenizer.is_fast:
        raise UserError(
            f"{tokenizer.name_or_path} has no fast tokenizer, and only these tell which characters a token covers: "
            "take a model with a tokenizer.json"
        )
    if kind.slot and tokenizer.mask_token is None:
        raise UserError(
            f"{tokenizer.name_or_path} has no mask token, which a masked model needs: give the model's own tokenizer"
        )


@dataclass(frozen=True)
class _SlotReading:
    """A text with a slot as the tokens that a model reads, and the tokens that it predicts in the slot."""

    encoding: Encoding
    prediction: Prediction
    evidence: Sequence[Sequence[int]]  # spans of the text that is read
    scope: Sequence[Sequence[int]] | None


@dataclass(frozen=True)
class _Reader:
    """The reading of samples by a kind of model: the settings of `tokenise`."""

    tokenizer: PreTrainedTokenizerBase
    writer: PreTrainedTokenizerBase
    kind: Kind
    max_length: int
    truncate: bool
    answers: bool
    words: Words
    beginning: Beginning | None
    first_piece: bool
    units: UnitKind | None

    def view(self, row: Row) -> Row:
        """The view row of a generic row. Raises Malformed for a row that cannot become one."""
        self._refuse_specials(row)
        if self.words == "all":
            return answer_view(row, self.tokenizer, self.writer, self.kind, self.max_length, self.units)
        if self.kind.labels:
            return read_whole(row, self.tokenizer, self.kind, self.max_length, self.truncate)
        if row["slot"] is not None:
            return self._slot_view(row, self._filled(row) if self.kind.slot else self._up_to_slot(row))
        if self.kind.decoder:
            raise Malformed("no slot", "an encoder-decoder needs a target to predict")
        return begin(row, self.tokenizer, self.kind, self.max_length, self.beginning)

    def _filled(self, row: Row) -> _SlotReading:
        """The reading of a masked model: the text with the mask token in its slot."""
        filled = Filled.of(row["text"], row["slot"], self.tokenizer.mask_token)
        [encoding] = encode(self.tokenizer, [filled.text])
        scope = None if row["scope"] is None else list(map(filled.shifted, row["scope"]))
        prediction = filling(row, self.tokenizer, self.answers)
        return _SlotReading(encoding, prediction, list(map(filled.shifted, row["evidence"])), scope)

    def _up_to_slot(self, row: Row) -> _SlotReading:
        """The reading of other models: the text before the slot, for a causal model without special tokens at its end.

        Raises Malformed for evidence after the slot and for a slot at the beginning of the text.
        """
        if any(end > row["slot"] for _, end in row["evidence"]):
            raise Malformed("evidence after the slot")
        prompt = Prompt.of(row["text"][: row["slot"]], self._has_spaces)
        if not prompt.text:
            raise Malformed("no text before the slot")
        [encoding] = encode(self.tokenizer, [prompt.text])
        if self.kind.decoder:
            prediction = answering(row, self.writer, self.words)
        else:
            encoding = encoding.open_ended()
            prediction = continuing(row, prompt, encoding, self.tokenizer, self.words)
        return _SlotReading(encoding, prediction, row["evidence"], row["scope"])

    def _slot_view(self, row: Row, reading: _SlotReading) -> Row:
        """The view row. A masked model predicts at the mask, a causal one at the last token that it reads.

        The decoder of an encoder-decoder predicts behind its start token and the tokens that target and foil share.
        Raises Malformed for a text that is too long, or of special tokens alone, and if no token is evidence.
        """
        encoding, (shared, target, foil) = reading.encoding, reading.prediction
        length = len(encoding) + len(shared)
        if length > self.max_length:
            raise too_long(length, self.max_length)
        if encoding.special.all():
            raise Malformed("no text before the slot")
        more: Row = {}
        if self.kind.decoder:
            position, more = len(shared), {"decoder_input_ids": shared}
        else:
            encoding = encoding.followed_by(shared)
            position = encoding.ids.index(self.tokenizer.mask_token_id) if self.kind.slot else length - 1
        evidence = encoding.evidence(reading.evidence, first=self.first_piece)
        scope = None if reading.scope is None else encoding.covers(reading.scope)
        return view_row(row, encoding, position, target=target, foil=foil, evidence=evidence, scope=scope, **more)

    def _refuse_specials(self, row: Row) -> None:
        """Raises Malformed for a special token in a text, target or foil, except for one that opens the text."""
        if self._has_special(row, row["text"]) and self._has_special(row, row["text"].removeprefix(self._opening)):
            raise Malformed("a special token of the tokenizer in the text")

    def _has_special(self, row: Row, text: str) -> bool:
        """True if there is a special token in `text` or in another text of `row`."""
        return any(self._specials.search(part or "") for part in (text, row["second"], row["target"], row["foil"]))

    @cached_property
    def _has_spaces(self) -> bool:
        return has_spaces(self.tokenizer)

    @cached_property
    def _opening(self) -> str:
        return opening_of(self.tokenizer)

    @cached_property
    def _specials(self) -> re.Pattern[str]:
        """A pattern for the tokenizer's special tokens; without any, it matches nothing."""
        contents = [re.escape(token.content) for token in self.tokenizer.added_tokens_decoder.values() if token.special]
        return re.compile("|".join(contents) or r"(?!)")
