"""Reads a file of texts, each distinct one once, and explains them by a model as tidy tables by word and by token."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, NamedTuple

import numpy as np

from closelook.evaluation.benchmark.samples import Filled, Malformed
from closelook.evaluation.benchmark.sources.base import field as field_of
from closelook.evaluation.benchmark.sources.files import IN_FOLDERS, UTF_8, fetch, records
from closelook.evaluation.benchmark.sources.own import ID, renamed
from closelook.evaluation.explained.rows import (
    DECODER,
    SECOND,
    TEXT,
    ExplainedText,
    MethodRelevance,
    Name,
    ReadText,
    Tables,
    TokenLocation,
    locate,
    tables,
)
from closelook.explaining.explained import Asked, Explained, explain_each
from closelook.explaining.front import ask
from closelook.explaining.opening import Opened
from closelook.explaining.question import MARKER
from closelook.jobs.commands.options import as_options
from closelook.lrp_core.methods.record import Method
from closelook.lrp_core.readers.predictions import decisions
from closelook.lrp_core.records.types import UserError

COLUMNS = ("text", "second", "target", "foil", ID)


class Text(NamedTuple):
    """A text to explain, with the arguments of `closelook.explain`."""

    text: str
    second: str | None = None
    target: str | None = None
    foil: str | None = None


@dataclass(frozen=True)
class Unexplained:
    """A row of the file that has no explanation."""

    name: Name
    where: str  # file:line
    reason: str


@dataclass
class Content:
    """The content of a file."""

    names: dict[Text, list[Name]] = field(default_factory=dict)  # the rows with each text, in the file's order
    places: dict[Text, str] = field(default_factory=dict)  # file:line of the first row with each text
    bad: list[Unexplained] = field(default_factory=list)  # rows without a text

    @property
    def rows(self) -> int:
        """The number of rows of the file."""
        return sum(map(len, self.names.values())) + len(self.bad)


def content_of(path: str, columns: Mapping[str, str], encoding: str = UTF_8) -> Content:
    """The texts of the file, folder or pattern `path`; `columns` gives the file's name for columns of COLUMNS.

    Raises UserError for an unknown key in `columns`, and for a file that cannot be read or has no text.
    """
    for column in columns:
        if column not in COLUMNS:
            raise UserError(f"--column {column}=...: it must name one of {', '.join(COLUMNS)} before the =")
    content, numbers = Content(), count(1)
    for file in fetch(path, IN_FOLDERS):
        for where, record in records(file, encoding):
            row, number = renamed(record, columns), next(numbers)
            name = Name(_id_of(row, number), number)
            try:
                text = _text_of(row)
            except Malformed as error:
                content.bad.append(Unexplained(name, where, str(error)))
                continue
            content.names.setdefault(text, []).append(name)
            content.places.setdefault(text, where)
    if not content.rows:
        raise UserError(f"{path} is empty: it needs at least one row with a text")
    if not content.names:
        first = content.bad[0]
        raise UserError(f"no row of {path} holds a text; the first at {first.where}: {first.reason}")
    return content


def _id_of(record: Any, number: int) -> str:
    """The `id` of a row, else its number in the file."""
    name = record.get(ID) if isinstance(record, dict) else None
    return str(number) if name in (None, "") else str(name)


def _text_of(record: Any) -> Text:
    """The text of a row. Raises Malformed if it has none."""
    if isinstance(record, Malformed):
        raise record
    if isinstance(record, dict) and "text" not in record:
        known = list(map(str, record))
        advice = "name it with --column text=NAME, or add a first line with the names of columns"
        raise Malformed("no column 'text'", f"there are {', '.join(known)}: {advice}")
    text = field_of(record, "text")
    if not text.strip():
        raise Malformed("empty text")
    return Text(text, *(_optional(record, name) for name in COLUMNS[1:4]))


def _optional(record: dict[str, Any], name: str) -> str | None:
    """The value of a column, None if it is missing or empty. Raises Malformed if it is no text."""
    return None if record.get(name) in (None, "") else field_of(record, name)


@dataclass(frozen=True)
class Asking:
    """The settings of the question that is asked about every text."""

    explanation: str | None = None  # contrastive | target | log_prob; None: the method's usual one
    truncate: bool = False  # shorten a text that is too long

    def of(self, text: Text, opened: Opened) -> Asked:
        """The question about a text. Raises UserError if its columns do not go together."""
        columns = {"target": text.target, "foil": text.foil, "second": text.second}
        return ask(text.text, opened, truncate=self.truncate, explanation=self.explanation, **columns)


class Computed(NamedTuple):
    """The rows of explained texts, in which `row` is the index of the text, and by index the errors of the others."""

    tables: Tables
    errors: dict[int, str]


def compute(
    opened: Opened, methods: Sequence[Method], texts: Sequence[Text], asking: Asking, tell: Callable[[int], None]
) -> Computed:
    """Explain texts by methods; `tell` is called with 1 for each text that is done.

    Raises UnsupportedMethod for a method that does not apply to the model.
    """
    errors: dict[int, str] = {}
    questions: dict[int, Asked] = {}
    for at, text in enumerate(texts):
        try:
            questions[at] = asking.of(text, opened)
        except UserError as error:
            errors[at] = as_options(str(error))
            tell(1)
    answered: dict[int, Explained] = {}
    for at, outcome in explain_each(questions, opened, methods):
        if isinstance(outcome, UserError):
            errors[at] = as_options(str(outcome))
        else:
            [answered[at]] = outcome
        tell(1)
    order = sorted(answered)
    explained = explained_texts(opened, [answered[at] for at in order])
    named = [(Name("", at), text) for at, text in zip(order, explained, strict=True)]
    return Computed(tables(named, opened.id), errors)


def explained_texts(opened: Opened, explained: Sequence[Explained]) -> list[ExplainedText]:
    """Explained predictions as explained texts: with the characters of every token and the probability."""
    rows = [each.view.row for each in explained]
    locations = locate(
        opened.tokenizer, [_read(each, opened) for each in explained], [row["input_ids"] for row in rows]
    )
    undecided = [at for at, each in enumerate(explained) if each.view.decision is None]
    probable = dict(zip(undecided, decisions(opened.view, [rows[at] for at in undecided], tokens=1), strict=False))
    texts = []
    for at, each in enumerate(explained):
        decision = each.view.decision or probable.get(at)
        sides = [each.text] if each.decoder is None else [each.text, each.decoder]
        of_decoder = [TokenLocation(DECODER)] * (0 if each.decoder is None else len(each.decoder.tokens))
        text = ExplainedText(
            sides={TEXT: each.given.text, SECOND: each.given.second or ""},
            tokens=[token for side in sides for token in side.tokens],
            special=[special for side in sides for special in side.special],
            locations=[*locations[at], *of_decoder],
            decision=None if each.output == "score" else each.target,
            against=each.foil,
            probability=None if decision is None else math.exp(decision.log_prob),
            by_method=[_relevance_of(method, each, opened) for method in each.methods],
        )
        texts.append(text)
    return texts


def _read(explained: Explained, opened: Opened) -> ReadText:
    """The text that the tokenizer got, by which tokens are located in the user's text."""
    given, kind = explained.given, opened.kind
    if kind.labels:
        return ReadText(given.text, given.second)
    if not kind.slot:
        return ReadText(given.text_read(opened), from_start=kind.causal)
    mark = len(MARKER) if MARKER in given.text else 0
    filled = Filled.of(given.before + given.after, len(given.before), opened.tokenizer.mask_token)
    return ReadText(filled.text, filled=filled, mark=mark)


def _relevance_of(method: Method, explained: Explained, opened: Opened) -> MethodRelevance:
    """The relevance of all tokens by one method, those of the decoder appended."""
    relevance = explained.relevance[method.name]
    parts = [part[0].double().numpy() for part in (relevance.tokens, relevance.decoder_tokens) if part is not None]
    explanation = explained.explanation or method.usual_explanation(explained.view.foil_id is not None)
    embedding = method.embeddings_of(opened.view.family.capabilities)[0]
    conserves = relevance.residual is not None
    return MethodRelevance(
        method.name, explanation, embedding, float(relevance.explained[0]), np.concatenate(parts), conserves
    )
