"""Reads a file of texts, each distinct one once, and explains them by a model as tidy tables by word and by token."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, NamedTuple

import numpy as np

from closelook.evaluation.benchmark.encoding import START
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
from closelook.jobs.commands.options import as_options
from closelook.jobs.commands.questions.answers import Answer
from closelook.jobs.commands.questions.many import each_answered
from closelook.jobs.commands.questions.opened import Opened
from closelook.jobs.commands.questions.question import MARKER, Question, text_read
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

    def of(self, text: Text) -> Question:
        """The question about a text. Raises UserError if its columns do not go together."""
        return Question(
            text.text,
            text.target,
            text.foil,
            second=text.second,
            explanation=self.explanation,
            truncate=self.truncate,
        )


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
    questions: dict[int, Question] = {}
    for at, text in enumerate(texts):
        try:
            questions[at] = asking.of(text)
        except UserError as error:
            errors[at] = as_options(str(error))
            tell(1)
    answered: dict[int, Answer] = {}
    for at, outcome in each_answered(questions, opened, methods):
        if isinstance(outcome, UserError):
            errors[at] = as_options(str(outcome))
        else:
            [answered[at]] = outcome
        tell(1)
    order = sorted(answered)
    explained = explained_texts(opened, [answered[at] for at in order])
    named = [(Name("", at), text) for at, text in zip(order, explained, strict=True)]
    return Computed(tables(named, opened.id), errors)


def explained_texts(opened: Opened, answers: Sequence[Answer]) -> list[ExplainedText]:
    """Answers about one prediction each as explained texts: with the characters of every token and the probability."""
    rows = [answer.row for answer in answers]
    locations = locate(opened.tokenizer, [_read(answer) for answer in answers], [row["input_ids"] for row in rows])
    undecided = [at for at, answer in enumerate(answers) if answer.decision is None]
    probable = dict(zip(undecided, decisions(opened.view, [rows[at] for at in undecided], tokens=1), strict=False))
    explained = []
    is_score = opened.resolved.output == "score"
    for at, answer in enumerate(answers):
        decision = answer.decision or probable.get(at)
        decoder = answer.decoder or ()
        starts = [piece == START for piece in decoder]  # the tokens that a decoder begins with are special
        by_method = [_relevance_of(method, answer) for method in answer.methods]
        of_decoder = [TokenLocation(DECODER)] * len(decoder)
        text = ExplainedText(
            sides={TEXT: answer.question.sentence, SECOND: answer.question.second or ""},
            tokens=[*answer.tokens, *decoder],
            special=[*rows[at]["special_mask"], *starts],
            locations=[*locations[at], *of_decoder],
            decision=None if is_score else answer.target,
            against=answer.foil,
            probability=None if decision is None else math.exp(decision.log_prob),
            by_method=by_method,
        )
        explained.append(text)
    return explained


def _read(answer: Answer) -> ReadText:
    """The text that the tokenizer got, by which tokens are located in the user's text."""
    question, kind = answer.question, answer.opened.resolved.kind
    if kind.labels:
        return ReadText(question.sentence, question.second)
    if not kind.slot:
        return ReadText(text_read(question, answer.opened), from_start=kind.causal)
    mark = len(MARKER) if MARKER in question.sentence else 0
    filled = Filled.of(question.text, len(question.before), answer.opened.tokenizer.mask_token)
    return ReadText(filled.text, filled=filled, mark=mark)


def _relevance_of(method: Method, answer: Answer) -> MethodRelevance:
    """The relevance of all tokens of an answer by one method, those of the decoder appended."""
    relevance = answer.relevance[method.name]
    parts = [part[0].double().numpy() for part in (relevance.tokens, relevance.decoder_tokens) if part is not None]
    explanation = answer.question.explanation or method.usual_explanation(answer.row["foil_id"] is not None)
    embedding = method.embeddings_of(answer.opened.view.family.capabilities)[0]
    conserves = relevance.residual is not None
    return MethodRelevance(
        method.name, explanation, embedding, float(relevance.explained[0]), np.concatenate(parts), conserves
    )
