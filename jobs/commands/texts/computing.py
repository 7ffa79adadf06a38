"""Explains texts by a model, and turns its answers into tidy tables by word and by token."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from evaluation.benchmark.samples import Filled
from evaluation.explained.rows import (
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
        starts = [number == 0 for number in range(len(decoder))]  # a decoder's start token is special
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
