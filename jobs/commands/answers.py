"""Answers to questions: a prediction, or several in a row, and the relevance of the tokens that the model read.

`closelook explain` prints the answers, and `closelook.explain` (jobs/notebook) hands them to Python.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from torch import Tensor

from evaluation.benchmark.pictures import Preprocessing, pixels_of
from evaluation.benchmark.samples import Row
from evaluation.report.heatmap import Line, beyond_noise, data, pieces, seen, words
from evaluation.report.overlay import patch_names, with_picture
from jobs.commands.opened import Opened
from jobs.commands.question import Question, read, space_note, text_read, tokens_of
from lrp_core.explained import CONTRASTIVE, needs_foil
from lrp_core.method import Method
from lrp_core.readout import against_strongest, rows_for, with_predictions
from lrp_core.types import Batch, Relevance, UnusableRows, UserError, span_row
from lrp_core.view import ModelView

#: Columns of a row that grow as a text or an answer goes on.
_GROWING = ("input_ids", "special_mask", "decoder_input_ids")


@dataclass(frozen=True)
class Answer:
    """One explained prediction: the tokens that the model read, and their relevance by each method."""

    question: Question
    opened: Opened
    methods: Sequence[Method]
    at: int  # predictions of the question that are explained before it
    row: Row  # of the view schema, target included
    relevance: dict[str, Relevance]  # by method, of a batch of one
    tokens: list[str]
    target: str
    foil: str | None
    token: str | None = None  # of the target, with the space that belongs to it; None of labels and scores
    decoder: list[str] | None = None  # of an encoder-decoder: the tokens that the decoder has seen

    @property
    def what(self) -> str:
        return f"{self.target} rather than {self.foil}" if self.foil is not None else self.target

    @property
    def space(self) -> str:
        """A note about the space before the target, behind `what`."""
        return "" if self.at else space_note(self.question, self.opened)

    @property
    def images(self) -> Preprocessing | None:
        """Of a model of images: the preparation of the image."""
        return self.opened.resolved.preprocessing

    @property
    def logits(self) -> list[float]:
        """The logits of the target and, where there is one, of the foil."""
        first = next(iter(self.relevance.values()))
        return [float(logit[0]) for logit in (first.logit_target, first.logit_foil) if logit is not None]

    def lines(self, by_word: bool = False) -> tuple[list[str], list[bool], list[Line]]:
        """The tokens, whether each is special, and a line a method; `by_word` sums the relevance of a word's pieces.

        A line is all zero where a method that shares out a logit has nothing but rounding. Raises UserError for words
        of an image, and of methods whose relevance is not promised to add up.
        """
        lines, apart = [], []
        for method in self.methods:
            relevance = self.relevance[method.name]
            columns = (relevance.tokens, relevance.decoder_tokens, relevance.pixels)
            tokens, decoder, pixels = map(_values, columns)
            line = Line(method.name, tokens, decoder=decoder, pixels=pixels)
            lines.append(beyond_noise(line, self.logits) if method.conserves else line)
            if not (method.conserves and relevance.conserves):
                apart.append(method.name)
        special = self.row["special_mask"]
        if not by_word:
            return self.tokens, special, lines
        if self.images is not None:
            raise UserError("an image has no words: leave --words out")
        if apart:
            raise UserError(f"relevance by {', '.join(apart)} is not promised to add up over pieces: leave --words out")
        groups = words(self.tokens, special)
        texts = ["".join(self.tokens[at] for at in group) for group in groups]
        summed = []
        for line in lines:
            values = [sum(line.values[at] for at in group) for group in groups]
            summed.append(line._replace(values=values))
        return texts, [special[group[0]] for group in groups], summed

    def entry(self, by_word: bool = False) -> dict[str, Any]:
        """The answer as heat maps take it: a text goes on with the tokens that are explained before."""
        question = self.question
        tokens, special, lines = self.lines(by_word)
        text, slot = question.text, len(question.before)
        read = None  # the whole text, where the target follows it
        if self.decoder is not None:
            read = f"{question.before} → {''.join(self.decoder[1:])} "
        elif self.at or question.words == "sum":
            read = "".join(self.tokens) + " "
        elif question.second is not None:
            read = f"{question.sentence} | {question.second} "
        if read is not None:
            text, slot = read, len(read)
        facts: dict[str, Any] = {
            "model": self.opened.id,
            "sample_id": f"token {self.at + 1}",
            "text": text,
            "slot": slot,
        }
        facts |= {"target": self.target, "foil": self.foil}
        shown = data(tokens, lines, special=special, decoder=self.decoder, **facts)
        if self.images is None:
            return shown
        maps = [line.pixels for line in lines]
        return with_picture(shown, pixels_of(self.row, self.images), self.images, maps, question.sentence)


def _values(relevance: Tensor | None) -> Any:
    """Relevance of a batch of one as a list, in row-major order; None of None."""
    return None if relevance is None else relevance[0].flatten().tolist()


def answers(question: Question, opened: Opened, methods: Sequence[Method], **finer: Any) -> Iterator[Answer]:
    """The prediction, or one after the other as each is read with what is explained before it. `finer` as for methods.

    Where the question asks for the sum of the target's tokens, they are one answer, by one forward and one backward.

    Raises UserError for questions that the model or a method has no answer to.
    """
    rows = list(_rows(question, opened))
    if question.words == "sum":
        row = span_row(rows[-1], rows[0]["position"], [row["target_id"] for row in rows])
        yield _answer(question, opened, methods, row, _relevance(opened, methods, [row], question.explanation, **finer))
        return
    in_turn = _relevance_in_turn(opened, methods, rows, question.explanation, **finer)
    for at, (row, relevance) in enumerate(zip(rows, in_turn, strict=True)):
        yield _answer(question, opened, methods, row, relevance, at)


def _rows(question: Question, opened: Opened) -> Iterator[Row]:
    """The row that the model reads for each of the predictions, with the target that it predicts there."""
    asked, view = read(question, opened), opened.view
    targets = tokens_of(question, opened) if question.every_token else [None] * question.generate
    for target in targets:
        if target is not None:
            asked = {**asked, "target_id": target}
        row = with_targets(question, view, rows_for(view, [asked])[0])
        yield row
        token = row["target_id"]
        if view.kind.labels or token == opened.writer.eos_token_id:
            return
        asked = {**asked, "position": asked["position"] + 1, "target_id": None}
        if asked.get("decoder_input_ids") is None:
            asked["input_ids"] = [*asked["input_ids"], token]
            asked["special_mask"] = [*asked["special_mask"], False]
        else:
            asked["decoder_input_ids"] = [*asked["decoder_input_ids"], token]


def with_targets(question: Question, view: ModelView, row: Mapping[str, Any]) -> Row:
    """The row with the model's prediction as its target where it has none.

    Where the question names a label without a foil, and its explanation needs one, the strongest other label is it.
    """
    (row,) = with_predictions(view, [row])
    label_without_foil = question.label is not None and question.foil is None
    if label_without_foil and view.n_targets > 1 and needs_foil(question.explanation or CONTRASTIVE.name):
        row = against_strongest(view, row)
    return dict(row)


def answers_of_batches(
    questions: Sequence[Question], opened: Opened, methods: Sequence[Method], size: int
) -> list[Answer]:
    """One answer a question, `size` of them in a pass. Raises as :func:`answers`, with the number of the question."""
    asked = []
    for at, question in enumerate(questions):
        try:
            asked.append(read(question, opened))
        except UserError as error:
            raise type(error)(f"text {at}: {error}") from None
    rows: list[Row] = []
    alike: dict[tuple[Any, ...], list[int]] = {}  # rows that can share a batch
    for at, row in enumerate(rows_for(opened.view, asked)):
        question = questions[at]
        row = with_targets(question, opened.view, row)
        rows.append(row)
        key = (row["foil_id"] is None, row.get("token_type_ids") is None, question.explanation)
        alike.setdefault(key, []).append(at)
    answered = {}
    for (*_, explanation), indices in alike.items():
        for start in range(0, len(indices), size):
            batch = indices[start : start + size]
            relevance = _relevance(opened, methods, [rows[at] for at in batch], explanation)
            for i, at in enumerate(batch):
                answered[at] = _answer(questions[at], opened, methods, rows[at], _of_row(relevance, i, rows[at]))
    return [answered[at] for at in range(len(questions))]


def exported(question: Question, opened: Opened, answers: Sequence[Answer]) -> dict[str, Any]:
    """The record of `closelook explain --json`; `prompt` are the characters of `text` that a model of words reads."""
    facts = opened.facts | {"text": question.sentence}
    if not opened.resolved.kind.labels:
        facts["prompt"] = text_read(question, opened)
    return {**facts, "predictions": [_plain(answer) for answer in answers]}


def _plain(answer: Answer) -> dict[str, Any]:
    """An answer as numbers, with all digits; `words` are [start, end) of tokens."""
    row, methods = answer.row, []
    for name, result in answer.relevance.items():
        method: dict[str, Any] = {"method": name, "explained": float(result.explained[0])}
        method["residual"] = None if result.residual is None else float(result.residual[0])
        method["relevance"] = result.tokens[0].tolist()
        if result.decoder_tokens is not None:
            method["decoder_relevance"] = result.decoder_tokens[0].tolist()
        if result.pixels is not None:
            method["pixels"] = result.pixels[0].tolist()
        methods.append(method)
    plain: dict[str, Any] = {"target": answer.target}
    if answer.token is not None:
        plain["target_token"] = answer.token
    plain["foil"] = answer.foil
    plain |= {key: row[key] for key in ("target_id", "foil_id", "position", "input_ids", "special_mask")}
    if row.get("decoder_input_ids") is not None:
        plain["decoder_input_ids"] = row["decoder_input_ids"]
    if row.get("span") is not None:
        plain["target_ids"] = [token for _, token, _ in row["span"]]
    groups = words(answer.tokens, row["special_mask"])
    plain |= {"tokens": answer.tokens, "words": [[group[0], group[-1] + 1] for group in groups]}
    plain["logit_target"] = answer.logits[0]
    plain["logit_foil"] = answer.logits[1] if answer.foil is not None else None
    return {**plain, "methods": methods}


def _relevance(
    opened: Opened, methods: Sequence[Method], rows: Sequence[Row], explanation: str | None, **finer: Any
) -> dict[str, Relevance]:
    """The relevance of the rows, in one batch, by method. Raises UserError for rows that the model cannot explain."""
    batch = Batch.collate(rows, pad_id=0)
    try:
        return {method.name: method(opened.view, batch, explanation=explanation, **finer) for method in methods}
    except UnusableRows as error:
        raise UserError(f"{opened.resolved.config.id}: {error.detail}") from None


def _relevance_in_turn(
    opened: Opened, methods: Sequence[Method], rows: Sequence[Row], explanation: str | None, **finer: Any
) -> Iterator[dict[str, Relevance]]:
    """The relevance of each of `rows`, by method. Every row is the one before with a token more.

    Methods that share forwards get the text of the last row, the longest, in place of each row's own: one forward
    serves all rows, and what it says is cut to the length of each.
    """
    together, alone = {}, list(methods)
    if len(rows) > 1:
        shared = [method for method in methods if method.shares_forwards]
        alone = [method for method in methods if not method.shares_forwards]
        longest = {name: rows[-1].get(name) for name in _GROWING}
        if shared:
            together = _relevance(opened, shared, [{**row, **longest} for row in rows], explanation, texts=1, **finer)
    for at, row in enumerate(rows):
        relevance = _of_row(together, at, row)
        if alone:
            relevance |= _relevance(opened, alone, [row], explanation, **finer)
        yield {method.name: relevance[method.name] for method in methods}


def _of_row(relevance: Mapping[str, Relevance], at: int, row: Row) -> dict[str, Relevance]:
    """The batch of the one row `at`, by method, cut behind its tokens and those that its decoder has seen."""
    length, cut = len(row["input_ids"]), {}
    for name, batch in relevance.items():
        whole = batch.mapped(lambda value: value[at : at + 1])
        layers = None if whole.layers is None else whole.layers[..., :length]
        decoder = None if whole.decoder_tokens is None else whole.decoder_tokens[:, : len(row["decoder_input_ids"])]
        cut[name] = replace(whole, tokens=whole.tokens[:, :length], layers=layers, decoder_tokens=decoder)
    return cut


def _answer(
    question: Question,
    opened: Opened,
    methods: Sequence[Method],
    row: Row,
    relevance: dict[str, Relevance],
    at: int = 0,
) -> Answer:
    """The answer to the question with the row's relevance. `at` counts the answers before it."""
    resolved, tokenizer = opened.resolved, opened.tokenizer
    answer = partial(Answer, question, opened, methods, at, row, relevance)
    target_id, foil_id = row["target_id"], row["foil_id"]
    if resolved.kind.labels:
        images = resolved.preprocessing
        tokens = pieces(tokenizer, row["input_ids"]) if images is None else patch_names(images)
        if resolved.output == "score":
            return answer(tokens, "the score", None)
        foil = None if foil_id is None else resolved.labels[foil_id]
        return answer(tokens, resolved.labels[target_id], foil)
    decoder = row.get("decoder_input_ids")
    read = row["input_ids"] if decoder is None else decoder[1:]
    *tokens, token = pieces(opened.writer, [*read, target_id])
    target, foil = token.strip() or repr(token), None
    if question.words in ("single", "sum") and isinstance(question.target, str):
        target = question.target
    if question.words == "single" and isinstance(question.foil, str):
        foil = question.foil
    elif foil_id is not None:
        foil = pieces(opened.writer, [*read, foil_id])[-1].strip()
    if resolved.kind.decoder:
        return answer(pieces(tokenizer, row["input_ids"]), target, foil, token, seen(opened.writer, read))
    return answer(tokens, target, foil, token)
