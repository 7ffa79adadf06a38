"""Tokenised views: a generic sample for a tokenizer and a kind of model.

Masked models read the text with the mask token in the slot, causal ones the text up to the slot and what target and
foil begin with alike, encoder-decoders the whole text up to the slot: their decoder reads what both begin with, each
tokenised by itself. Spans become tokens through offsets. *Special* is what the tokenizer's template adds; the mask
token is ordinary.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from transformers import PreTrainedTokenizerBase

from evaluation.benchmark.answers.reading import read_answers
from evaluation.benchmark.beginnings import begin
from evaluation.benchmark.encoding import Encoding, encode, has_spaces, opening_of
from evaluation.benchmark.labelled import read_whole
from evaluation.benchmark.samples import (
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
from evaluation.benchmark.slots import Prediction, answering, continuing, filling
from lrp_core.records.kinds import Kind
from lrp_core.records.types import UserError

VERSION = 4  # raised when other tokens come out of the same samples: views of older versions are made again


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
    """(view rows, reject rows) of generic rows: together as many as came in.

    Targets and foils, whole `answers` or words, become tokens as :mod:`slots` says. A text longer than `max_length`
    tokens is rejected, or, with `truncate`, its scope is cut around the evidence. Texts without a slot are read as
    `beginning` says, those that a model of labels reads whole as :mod:`labelled` says. Of an evidence word that is
    several tokens all count, or with `first_piece` the first. Of an encoder-decoder, `decoder_tokenizer` writes targets
    and foils where it is not `tokenizer`. Where `words` is `all`, targets are answers, and `units` the parts of prompts
    that may go (see `evaluation.benchmark.answers`). Raises UserError for a tokenizer that cannot do this.
    """
    _check(tokenizer, kind)
    if decoder_tokenizer is not None:
        _check(decoder_tokenizer, kind)
    views: list[Row] = []
    rejects: list[Row] = []
    manner = _Manner(tokenizer, decoder_tokenizer or tokenizer, kind, answers, words, max_length, truncate, first_piece)
    spaced, specials = has_spaces(tokenizer), _Specials.of(tokenizer)
    readings: list[_Reading] = []
    whole: list[Row] = []
    answered: list[Row] = []
    for row in rows:
        with rejecting(rejects, "view", sample_id=row["sample_id"]):
            specials.refuse(row)
            if words == "all":
                answered.append(row)
            elif kind.labels:
                whole.append(row)
            elif row["slot"] is not None:
                readings.append(_read(row, tokenizer.mask_token if kind.slot else None, spaced))
            elif kind.decoder:
                raise Malformed("no question that an encoder-decoder could answer")
            else:
                views.append(begin(row, tokenizer, kind, max_length, beginning))
    views += read_whole(whole, tokenizer, kind, max_length, truncate, rejects)
    views += read_answers(answered, tokenizer, decoder_tokenizer or tokenizer, kind, max_length, units, rejects)
    encodings = manner.encode(readings)
    predictions = manner.predict(readings, encodings)
    for reading, encoding, prediction in zip(readings, encodings, predictions, strict=True):
        with rejecting(rejects, "view", sample_id=reading.row["sample_id"]):
            views.append(manner.fitted(_Asked(reading, encoding, prediction)))
    return views, rejects


def _check(tokenizer: PreTrainedTokenizerBase, kind: Kind) -> None:
    """Raises UserError for a tokenizer of which no views of this kind can be made."""
    if not tokenizer.is_fast:
        raise UserError(
            f"{tokenizer.name_or_path} is no fast tokenizer; only those tell which characters a token covers"
        )
    if kind.slot and tokenizer.mask_token is None:
        raise UserError(f"{tokenizer.name_or_path} has no mask token, so it does not fit a masked model")


@dataclass(frozen=True)
class _Reading:
    """The part of a sample's text that a model reads, with the sample's spans where they lie in it."""

    row: Row
    text: str
    evidence: tuple[Span, ...]
    scope: tuple[Span, ...] | None
    space: str = ""  # of the target that follows


@dataclass(frozen=True)
class _Asked:
    """A reading as tokens with the target and foil to predict, or the reason why there are none."""

    reading: _Reading
    encoding: Encoding
    prediction: Prediction | Malformed

    @property
    def predicted(self) -> Prediction:
        """Raises Malformed where there is no prediction."""
        if isinstance(self.prediction, Malformed):
            raise self.prediction
        return self.prediction

    @property
    def length(self) -> int:
        """Tokens, with those that target and foil share. Raises Malformed."""
        return len(self.encoding) + len(self.predicted.shared)


@dataclass(frozen=True)
class _Manner:
    """The readings of a sample by a kind of model, and the readout position."""

    tokenizer: PreTrainedTokenizerBase
    decoder_tokenizer: PreTrainedTokenizerBase
    kind: Kind
    answers: bool
    words: Words
    max_length: int
    truncate: bool
    first_piece: bool

    def encode(self, readings: Sequence[_Reading]) -> list[Encoding]:
        encodings = encode(self.tokenizer, [reading.text for reading in readings])
        whole = self.kind.slot or self.kind.decoder
        return encodings if whole else [encoding.open_ended() for encoding in encodings]

    def predict(self, readings: Sequence[_Reading], encodings: Sequence[Encoding]) -> list[Prediction | Malformed]:
        rows = [reading.row for reading in readings]
        if self.kind.slot:
            return filling(rows, self.tokenizer, self.answers)
        if self.kind.decoder:
            return answering(rows, self.decoder_tokenizer, self.words)
        prompts = [Prompt(reading.text, reading.space) for reading in readings]
        return continuing(rows, prompts, encodings, self.tokenizer, self.words)

    def ask(self, reading: _Reading) -> _Asked:
        """The view of one reading, see `tokenise`. Raises Malformed."""
        [encoding] = self.encode([reading])
        [prediction] = self.predict([reading], [encoding])
        return _Asked(reading, encoding, prediction)

    def fitted(self, asked: _Asked) -> Row:
        """The view row, cut to `max_length` tokens where it is longer and `truncate`. Raises Malformed."""
        length = asked.length
        if length <= self.max_length:
            return self._view(asked)
        if not self.truncate:
            raise Malformed("too long", f"{length} tokens, the model takes {self.max_length}")
        cut = self._cut(asked)
        return self._view(cut) | {"cut": length - cut.length}

    def _view(self, asked: _Asked) -> Row:
        """The view row. Masked models predict at the mask, causal ones at the last token that they read.

        The encoder of an encoder-decoder reads the text, its decoder the tokens that target and foil begin with. Raises
        Malformed.
        """
        reading, encoding, (shared, target, foil) = asked.reading, asked.encoding, asked.predicted
        if encoding.special.all():
            raise Malformed("no text before the slot")
        evidence = encoding.covers(reading.evidence, first=self.first_piece) if reading.evidence else None
        if evidence is not None and not evidence.any():
            raise Malformed("the evidence has no token")
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
            return [*mask.tolist(), *(False for _ in behind)]

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

    def _cut(self, asked: _Asked) -> _Asked:
        """`asked` with its scope shortened to a window around the evidence, so that it fits.

        Raises Malformed when there is no evidence, or not exactly one scope with it inside, or it is too long.
        """
        reading, encoding, length = asked.reading, asked.encoding, asked.length
        start, end = reading.scope[0] if reading.scope else (0, 0)
        if (
            not reading.evidence
            or len(reading.scope or ()) != 1
            or any(not start <= s < e <= end for s, e in reading.evidence)
        ):
            raise Malformed("too long", "no single scope around the evidence that could be cut")
        scope = encoding.covers([(start, end)]).nonzero()[0]  # token indices
        evidence = encoding.covers(reading.evidence).nonzero()[0]
        least = evidence[-1] - evidence[0] + 1
        room = len(scope) + self.max_length - length
        while room >= least:
            first = min(max(evidence[0] - (room - least) // 2, scope[0]), scope[-1] + 1 - room)
            low, high = int(encoding.offsets[first][0]), int(encoding.offsets[first + room - 1][1])
            text = reading.text[:start] + reading.text[low:high] + reading.text[end:]
            spans = tuple((s - low + start, e - low + start) for s, e in reading.evidence)
            shorter = self.ask(replace(reading, text=text, evidence=spans, scope=((start, start + high - low),)))
            excess = shorter.length - self.max_length
            if excess <= 0:
                return shorter
            room -= excess
        raise Malformed("too long", f"{length} tokens, and the evidence leaves nothing to cut to {self.max_length}")


def _read(row: Row, mask: str | None, spaced: bool) -> _Reading:
    """`row` as a masked model with this mask token reads it, or a causal one (None); `spaced` as for `Prompt.of`.

    Raises Malformed.
    """
    evidence = tuple((start, end) for start, end in row["evidence"])
    scope = None if row["scope"] is None else tuple((start, end) for start, end in row["scope"])
    if mask is None:
        if any(end > row["slot"] for _, end in evidence):
            raise Malformed("evidence after the slot")
        prompt = Prompt.of(row["text"][: row["slot"]], spaced)
        if not prompt.text:
            raise Malformed("no text before the slot")
        return _Reading(row, prompt.text, evidence, scope, prompt.space)
    filled = Filled.of(row["text"], row["slot"], mask)
    spans = None if scope is None else tuple(map(filled.shifted, scope))
    return _Reading(row, filled.text, tuple(map(filled.shifted, evidence)), spans)


@dataclass(frozen=True)
class _Specials:
    """The special tokens of a tokenizer, and the one among them that a text may begin with."""

    pattern: re.Pattern[str]
    opening: str

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerBase) -> _Specials:
        contents = [re.escape(token.content) for token in tokenizer.added_tokens_decoder.values() if token.special]
        return cls(re.compile("|".join(contents) or r"(?!)"), opening_of(tokenizer))

    def refuse(self, row: Row) -> None:
        """Raises Malformed for a row with a special token anywhere else."""
        parts = (row["text"].removeprefix(self.opening), row["second"], row["target"], row["foil"])
        if any(self.pattern.search(part or "") for part in parts):
            raise Malformed("a special token of the tokenizer in the text")
