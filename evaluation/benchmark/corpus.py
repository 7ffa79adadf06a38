"""A corpus: texts without targets, searched for the passages that activate neurons most (AttnLRP 4.3).

Any source whose record has `texts` can be a corpus. Texts are read one after another, so that few are in memory.
Contexts are its passages: texts as tokens, cut to at most so many, each with the special tokens that its tokenizer's
template adds, as models are used to read them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from closelook.evaluation.benchmark.reading import Origin, pinned, records
from closelook.evaluation.benchmark.samples import Malformed
from closelook.evaluation.benchmark.sources.base import AnySource, Generated, Source
from closelook.evaluation.benchmark.sources.files import fetch
from closelook.evaluation.benchmark.sources.remote import scheme_of
from closelook.evaluation.tasks import SOURCES
from closelook.lrp_core.records.types import UserError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

LENGTH = 64  # tokens of a context by default


@dataclass(frozen=True)
class Corpus:
    """The origin of a corpus's texts."""

    source: str  # name of the source
    path: str | None = None
    hub: str | None = None
    subset: str | None = None  # configuration of the data set on the hub; None: that of the source's record
    split: str | None = None  # split of the data set on the hub; None: those of the source's record
    revision: str | None = None
    sha256: str | None = None
    column: str = "text"
    limit: int | None = None  # the number of texts, from the first; None: all
    seed: int = 0  # of generated texts


class Entry(NamedTuple):
    """A text of a corpus."""

    number: int  # from 0
    where: str  # file:line or similar
    text: str


@dataclass(frozen=True)
class CorpusSurvey:
    """The findings of the first pass over a corpus."""

    texts: int
    characters: int
    units: int
    unusable: int  # entries that hold no text: empty, binary, broken
    first_unusable: str | None  # where the first is, and why
    digest: str  # of the texts, in order


def source_for(corpus: Corpus) -> AnySource:
    """The record of the corpus's source, with its subset and split on the hub.

    Raises UserError for a source whose texts cannot be a corpus, and if there is no path where the source needs one.
    """
    source = SOURCES[corpus.source]
    if isinstance(source, Generated):
        if source.corpus is None:
            raise UserError(f"the {source.name} source has no corpus: take one of {_known()}")
        return source
    if source.texts is None:
        raise UserError(f"the {source.name} source holds no texts for a corpus: take one of {_known()}")
    if corpus.path is None and corpus.hub is None and source.hub is None and source.file_url is None:
        raise UserError(f"the {source.name} source is published nowhere: give a `path`, or a data set on the `hub`")
    if corpus.subset is not None:
        source = replace(source, hub_configs=(corpus.subset,))
    return source if corpus.split is None else replace(source, hub_splits=(corpus.split,))


def _known() -> str:
    """The names of the sources that can be a corpus."""
    names = []
    for name, source in SOURCES.items():
        texts = source.corpus if isinstance(source, Generated) else source.texts
        if texts is not None:
            names.append(name)
    return ", ".join(sorted(names))


def stamps(corpus: Corpus) -> list[list[str | int]]:
    """[path, size in bytes, time of change in ns] of each file of the corpus; empty unless they are local files.

    Raises UserError if there is no such file.
    """
    source = source_for(corpus)
    if isinstance(source, Generated) or corpus.path is None or scheme_of(corpus.path):
        return []
    files = fetch(corpus.path, source.suffixes, source.nested)
    return [[str(file), file.stat().st_size, file.stat().st_mtime_ns] for file in files]


def entries(corpus: Corpus) -> Iterator[Entry | Malformed]:
    """The texts of the corpus in order; in place of an entry without a usable text, the Malformed that says why.

    Raises UserError if the corpus cannot be read.
    """
    number = 0
    for where, text in _texts(corpus):
        if corpus.limit is not None and number == corpus.limit:
            return
        try:
            yield Entry(number, where, _checked(text))
            number += 1
        except Malformed as error:
            yield Malformed(where, error.reason)


def _texts(corpus: Corpus) -> Iterator[tuple[str, str | Malformed]]:
    """(place, text or Malformed) of every text of the corpus's records, before any check."""
    source = source_for(corpus)
    if isinstance(source, Generated):
        assert source.corpus is not None
        if corpus.limit is None:
            raise UserError(f"the {source.name} source generates texts without end: set `limit` to the number of texts")
        for number, row in enumerate(source.generate(source.corpus, corpus.limit, corpus.seed)):
            yield f"{source.name}:{number + 1}", row["text"]
        return
    origin = Origin("corpus", corpus.source, corpus.path, corpus.hub, corpus.revision, corpus.sha256)
    for where, record in records(source, pinned(origin, source)):
        for text in _texts_of(source, record, corpus.column):
            yield where, text


