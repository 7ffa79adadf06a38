"""A corpus: texts without targets, in which it is looked for what neurons answer to (AttnLRP 4.3).

Any source whose record says which texts it holds is one. Memory stays flat: texts are read one after the other.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from evaluation.benchmark.reading import Origin, pinned, records
from evaluation.benchmark.samples import Malformed
from evaluation.benchmark.sources.base import AnySource, Generated, Source
from evaluation.benchmark.sources.files import fetch
from evaluation.benchmark.sources.remote import scheme_of
from evaluation.tasks import SOURCES
from lrp_core.records.types import UserError


@dataclass(frozen=True)
class Corpus:
    """The origin of a corpus's texts."""

    source: str  # its name
    path: str | None = None
    hub: str | None = None
    subset: str | None = None  # of the data set on the hub; None: the source's own
    split: str | None = None  # likewise
    revision: str | None = None
    sha256: str | None = None
    column: str = "text"
    limit: int | None = None  # of texts, the first
    seed: int = 0  # of what is generated


class Entry(NamedTuple):
    """A text of a corpus."""

    number: int  # from 0
    where: str  # file:line or similar
    text: str


@dataclass(frozen=True)
class CorpusSurvey:
    """A first pass over a corpus."""

    texts: int
    characters: int
    units: int
    unusable: int  # entries that hold no text: empty, binary, broken
    first_unusable: str | None  # where the first is, and why
    digest: str  # of the texts, in order


def source_for(corpus: Corpus) -> AnySource:
    """The record of its source, on the hub the part that the corpus names.

    Raises UserError for a source that is none of texts, and for one that says no path.
    """
    source = SOURCES[corpus.source]
    if isinstance(source, Generated):
        if source.corpus is None:
            raise UserError(f"the {source.name} source has no corpus")
        return source
    if source.texts is None:
        raise UserError(f"the {source.name} source holds no texts of which a corpus could be made")
    if corpus.path is None and corpus.hub is None and source.hub is None and source.file_url is None:
        raise UserError(f"the {source.name} source has no place of its own: give a path, or a data set on the hub")
    if corpus.subset is not None:
        source = replace(source, hub_config=corpus.subset)
    return source if corpus.split is None else replace(source, hub_splits=(corpus.split,))


def stamps(corpus: Corpus) -> list[list[str | int]]:
    """[path, bytes, time of change in ns] of each of its files; empty where they are not files of this machine.

    Raises UserError where there is none.
    """
    source = source_for(corpus)
    if isinstance(source, Generated) or corpus.path is None or scheme_of(corpus.path):
        return []
    files = fetch(corpus.path, source.suffixes, source.nested)
    return [[str(file), file.stat().st_size, file.stat().st_mtime_ns] for file in files]


def entries(corpus: Corpus) -> Iterator[Entry | Malformed]:
    """The texts of the corpus, and in between why an entry holds none. Raises UserError where it cannot be had."""
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
    source = source_for(corpus)
    if isinstance(source, Generated):
        assert source.corpus is not None
        if corpus.limit is None:
            raise UserError(f"the {source.name} source makes as many texts as are asked for: give a limit")
        for number, row in enumerate(source.generate(source.corpus, corpus.limit, corpus.seed)):
            yield f"{source.name}:{number + 1}", row["text"]
        return
    origin = Origin("corpus", corpus.source, corpus.path, corpus.hub, corpus.revision, corpus.sha256)
    for where, record in records(source, pinned(origin, source)):
        for text in _texts_of(source, record, corpus.column):
            yield where, text


def _texts_of(source: Source, record: object, column: str) -> Iterator[str | Malformed]:
    assert source.texts is not None
    if isinstance(record, Malformed):
        yield record
        return
    try:
        yield from source.texts(record, column)
    except Malformed as error:
        yield error


def _checked(text: str | Malformed) -> str:
    """The text without white space around it. Raises Malformed where it is none."""
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
    """The texts of the corpus in order, as many together as make so many `characters`, at least one."""
    return _packed((entry for entry in entries(corpus) if isinstance(entry, Entry)), characters)


def _packed(texts: Iterable[Entry], characters: int) -> Iterator[list[Entry]]:
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
    """Reads it once, keeping nothing but counts. Raises UserError where it cannot be had or holds no text."""
    unusable, first = 0, None

    def usable() -> Iterator[Entry]:
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
        none = f": {unusable} places hold none, the first is {first}" if unusable else ""
        raise UserError(f"the corpus {corpus.path or corpus.hub or corpus.source} holds no text{none}")
    return CorpusSurvey(texts, length, count, unusable, first, digest.hexdigest())
