"""SQuAD v2 (Rajpurkar et al. 2018), answerable questions: about one paragraph, or about one of several of its article.

The target is the first of the annotators' answers, and its span the evidence; other occurrences of its text are not
(`meta.occurrences` counts all). Close Look does not say how foils are chosen. Here the foil is the answer of another
question of the same paragraph, else of the article: the next one in published order that begins with another word,
number or symbol than every accepted answer of this question.

Of several paragraphs, the others are the next ones in the article in which the answer does not occur, then those
before, in the order of the article; the whole answer is explained.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

from closelook.evaluation.benchmark.samples import Malformed, Row, rejecting, sample
from closelook.evaluation.benchmark.sources.base import HubRows, Source, field
from closelook.evaluation.benchmark.sources.files import Record, json_array

PREFIX = "Context: "  # the prompt of AttnLRP, appendix B.1
PROMPT = PREFIX + "{context}\nQuestion: {question}\nAnswer:"


@dataclass(frozen=True)
class Question:
    """An answerable question; `paragraph` is the number of its context in the article, from 0."""

    where: str
    paragraph: int
    context: str
    text: str
    answers: tuple[tuple[str, int], ...]  # (text, offset in the context), the target's first

    @property
    def first_pieces(self) -> set[str]:
        """The beginnings of all accepted answers (see `first_piece`)."""
        return {first_piece(text) for text, _ in self.answers}


def first_piece(answer: str) -> str:
    """The beginning of an answer in lower case: its first run of letters, its first run of digits, or one symbol."""
    match = re.search(r"[^\W\d_]+|\d+|\S", answer.lower())
    return match[0] if match else ""


def rows(record: Record) -> Iterator[Row]:
    """The samples and rejects of one article; unanswerable questions are skipped and are no rejects."""
    _, article = record
    out: list[Row] = []
    questions = questions_of(record, out)
    for index, question in enumerate(questions):
        with rejecting(out, "source", where=question.where):
            out.append(_sample(question, _foil(questions, index), article.get("title")))
    return iter(out)


def questions_of(record: Record, rejects: list[Row]) -> list[Question]:
    """The answerable questions of an article; rejects of broken entries are appended to `rejects`."""
    where, article = record
    questions: list[Question] = []
    with rejecting(rejects, "source", where=where):
        for number, paragraph in enumerate(field(article, "paragraphs", list)):
            of_paragraph = f"{where}.paragraphs[{number}]"
            with rejecting(rejects, "source", where=of_paragraph):
                questions += _questions(of_paragraph, number, paragraph, rejects)
    return questions


def _questions(where: str, number: int, paragraph: Any, rejects: list[Row]) -> list[Question]:
    """The answerable questions of a paragraph; broken entries go to `rejects`. Raises Malformed."""
    context, questions = field(paragraph, "context"), []
    for index, entry in enumerate(field(paragraph, "qas", list)):
        stands = f"{where}.qas[{index}]"
        with rejecting(rejects, "source", where=stands):
            if question := _question(stands, number, context, entry):
                questions.append(question)
    return questions


def _question(where: str, number: int, context: str, entry: Any) -> Question | None:
    """The question of an entry; None if it is unanswerable. Raises Malformed for a broken entry."""
    answers = field(entry, "answers", list)
    if entry.get("is_impossible", not answers):
        return None
    if not context.strip():
        raise Malformed("empty context")
    if not answers:
        raise Malformed("no answer to an answerable question", entry.get("id"))
    marked = tuple((field(answer, "text"), field(answer, "answer_start", int)) for answer in answers)
    for text, start in marked:
        if not text.strip():
            raise Malformed("empty answer", entry.get("id"))
        if start < 0 or context[start : start + len(text)] != text:
            raise Malformed("answer_start does not match the text", f"{text!r} is not at {start} ({entry.get('id')})")
    return Question(where, number, context, field(entry, "question"), marked)


def _foil(questions: list[Question], index: int) -> str:
    """The foil of a question: another question's answer that begins differently (see the module)."""
    question = questions[index]
    others = questions[index + 1 :] + questions[:index]
    for other in sorted(others, key=lambda other: other.paragraph != question.paragraph):
        answer = other.answers[0][0]
        if first_piece(answer) not in question.first_pieces:
            return answer
    raise Malformed("no foil in the article", question.answers[0][0])


