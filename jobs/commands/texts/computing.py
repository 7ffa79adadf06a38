"""Texts and answers of a model to tidy tables."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from evaluation.benchmark.samples import Filled
from evaluation.explained.rows import ExplainedText, MethodRelevance, Name, Tables, tables
from evaluation.explained.spans import DECODER, SECOND, TEXT, ReadText, TokenLocation, locate
from jobs.commands.options import as_options
from jobs.commands.questions.answers import Answer
from jobs.commands.questions.many import each_answered
from jobs.commands.questions.opened import Opened
from jobs.commands.questions.question import MARKER, Question, text_read
from jobs.commands.texts.content import Text
from lrp_core.methods.record import Method
from lrp_core.readers.predictions import decisions
from lrp_core.records.types import UserError


@dataclass(frozen=True)
class Asking:
    """The question about every text."""

    explanation: str | None = None  # contrastive | target | log_prob; None: the first with a foil
    truncate: bool = False  # read what fits of a text that is too long

    def of(self, text: Text) -> Question:
        """Raises UserError for a text that cannot be asked about."""
        return Question(
            text.text,
            text.target,
            text.foil,
            second=text.second,
            explanation=self.explanation,
            truncate=self.truncate,
        )


class Computed(NamedTuple):
    """The rows of explained texts, named by their number, and by number why others have none."""

    tables: Tables
    errors: dict[int, str]


def compute(
    opened: Opened, methods: Sequence[Method], texts: Sequence[Text], asking: Asking, tell: Callable[[int], None]
) -> Computed:
    """Explain texts by methods; `tell` hears how many more are done.

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
    numbers, answered = list(questions), dict[int, Answer]()
    for number, outcome in each_answered(list(questions.values()), opened, methods):
        if isinstance(outcome, UserError):
            errors[numbers[number]] = as_options(str(outcome))
        else:
            answered[numbers[number]] = outcome[0]
        tell(1)
    order = sorted(answered)
    explained = explained_texts(opened, [answered[at] for at in order])
    named = [(Name("", at), text) for at, text in zip(order, explained, strict=True)]
    return Computed(tables(named, opened.id), errors)


def explained_texts(opened: Opened, answers: Sequence[Answer]) -> list[ExplainedText]:
    """Answers of one prediction each, with the characters of their tokens and the probability of what is explained."""
    rows = [answer.row for answer in answers]
    locations = locate(opened.tokenizer, [_read(answer) for answer in answers], [row["input_ids"] for row in rows])
    given = [at for at, answer in enumerate(answers) if answer.decision is None]
    probable = dict(zip(given, decisions(opened.view, [rows[at] for at in given], tokens=1), strict=False))
    explained = []
    for at, answer in enumerate(answers):
        decision = answer.decision or probable.get(at)
        is_score = opened.resolved.output == "score"
        explained.append(
            ExplainedText(
                {TEXT: answer.question.sentence, SECOND: answer.question.second or ""},
                [*answer.tokens, *(answer.decoder or ())],
                [*rows[at]["special_mask"], *_specials(answer)],
                [*locations[at], *(TokenLocation(DECODER) for _ in answer.decoder or ())],
                None if is_score else answer.target,
                answer.foil,
                None if decision is None else math.exp(decision.log_prob),
                [_relevance_of(method, answer) for method in answer.methods],
            )
        )
    return explained


def _specials(answer: Answer) -> list[bool]:
    """Of what a decoder has seen, its start token is special."""
    return [not at for at, _ in enumerate(answer.decoder or ())]


def _read(answer: Answer) -> ReadText:
    question, kind = answer.question, answer.opened.resolved.kind
    if kind.labels:
        return ReadText(question.sentence, question.second)
    if not kind.slot:
        return ReadText(text_read(question, answer.opened), from_start=kind.causal)
    mark = len(MARKER) if MARKER in question.sentence else 0
    filled = Filled.of(question.text, len(question.before), answer.opened.tokenizer.mask_token)
    return ReadText(filled.text, filled=filled, mark=mark)


def _relevance_of(method: Method, answer: Answer) -> MethodRelevance:
    relevance = answer.relevance[method.name]
    parts = [part[0].double().numpy() for part in (relevance.tokens, relevance.decoder_tokens) if part is not None]
    explanation = answer.question.explanation or method.usual_explanation(answer.row["foil_id"] is not None)
    embedding = method.embeddings_of(answer.opened.view.family.capabilities)[0]
    summed = relevance.residual is not None
    return MethodRelevance(
        method.name, explanation, embedding, float(relevance.explained[0]), np.concatenate(parts), summed
    )
