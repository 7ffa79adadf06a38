"""Tokenised views: a generic sample as the tokens that a kind of model reads.

A masked model reads the text with the mask token in the slot. A causal model reads the text up to the slot, and the
tokens that target and foil share at their beginning. The encoder of an encoder-decoder reads the text up to the slot,
its decoder these shared tokens. Spans of characters become tokens through the tokenizer's offsets. Tokens that the
tokenizer's template adds are *special*; the mask token is not. A sample's *scope*, if it has one, are the spans of
its text to which scores and perturbation may be limited, such as the context of a question; a text with a slot is cut
only there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from transformers import PreTrainedTokenizerBase

from closelook.evaluation.benchmark.answers.reading import read_answers
from closelook.evaluation.benchmark.encoding import Encoding, encode, has_spaces, opening_of
from closelook.evaluation.benchmark.samples import (
    Beginning,
    Filled,
    Malformed,
    Prompt,
    Row,
    Span,
    UnitKind,
    Words,
    rejecting,
    view_row,
)
from closelook.evaluation.benchmark.slotless import TOO_LONG, begin, read_whole
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
    * `max_length`, `truncate`: a text of more tokens is rejected, or, with `truncate`, its scope cut to what fits
      around the evidence; a text that is read whole loses its end. Prompts of whole answers are never cut.
    * `answers`: targets and foils may have several words, of which a masked model predicts the first.
    * `words`: which tokens of target and foil are explained (see :mod:`slots`); `all`: a whole answer.
    * `beginning`: how texts without a slot are read; models of labels read them whole.
    * `first_piece`: of an evidence word of several tokens only the first counts, in texts with a slot.
    * `decoder_tokenizer`: of an encoder-decoder, the tokenizer of targets and foils, if it is not `tokenizer`.
    * `units`: of whole answers, the parts of prompts that are removed one by one.

    Raises UserError for a tokenizer that gives no offsets, or has no mask token where the model needs one.
    """
    _check(tokenizer, kind)
    if decoder_tokenizer is not None:
        _check(decoder_tokenizer, kind)
    views: list[Row] = []
    rejects: list[Row] = []
    manner = _Manner(tokenizer, decoder_tokenizer or tokenizer, kind, answers, words, max_length, truncate, first_piece)
    traits = _Traits(tokenizer)
    readings: list[_Reading] = []
    whole: list[Row] = []
    answered: list[Row] = []
    for row in rows:
        with rejecting(rejects, "view", sample_id=row["sample_id"]):
            traits.refuse(row)
            if words == "all":
                answered.append(row)
            elif kind.labels:
                whole.append(row)
            elif row["slot"] is not None:
                readings.append(_read(row, kind, traits))
            elif kind.decoder:
                raise Malformed("no slot", "an encoder-decoder needs a target to predict")
            else:
                views.append(begin(row, tokenizer, kind, max_length, beginning))
    views += read_whole(whole, tokenizer, kind, max_length, truncate, rejects)
    views += read_answers(answered, tokenizer, decoder_tokenizer or tokenizer, kind, max_length, units, rejects)
    encodings = manner.encode(readings)
    predictions = manner.predict(readings, encodings)
    for reading, encoding, prediction in zip(readings, encodings, predictions, strict=True):
        with rejecting(rejects, "view", sample_id=reading.row["sample_id"]):
            views.append(manner.fitted(_TokenisedReading(reading, encoding, prediction)))
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
class _Reading:
    """The part of a sample's text that a model reads, with evidence and scope as spans of this part."""

    row: Row
    text: str
    evidence: tuple[Span, ...]
    scope: tuple[Span, ...] | None
    space: str = ""  # between the text and the target
    is_added: bool = False  # the space is not in the text


@dataclass(frozen=True)
class _TokenisedReading:
    """A reading as tokens with the target and foil to predict, or the reason why there are none."""

    reading: _Reading
    encoding: Encoding
    prediction: Prediction | Malformed

    @property
    def predicted(self) -> Prediction:
        """The target and foil to predict. Raises the Malformed that says why there are none."""
        if isinstance(self.prediction, Malformed):
            raise self.prediction
        return self.prediction

    @property
    def length(self) -> int:
        """The number of tokens to read, those that target and foil share included. Raises as `predicted` does."""
        return len(self.encoding) + len(self.predicted.shared)