def _sample(question: Question, foil: str, title: str | None) -> Row:
    """The sample of a question; the samples of an article are a cluster, named by its title."""
    text = PROMPT.format(context=question.context, question=question.text.strip())
    answer, offset = question.answers[0]
    start = len(PREFIX) + offset
    evidence, scope = (start, start + len(answer)), (len(PREFIX), len(PREFIX) + len(question.context))
    meta = {"occurrences": question.context.count(answer)}
    slot = len(text)
    return sample("squad", text, slot, answer, foil, evidence=[evidence], scope=[scope], meta=meta, cluster=title)


def contexts(article: Any, column: str) -> Iterator[str]:
    """The texts of an article's paragraphs, for a corpus; `column` is not used. Raises Malformed."""
    for paragraph in field(article, "paragraphs", list):
        yield field(paragraph, "context")


def articles(file: Path) -> Iterator[Record]:
    """The articles of a published file."""
    return json_array(file, "data")


def hub_articles(rows: HubRows) -> Iterator[Record]:
    """The articles of the hub's rows, each a question: consecutive rows of one title, grouped by their paragraph."""
    for number, (title, group) in enumerate(groupby(rows, key=lambda row: row.get("title"))):
        paragraphs = []
        for context, questions in groupby(group, key=lambda row: row.get("context")):
            paragraphs.append({"context": context, "qas": list(map(_entry, questions))})
        yield f"article {number} ({title})", {"title": title, "paragraphs": paragraphs}


def _entry(row: dict[str, Any]) -> dict[str, Any]:
    """A row of the hub in the form of the published file's questions; an unanswerable question has no answers."""
    answers = row.get("answers")
    if isinstance(answers, dict):
        texts, starts = answers.get("text") or [], answers.get("answer_start") or []
        answers = [{"text": text, "answer_start": start} for text, start in zip(texts, starts, strict=True)]
    return {"id": row.get("id"), "question": row.get("question"), "answers": answers}


SQUAD = Source(
    name="squad",
    title="SQuAD v2, answerable questions (Rajpurkar et al. 2018)",
    url="https://rajpurkar.github.io/SQuAD-explorer/",
    licence="CC BY-SA 4.0",
    brings_evidence=True,
    suffixes=(".json",),
    records=articles,
    rows=rows,
    file_url="https://rajpurkar.github.io/SQuAD-explorer/dataset/train-v2.0.json",
    hub="rajpurkar/squad_v2",
    hub_splits=("train", "validation"),
    hub_records=hub_articles,
    texts=contexts,
)


PASSAGES = 5  # in a prompt
LONGEST = 700  # characters of a passage: five of them and a question fit into 1,024 tokens
_CONTEXT = "Context:"


def passage_rows(record: Record) -> Iterator[Row]:
    """The samples and rejects of one article, for the first answerable question of each paragraph."""
    where, article = record
    out: list[Row] = []
    with rejecting(out, "source", where=where):
        paragraphs = [field(paragraph, "context").strip() for paragraph in field(article, "paragraphs", list)]
        questions = questions_of(record, out)
        asked: set[int] = set()
        for question in questions:
            if question.paragraph not in asked:
                asked.add(question.paragraph)
                with rejecting(out, "source", where=question.where):
                    out.append(_passage_sample(question, paragraphs, article.get("title")))
    return iter(out)


def _passage_sample(question: Question, paragraphs: list[str], title: str | None) -> Row:
    """The sample of a question about `paragraphs`, those of the article of this `title`."""
    answer, answered = question.answers[0][0], question.paragraph
    if len(paragraphs[answered]) > LONGEST:
        raise Malformed("the paragraph is too long", f"{len(paragraphs[answered])} characters")
    order = [*range(answered + 1, len(paragraphs)), *range(answered)]
    others = [at for at in order if len(paragraphs[at]) <= LONGEST and answer.lower() not in paragraphs[at].lower()]
    if len(others) < PASSAGES - 1:
        raise Malformed("too few other paragraphs without the answer", f"{len(others)} of {PASSAGES - 1}")
    text, spans = _CONTEXT, []
    chosen = sorted([answered, *others[: PASSAGES - 1]])
    for at in chosen:
        start = len(text) + 1
        text = f"{text}\n{paragraphs[at]}"
        spans.append((start, len(text)))
    text += f"\nQuestion: {question.text.strip()}\nAnswer:"
    meta = {"sources": spans, "answer_parts": [(1, 1 + len(answer))]}
    name, evidence = SQUAD_PASSAGES.name, spans[chosen.index(answered)]
    return sample(name, text, len(text), f" {answer}", evidence=[evidence], meta=meta, cluster=title)


SQUAD_PASSAGES = replace(
    SQUAD,
    name="squad_passages",
    title="SQuAD v2, a paragraph among others of its article (Rajpurkar et al. 2018)",
    rows=passage_rows,
    texts=None,
)
