"""Answers from one of several passages, made from SQuAD v2: a question's paragraph among others of its article.

The other paragraphs are the next ones in the article in which the answer does not occur, then those before; the prompt
has all in the order of the article.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from evaluation.benchmark.samples import Malformed, Row, rejecting, sample
from evaluation.benchmark.sources import squad
from evaluation.benchmark.sources.base import field
from evaluation.benchmark.sources.files import Record

PASSAGES = 5  # in a prompt
LONGEST = 700  # characters of a passage: five of them and a question fit into 1,024 tokens
_PREFIX = "Context:"


def rows(record: Record) -> Iterator[Row]:
    """The samples and rejects of one article, for the first answerable question of each paragraph."""
    where, article = record
    out: list[Row] = []
    with rejecting(out, "source", where=where):
        paragraphs = [field(paragraph, "context").strip() for paragraph in field(article, "paragraphs", list)]
        questions = squad.questions_of(record, out)
        asked: set[int] = set()
        for question in questions:
            if question.paragraph not in asked:
                asked.add(question.paragraph)
                with rejecting(out, "source", where=question.where):
                    out.append(_sample(question, paragraphs, article.get("title")))
    return iter(out)


def _sample(question: squad.Question, paragraphs: list[str], title: str | None) -> Row:
    """The sample of a question about `paragraphs`, those of the article of this `title`.

    Raises Malformed for a paragraph that is too long, and for too few other paragraphs without the answer.
    """
    answer, answered = question.answers[0][0], question.paragraph
    if len(paragraphs[answered]) > LONGEST:
        raise Malformed("the paragraph is too long", f"{len(paragraphs[answered])} characters")
    order = [*range(answered + 1, len(paragraphs)), *range(answered)]
    others = [at for at in order if len(paragraphs[at]) <= LONGEST and answer.lower() not in paragraphs[at].lower()]
    if len(others) < PASSAGES - 1:
        raise Malformed("too few other paragraphs without the answer", f"{len(others)} of {PASSAGES - 1}")
    text, spans = _PREFIX, []
    chosen = sorted([answered, *others[: PASSAGES - 1]])
    for at in chosen:
        start = len(text) + 1
        text = f"{text}\n{paragraphs[at]}"
        spans.append((start, len(text)))
    text += f"\nQuestion: {question.text.strip()}\nAnswer:"
    meta = {"sources": spans, "answer_parts": [(1, 1 + len(answer))]}
    row = sample(
        SQUAD_PASSAGES.name, text, len(text), f" {answer}", evidence=[spans[chosen.index(answered)]], meta=meta
    )
    return row | {"cluster": title}


SQUAD_PASSAGES = replace(
    squad.SQUAD,
    name="squad_passages",
    title="SQuAD v2, a paragraph among others of its article (Rajpurkar et al. 2018)",
    rows=rows,
    texts=None,
)