def _texts_of(source: Source, record: object, column: str) -> Iterator[str | Malformed]:
    """The texts of a record, or Malformed where it has none; errors are yielded, not raised."""
    assert source.texts is not None
    if isinstance(record, Malformed):
        yield record
        return
    try:
        yield from source.texts(record, column)
    except Malformed as error:
        yield error


def _checked(text: str | Malformed) -> str:
    """The text without white space around it. Raises Malformed for an error in its place, binary or blank text."""
    if isinstance(text, Malformed):
        raise text
    if "\0" in text:
        raise Malformed("binary")
    try:
        text.encode()  # no halves of characters, which JSON may hold
    except UnicodeEncodeError:
        raise Malformed("not UTF-8") from None
    if not text.strip():
        raise Malformed("empty")
    return text.strip()


def units(corpus: Corpus, characters: int) -> Iterator[list[Entry]]:
    """The texts of the corpus in units of work: lists of at most so many `characters`, but at least one text."""
    return _packed((entry for entry in entries(corpus) if isinstance(entry, Entry)), characters)


def _packed(texts: Iterable[Entry], characters: int) -> Iterator[list[Entry]]:
    """Consecutive texts in lists of at most so many `characters`; a longer text is alone in its list."""
    pending: list[Entry] = []
    size = 0
    for entry in texts:
        if pending and size + len(entry.text) > characters:
            yield pending
            pending, size = [], 0
        pending.append(entry)
        size += len(entry.text)
    if pending:
        yield pending


def survey(corpus: Corpus, characters: int) -> CorpusSurvey:
    """Reads the corpus once, and keeps nothing but counts and a hash; units have at most so many `characters`.

    Raises UserError if the corpus cannot be read or holds no text.
    """
    unusable, first = 0, None

    def usable() -> Iterator[Entry]:
        """The texts; counts the other entries, and keeps the reason of the first."""
        nonlocal unusable, first
        for entry in entries(corpus):
            if isinstance(entry, Entry):
                yield entry
                continue
            unusable += 1
            first = first or str(entry)

    digest, texts, length, count = hashlib.sha256(), 0, 0, 0
    for unit in _packed(usable(), characters):
        count += 1
        texts += len(unit)
        for entry in unit:
            length += len(entry.text)
            data = entry.text.encode()
            digest.update(len(data).to_bytes(8, "big") + data)
    if not texts:
        none = f": {unusable} entries are unusable, the first at {first}" if unusable else ""
        raise UserError(f"the corpus {corpus.path or corpus.hub or corpus.source} holds no text{none}")
    return CorpusSurvey(texts, length, count, unusable, first, digest.hexdigest())


@dataclass(frozen=True)
class Piece:
    """A context: a passage of a text of the corpus."""

    ids: list[int]
    text: str
    entry: Entry
    start: int  # where the passage begins in the entry's text, in characters

    def row(self, number: int) -> dict[str, Any]:
        """The row of the schema of contexts; `number` is the number of the context."""
        columns = {"context": number, "input_ids": self.ids, "text": self.text, "start": self.start}
        return {**columns, "number": self.entry.number, "place": self.entry.where}


def pieces_of(tokenizer: PreTrainedTokenizerBase, entries: Sequence[Entry], length: int) -> Iterator[Piece]:
    """The contexts of `entries` in order, of at most `length` tokens each, special tokens included.

    A text without ordinary tokens has no context.
    """
    encoded = tokenizer(
        [entry.text for entry in entries],
        truncation=True,
        max_length=length,
        return_overflowing_tokens=True,
        return_offsets_mapping=True,
        return_special_tokens_mask=True,
    )
    names = ("overflow_to_sample_mapping", "input_ids", "offset_mapping", "special_tokens_mask")
    for of, ids, offsets, special in zip(*(encoded[name] for name in names), strict=True):
        covered = [span for span, is_special in zip(offsets, special, strict=True) if not is_special]
        if covered:
            start, end = covered[0][0], covered[-1][1]
            yield Piece(ids, entries[of].text[start:end], entries[of], start)


def batches(lengths: Sequence[int], token_budget: int) -> Iterator[list[int]]:
    """Batches of contexts, as their indices in `lengths`, the longest first.

    A batch has at most `token_budget` tokens, padding included, but at least one context.
    """
    order = sorted(range(len(lengths)), key=lambda at: -lengths[at])
    start = 0
    while start < len(order):
        end = start + max(1, token_budget // lengths[order[start]])
        yield order[start:end]
        start = end


def template_of(tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """The ids that the tokenizer's template adds to every text."""
    return frozenset(tokenizer("")["input_ids"])
