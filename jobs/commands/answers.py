"""Questions answered: a prediction, or several in a row, and what methods say of the tokens that the model read.

`closelook explain` prints the answers, and `closelook.explain` (jobs/notebook) hands them to Python.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from evaluation.benchmark.pictures import Preprocessing, pixels_of
from evaluation.benchmark.samples import Row
from evaluation.report.heatmap import Line, beyond_noise, data, pieces, seen, words
from evaluation.report.overlay import patch_names, with_picture
from jobs.commands.opened import Opened
from jobs.commands.question import Question, read, space_told, text_read, tokens_of
from jobs.plan.models import ResolvedModel
from jobs.versions import versions
from lrp_core.explained import CONTRASTIVE, needs_foil
from lrp_core.method import Method
from lrp_core.readout import against_strongest, rows_for, with_predictions
from lrp_core.types import Batch, Relevance, UnusableRows, UserError
from lrp_core.view import ModelView

#: What grows as a text or an answer goes on.
_READ = ("input_ids", "special_mask", "decoder_input_ids")


@dataclass(frozen=True)
class Answer:
    """One explained prediction: the tokens that the model read, and what each method says of them."""

    tokens: list[str]
    row: Row  # of the view schema, target included
    target: str
    foil: str | None
    relevance: dict[str, Relevance]  # by method, of a batch of one
    number: str = "logit"  # what is explained
    images: Preprocessing | None = None  # of a model of images: how the image was prepared
    decoder: list[str] | None = None  # of an encoder-decoder: what the decoder has seen
    token: str | None = None  # of the target, with the space that belongs to it; None of labels and scores
    told: str = ""  # of that space, behind `what`

    @property
    def what(self) -> str:
        return f"{self.target} rather than {self.foil}" if self.foil is not None else self.target

    @property
    def logits(self) -> list[float]:
        """The logits of the target and, where there is one, of the foil."""
        one = next(iter(self.relevance.values()))
        return [float(each[0]) for each in (one.logit_target, one.logit_foil) if each is not None]


def answers(question: Question, opened: Opened, methods: Sequence[Method], **finer: Any) -> Iterator[Answer]:
    """The prediction, or one after the other as each is read with what is explained before it. `finer` as for methods.

    Raises UserError for questions that the model or a method has no answer to.
    """
    rows = list(_rows(question, opened))
    in_turn = _relevance_in_turn(opened, methods, rows, question.explanation, **finer)
    for at, (row, relevance) in enumerate(zip(rows, in_turn, strict=True)):
        yield _answer(question, opened, row, relevance, at)


def _rows(question: Question, opened: Opened) -> Iterator[Row]:
    """What the model reads for each of the predictions that are asked for, and what it predicts there."""
    asked, view = read(question, opened.tokenizer, opened.resolved, opened.decoder_tokenizer), opened.view
    given = tokens_of(question, opened.writer, view.kind.decoder) if question.words == "each" else []
    for step in range(len(given) or question.generate):
        if given:
            asked = {**asked, "target_id": given[step]}
        row = with_targets(question, view, rows_for(view, [asked])[0])
        yield row
        if view.kind.labels or row["target_id"] == opened.writer.eos_token_id:
            return
        asked = _after(asked, row["target_id"])


def with_targets(question: Question, view: ModelView, row: Mapping[str, Any]) -> Row:
    """The row with what the model predicts where nothing was asked for, and with the foil of a label that has none."""
    (told,) = with_predictions(view, [row])
    unopposed = question.label is not None and question.foil is None
    if unopposed and view.n_targets > 1 and needs_foil(question.explanation or CONTRASTIVE.name):
        told = against_strongest(view, told)
    return dict(told)


def _after(row: Row, token: int) -> Row:
    """What is asked next, behind `token`: the text goes on, or what a decoder has said."""
    on = {"position": row["position"] + 1, "target_id": None}
    if row.get("decoder_input_ids") is not None:
        return {**row, **on, "decoder_input_ids": [*row["decoder_input_ids"], token]}
    on |= {"input_ids": [*row["input_ids"], token], "special_mask": [*row["special_mask"], False]}
    return {**row, **on}


def answers_of_batches(
    questions: Sequence[Question], opened: Opened, methods: Sequence[Method], size: int
) -> list[Answer]:
    """One answer a question, `size` of them in a pass. Raises as :func:`answers`, with the number of the question."""
    rows = []
    for at, question in enumerate(questions):
        try:
            rows.append(dict(read(question, opened.tokenizer, opened.resolved, opened.decoder_tokenizer)))
        except UserError as error:
            raise type(error)(f"text {at}: {error}") from None
    given = zip(questions, rows_for(opened.view, rows), strict=True)
    rows = [with_targets(question, opened.view, row) for question, row in given]
    alike: dict[tuple[Any, ...], list[int]] = {}
    for at, (question, row) in enumerate(zip(questions, rows, strict=True)):
        key = (row["foil_id"] is None, row.get("token_type_ids") is None, question.explanation)
        alike.setdefault(key, []).append(at)
    answered: dict[int, Answer] = {}
    for (*_, explanation), indices in alike.items():
        for start in range(0, len(indices), size):
            some = indices[start : start + size]
            relevance = _relevance(opened, methods, [rows[at] for at in some], explanation)
            for i, at in enumerate(some):
                own = {name: _of_row(each, i, rows[at]) for name, each in relevance.items()}
                answered[at] = _answer(questions[at], opened, rows[at], own)
    return [answered[at] for at in range(len(questions))]


def lines_of(answer: Answer, methods: Sequence[Method]) -> list[Line]:
    """A line a method; all zero where a method that shares out a logit has nothing but rounding."""
    lines = [
        Line(
            name,
            one.tokens[0].tolist(),
            decoder=None if one.decoder_tokens is None else one.decoder_tokens[0].tolist(),
            pixels=None if one.pixels is None else one.pixels[0].flatten().tolist(),
        )
        for name, one in answer.relevance.items()
    ]
    return [
        beyond_noise(line, answer.logits) if info.conserves else line for line, info in zip(lines, methods, strict=True)
    ]


def grouped(
    answer: Answer, methods: Sequence[Method], lines: Sequence[Line]
) -> tuple[list[str], list[bool], list[Line]]:
    """Words in the place of tokens, and which are special; the relevance of their pieces is summed.

    Raises UserError for an image, and for methods whose relevance is not promised to add up.
    """
    if answer.images is not None:
        raise UserError("an image has no words: leave --words out")
    apart = [one.name for one in methods if not (one.conserves and answer.relevance[one.name].conserves)]
    if apart:
        raise UserError(f"relevance by {', '.join(apart)} is not promised to add up over pieces: leave --words out")
    special = answer.row["special_mask"]
    groups = words(answer.tokens, special)
    texts = ["".join(answer.tokens[at] for at in group) for group in groups]
    summed = [line._replace(values=[sum(line.values[at] for at in group) for group in groups]) for line in lines]
    return texts, [special[group[0]] for group in groups], summed


def entry(
    answer: Answer, methods: Sequence[Method], question: Question, model: str, by_word: bool = False, at: int = 0
) -> dict[str, Any]:
    """An answer as heat maps take it. `at` counts the tokens explained before it, with which its text goes on."""
    tokens, special, lines = answer.tokens, answer.row["special_mask"], lines_of(answer, methods)
    if by_word:
        tokens, special, lines = grouped(answer, methods, lines)
    text, slot = question.text, len(question.before)
    if question.second is not None:
        text = f"{question.sentence} | {question.second} "
        slot = len(text)
    if answer.decoder is not None:
        text = f"{question.before} → {''.join(answer.decoder[1:])} "
        slot = len(text)
    elif at:
        text = "".join(answer.tokens) + " "
        slot = len(text)
    facts: dict[str, Any] = {
        "sample_id": f"token {at + 1}",
        "text": text,
        "slot": slot,
        "target": answer.target,
        "foil": answer.foil,
    }
    shown = data(tokens, lines, special=special, decoder=answer.decoder, model=model, **facts)
    if answer.images is None:
        return shown
    maps = [line.pixels for line in lines]
    return with_picture(shown, pixels_of(answer.row, answer.images), answer.images, maps, question.sentence)


def exported(question: Question, opened: Opened, answers: Sequence[Answer]) -> dict[str, Any]:
    """What `closelook explain --json` writes; `prompt` are the characters of `text` that a model of words reads."""
    kind = opened.resolved.kind
    facts = {"model": opened.id, "identity": opened.resolved.identity, "dtype": opened.dtype, "versions": versions()}
    prompt = {} if kind.labels else {"prompt": text_read(question, opened.tokenizer, kind)}
    return {**facts, "text": question.sentence, **prompt, "predictions": [plain(answer) for answer in answers]}


def plain(answer: Answer) -> dict[str, Any]:
    """An answer as numbers, with all digits; `words` are [start, end) of tokens."""
    row = answer.row
    methods = [
        {
            "method": name,
            "explained": float(result.explained[0]),
            "residual": None if result.residual is None else float(result.residual[0]),
            "relevance": result.tokens[0].to(torch.float64).tolist(),
            **({} if result.decoder_tokens is None else {"decoder_relevance": result.decoder_tokens[0].tolist()}),
            **({} if result.pixels is None else {"pixels": result.pixels[0].to(torch.float64).tolist()}),
        }
        for name, result in answer.relevance.items()
    ]
    return {
        "target": answer.target,
        **({} if answer.token is None else {"target_token": answer.token}),
        "foil": answer.foil,
        **{key: row[key] for key in ("target_id", "foil_id", "position", "input_ids", "special_mask")},
        **({} if row.get("decoder_input_ids") is None else {"decoder_input_ids": row["decoder_input_ids"]}),
        "tokens": answer.tokens,
        "words": [[group[0], group[-1] + 1] for group in words(answer.tokens, row["special_mask"])],
        "logit_target": answer.logits[0],
        "logit_foil": answer.logits[1] if answer.foil is not None else None,
        "methods": methods,
    }


def _relevance(
    opened: Opened, methods: Sequence[Method], rows: Sequence[Row], explanation: str | None, **finer: Any
) -> dict[str, Relevance]:
    batch = Batch.collate(rows, pad_id=0)
    try:
        return {one.name: one(opened.view, batch, explanation=explanation, **finer) for one in methods}
    except UnusableRows as error:
        raise UserError(f"{opened.resolved.config.id}: {error.detail}") from None


def _relevance_in_turn(
    opened: Opened, methods: Sequence[Method], rows: Sequence[Row], explanation: str | None, **finer: Any
) -> Iterator[dict[str, Relevance]]:
    """The relevance of each of `rows`, each of which goes on with the one before.

    Methods that can read the last of them in one forward for all, whose tokens each of them has the first of.
    """
    last = rows[-1]
    whole = [{**row, **{name: last.get(name) for name in _READ}} for row in rows]
    shared = [one for one in methods if one.shares_forwards] if len(rows) > 1 else []
    together = _relevance(opened, shared, whole, explanation, texts=1, **finer) if shared else {}
    for at, row in enumerate(rows):
        alone = [one for one in methods if one not in shared]
        relevance = _relevance(opened, alone, [row], explanation, **finer) if alone else {}
        relevance |= {name: _of_row(each, at, row) for name, each in together.items()}
        yield {one.name: relevance[one.name] for one in methods}


def _of_row(relevance: Relevance, at: int, row: Row) -> Relevance:
    """A batch of the one row, without what is behind its tokens, and behind those that its decoder has seen."""
    one, length = relevance.mapped(lambda value: value[at : at + 1]), len(row["input_ids"])
    layers = None if one.layers is None else one.layers[..., :length]
    decoder = None if one.decoder_tokens is None else one.decoder_tokens[:, : len(row["decoder_input_ids"])]
    return replace(one, tokens=one.tokens[:, :length], layers=layers, decoder_tokens=decoder)


def _answer(question: Question, opened: Opened, row: Row, relevance: dict[str, Relevance], at: int = 0) -> Answer:
    """`at` counts the answers before it."""
    resolved, tokenizer = opened.resolved, opened.tokenizer
    if resolved.kind.labels:
        number = "score" if resolved.output == "score" else "logit"
        images = resolved.preprocessing
        tokens = pieces(tokenizer, row["input_ids"]) if images is None else patch_names(images)
        return Answer(tokens, row, *_named(row, resolved), relevance, number, images)
    read = row["input_ids"] if row.get("decoder_input_ids") is None else row["decoder_input_ids"][1:]
    shown = pieces(opened.writer, [*read, row["target_id"]])
    whole = question.words == "single"
    target = question.target if whole and isinstance(question.target, str) else shown[-1].strip() or repr(shown[-1])
    foil = question.foil if whole and isinstance(question.foil, str) else None
    if foil is None and row["foil_id"] is not None:
        foil = pieces(opened.writer, [*read, row["foil_id"]])[-1].strip()
    told = "" if at else space_told(question, tokenizer, resolved.kind, opened.decoder_tokenizer)
    if resolved.kind.decoder:
        tokens, decoder = pieces(tokenizer, row["input_ids"]), seen(opened.writer, read)
        return Answer(tokens, row, target, foil, relevance, decoder=decoder, token=shown[-1], told=told)
    return Answer(shown[:-1], row, target, foil, relevance, token=shown[-1], told=told)


def _named(row: Row, resolved: ResolvedModel) -> tuple[str, str | None]:
    """Target and foil of a model of labels in words."""
    if resolved.output == "score":
        return "the score", None
    foil = row["foil_id"]
    return resolved.labels[row["target_id"]], None if foil is None else resolved.labels[foil]
