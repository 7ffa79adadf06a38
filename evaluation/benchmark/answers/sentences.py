"""Sentences of a text, by spaCy's rules of punctuation, which need no model."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from evaluation.benchmark.samples import Span
from lrp_core.records.types import UserError

if TYPE_CHECKING:
    from spacy.language import Language


def sentences_in(text: str) -> list[Span]:
    """The sentences [start, end) of a text, without the white space around them. Raises UserError without spaCy."""
    spans = []
    for sentence in _sentencizer()(text).sents:
        bare = sentence.text.strip()
        if bare:
            start = sentence.start_char + sentence.text.index(bare)
            spans.append((start, start + len(bare)))
    return spans


@cache
def _sentencizer() -> Language:
    """spaCy's sentencizer for any language. Raises UserError if spaCy is not installed."""
    try:
        import spacy
    except ImportError:
        raise UserError(
            "sentences are found by spaCy, which is not installed: pip install 'closelook[sentences]', or give units"
        ) from None
    language = spacy.blank("xx")
    language.add_pipe("sentencizer")
    language.max_length = 10_000_000  # characters; spaCy's default limit protects parsers, and there is none here
    return language