@dataclass(frozen=True)
class _Manner:
    """The reading of samples by a kind of model: the settings of `tokenise`, and the steps from a reading to a view."""

    tokenizer: PreTrainedTokenizerBase
    decoder_tokenizer: PreTrainedTokenizerBase
    kind: Kind
    answers: bool
    words: Words
    max_length: int
    truncate: bool
    first_piece: bool

    def encode(self, readings: Sequence[_Reading]) -> list[Encoding]:
        """The tokens of each reading; for a causal model without special tokens at the end, since it continues it."""
        encodings = encode(self.tokenizer, [reading.text for reading in readings])
        whole = self.kind.slot or self.kind.decoder
        return encodings if whole else [encoding.open_ended() for encoding in encodings]

    def predict(self, readings: Sequence[_Reading], encodings: Sequence[Encoding]) -> list[Prediction | Malformed]:
        """The target and foil to predict for each reading, or why there are none; `encodings` are of the readings."""
        rows = [reading.row for reading in readings]
        if self.kind.slot:
            return filling(rows, self.tokenizer, self.answers)
        if self.kind.decoder:
            return answering(rows, self.decoder_tokenizer, self.words)
        prompts = [Prompt(reading.text, reading.space, reading.is_added) for reading in readings]
        return continuing(rows, prompts, encodings, self.tokenizer, self.words)

    def tokenised(self, reading: _Reading) -> _TokenisedReading:
        """One reading as tokens, with the target and foil to predict."""
        [encoding] = self.encode([reading])
        [prediction] = self.predict([reading], [encoding])
        return _TokenisedReading(reading, encoding, prediction)

    def fitted(self, tokenised: _TokenisedReading) -> Row:
        """The view row, with `truncate` cut to `max_length` tokens; `cut` is the number of tokens that were lost.

        Raises Malformed for a text that is too long otherwise, and as `_view` does.
        """
        length = tokenised.length
        if length <= self.max_length:
            return self._view(tokenised)
        if not self.truncate:
            raise Malformed(TOO_LONG, f"{length} tokens, the model takes {self.max_length}")
        cut = self._cut(tokenised)
        return self._view(cut) | {"cut": length - cut.length}

    def _view(self, tokenised: _TokenisedReading) -> Row:
        """The view row. A masked model predicts at the mask, a causal one at the last token that it reads.

        The decoder of an encoder-decoder predicts behind its start token and the tokens that target and foil share.
        Raises Malformed if there is nothing to predict, no text to read, or no token of the evidence.
        """
        reading, encoding, (shared, target, foil) = tokenised.reading, tokenised.encoding, tokenised.predicted
        if encoding.special.all():
            raise Malformed("no text before the slot")
        evidence = encoding.evidence(reading.evidence, first=self.first_piece)
        scope = None if reading.scope is None else encoding.covers(reading.scope)
        behind = [] if self.kind.decoder else shared
        ids = encoding.ids + behind
        position = len(ids) - 1
        more: Row = {}
        if self.kind.slot:
            position = ids.index(self.tokenizer.mask_token_id)
        elif self.kind.decoder:
            position, more = len(shared), {"decoder_input_ids": shared}

        def extended(mask: np.ndarray) -> list[bool]:
            """The mask of the text's tokens, with False for the shared tokens behind them."""
            return [*mask.tolist(), *[False] * len(behind)]

        return view_row(
            reading.row,
            ids,
            extended(encoding.special),
            position,
            target=target,
            foil=foil,
            evidence=None if evidence is None else extended(evidence),
            scope=None if scope is None else extended(scope),
            **more,
        )

    def _cut(self, tokenised: _TokenisedReading) -> _TokenisedReading:
        """`tokenised` with its scope cut to the longest window around the evidence with which the text fits.

        The shorter text is tokenised again, and the window cut by as many tokens as the text still has too many. Raises
        Malformed if there is no evidence or no token of it, if not exactly one scope holds all of it, or if the text
        does not fit even with the evidence alone in its scope.
        """
        reading, encoding, length = tokenised.reading, tokenised.encoding, tokenised.length
        evidence_mask = encoding.evidence(reading.evidence)
        start, end = reading.scope[0] if reading.scope else (0, 0)
        if (
            evidence_mask is None
            or len(reading.scope or ()) != 1
            or any(not start <= s < e <= end for s, e in reading.evidence)
        ):
            raise Malformed(TOO_LONG, "it cannot be cut, which needs a single scope with all evidence inside")
        scope = encoding.covers([(start, end)]).nonzero()[0]  # token indices
        evidence = evidence_mask.nonzero()[0]
        least = evidence[-1] - evidence[0] + 1
        room = len(scope) + self.max_length - length  # tokens that the scope may keep
        while room >= least:
            first = min(max(evidence[0] - (room - least) // 2, scope[0]), scope[-1] + 1 - room)
            low, high = int(encoding.offsets[first][0]), int(encoding.offsets[first + room - 1][1])
            text = reading.text[:start] + reading.text[low:high] + reading.text[end:]
            spans = tuple((s - low + start, e - low + start) for s, e in reading.evidence)
            shorter = self.tokenised(replace(reading, text=text, evidence=spans, scope=((start, start + high - low),)))
            excess = shorter.length - self.max_length
            if excess <= 0:
                return shorter
            room -= excess
        raise Malformed(
            TOO_LONG, f"{length} tokens, and more than {self.max_length} even if its scope is cut to the evidence"
        )


def _read(row: Row, kind: Kind, traits: _Traits) -> _Reading:
    """The text of `row` that a model reads: with the mask token in the slot or, if it needs none, the text before it.

    Without a mask, raises Malformed for evidence after the slot and for a slot at the beginning of the text.
    """
    evidence = tuple((start, end) for start, end in row["evidence"])
    scope = None if row["scope"] is None else tuple((start, end) for start, end in row["scope"])
    if not kind.slot:
        if any(end > row["slot"] for _, end in evidence):
            raise Malformed("evidence after the slot")
        prompt = Prompt.of(row["text"][: row["slot"]], traits.has_spaces)
        if not prompt.text:
            raise Malformed("no text before the slot")
        return _Reading(row, prompt.text, evidence, scope, prompt.space, prompt.is_added)
    filled = Filled.of(row["text"], row["slot"], traits.tokenizer.mask_token)
    spans = None if scope is None else tuple(map(filled.shifted, scope))
    return _Reading(row, filled.text, tuple(map(filled.shifted, evidence)), spans)


@dataclass(frozen=True)
class _Traits:
    """Facts about a tokenizer on which samples depend. Each is found when first needed, most by encoding a text."""

    tokenizer: PreTrainedTokenizerBase

    @cached_property
    def has_spaces(self) -> bool:
        return has_spaces(self.tokenizer)

    @cached_property
    def _opening(self) -> str:
        return opening_of(self.tokenizer)

    @cached_property
    def _specials(self) -> re.Pattern[str]:
        """A pattern for the tokenizer's special tokens; without any, it matches nothing."""
        contents = [re.escape(token.content) for token in self.tokenizer.added_tokens_decoder.values() if token.special]
        return re.compile("|".join(contents) or r"(?!)")

    def refuse(self, row: Row) -> None:
        """Raises Malformed for a special token in a text, target or foil, except for one that opens the text."""
        if self._has_special(row, row["text"]) and self._has_special(row, row["text"].removeprefix(self._opening)):
            raise Malformed("a special token of the tokenizer in the text")

    def _has_special(self, row: Row, text: str) -> bool:
        """True if there is a special token in `text` or in another text of `row`."""
        return any(self._specials.search(part or "") for part in (text, row["second"], row["target"], row["foil"]))
