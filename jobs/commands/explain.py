"""One text, one prediction or several in a row, explained in the terminal, on a page and as JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.text import Text

from evaluation.benchmark.samples import Row
from evaluation.report.heatmap import Line, beyond_noise, data, pieces, terminal, words
from evaluation.report.page import Provenance, explain_page
from jobs.commands.conservation import print_layers
from jobs.commands.question import PLACE, Question, read
from jobs.config import ModelConfig
from jobs.methods import method
from jobs.plan.models import ResolvedModel, load_tokenizer, open_view, resolve
from jobs.versions import versions
from lrp_core.families.generic import GENERIC
from lrp_core.method import Method
from lrp_core.readout import rows_for, with_predictions
from lrp_core.types import Batch, Relevance, UnusableRows, UserError
from lrp_core.view import ModelView


@dataclass(frozen=True)
class Answer:
    """One explained prediction: the tokens that the model read, and what each method says of them."""

    tokens: list[str]
    row: Row  # of the view schema, target included
    target: str
    foil: str | None
    relevance: dict[str, Relevance]  # by method, of a batch of one
    number: str = "logit"  # what is explained

    @property
    def what(self) -> str:
        return f"{self.target} rather than {self.foil}" if self.foil is not None else self.target

    @property
    def logits(self) -> list[float]:
        """The logits of the target and, where there is one, of the foil."""
        one = next(iter(self.relevance.values()))
        return [float(each[0]) for each in (one.logit_target, one.logit_foil) if each is not None]


def explain(
    question: Question,
    model_id: str,
    names: str,
    console: Console,
    *,
    html: Path | None = None,
    json_file: Path | None = None,
    by_word: bool = False,
    layers: bool = False,
    dtype: str = "float32",
    device: str = "cpu",
    family: str | None = None,
    adapter: str | None = None,
) -> None:
    """Print the tokens coloured by what speaks for the target (rather than the foil), a line a method.

    `names` are methods separated by commas. Where there are no colours, the numbers are printed; `by_word` sums the
    relevance of a word's pieces, `layers` also prints what becomes of it layer by layer; `family` "generic" explains
    a model that no family describes, `adapter` is a LoRA adapter of it. Raises UserError for unknown models and
    methods, for words that are not one token of the model's, for questions that a model or method has no answer to,
    and for files that cannot be written.
    """
    methods = [method(name.strip()) for name in names.split(",")]
    if family not in (None, GENERIC):
        raise UserError(f"--family is {GENERIC!r} or left out, not {family!r}")
    settings = {"name": _name(model_id), "id": model_id, "family": family, "adapter": adapter}
    resolved = resolve(ModelConfig.model_validate(settings))
    tokenizer = load_tokenizer(resolved.config)
    row = read(question, tokenizer, resolved)
    view = open_view(resolved, dtype, device)
    answers = list(_explained(question, row, methods, view, tokenizer, resolved, layers))
    for one in answers:
        _print(one, methods, model_id, by_word, console)
        for name, relevance in one.relevance.items() if layers else ():
            print_layers(console, name, relevance)
    provenance = Provenance("explain", "", versions(), models=[(model_id, resolved.identity)])
    if html is not None:
        entries = [_entry(one, methods, question, model_id, by_word, at) for at, one in enumerate(answers)]
        _write(html, explain_page(entries, f"{model_id}: {' '.join(one.what for one in answers)}", provenance), console)
    if json_file is not None:
        facts = {"model": model_id, "identity": resolved.identity, "dtype": dtype, "versions": versions()}
        export = {**facts, "text": question.sentence, "predictions": [_plain(one) for one in answers]}
        _write(json_file, json.dumps(export, indent=1, ensure_ascii=False), console)


def _explained(
    question: Question,
    row: Row,
    methods: Sequence[Method],
    view: ModelView,
    tokenizer: Any,
    resolved: ResolvedModel,
    layers: bool,
) -> Iterator[Answer]:
    """The prediction, or one after the other as each is read with what is explained before it."""
    finer: dict[str, Any] = {"boundaries": True} if layers else {}
    for _ in range(question.generate):
        row = dict(with_predictions(view, rows_for(view, [row]))[0])
        batch = Batch.collate([row], pad_id=0)
        try:
            relevance = {one.name: one(view, batch, explanation=question.explanation, **finer) for one in methods}
        except UnusableRows as error:
            raise UserError(f"{resolved.config.id}: {error.detail}") from None
        if view.kind.labels:
            number = "score" if resolved.output == "score" else "logit"
            yield Answer(pieces(tokenizer, row["input_ids"]), row, *_named(row, resolved), relevance, number)
            return
        shown = pieces(tokenizer, [*row["input_ids"], row["target_id"]])
        target = question.target or shown[-1].strip() or repr(shown[-1])
        yield Answer(shown[:-1], row, target, question.foil, relevance)
        if row["target_id"] == tokenizer.eos_token_id:
            return
        row = {
            **row,
            "input_ids": [*row["input_ids"], row["target_id"]],
            "special_mask": [*row["special_mask"], False],
            "position": row["position"] + 1,
            "target_id": None,
        }


def _named(row: Row, resolved: ResolvedModel) -> tuple[str, str | None]:
    """Target and foil of a model of labels in words."""
    if resolved.output == "score":
        return "the score", None
    foil = row["foil_id"]
    return resolved.labels[row["target_id"]], None if foil is None else resolved.labels[foil]


def _lines(one: Answer, methods: Sequence[Method]) -> list[Line]:
    lines = [Line(name, result.tokens[0].double().tolist()) for name, result in one.relevance.items()]
    return [
        beyond_noise(line, one.logits) if info.conserves else line for line, info in zip(lines, methods, strict=True)
    ]


def _grouped(one: Answer, lines: Sequence[Line]) -> tuple[list[str], list[bool], list[Line]]:
    """Words in the place of tokens; the relevance of their pieces is summed."""
    special = one.row["special_mask"]
    groups = words(one.tokens, special)
    texts = ["".join(one.tokens[at] for at in group) for group in groups]
    summed = [line._replace(values=[sum(line.values[at] for at in group) for group in groups]) for line in lines]
    return texts, [special[group[0]] for group in groups], summed


def _print(one: Answer, methods: Sequence[Method], model_id: str, by_word: bool, console: Console) -> None:
    logits = f"{one.number} " + " against ".join(f"{logit:.2f}" for logit in one.logits)
    console.print(f"{model_id}: why {one.what} ({logits})", markup=False)
    tokens, special, lines = one.tokens, one.row["special_mask"], _lines(one, methods)
    if by_word:
        tokens, special, lines = _grouped(one, lines)
    width = max(len(line.label) for line in lines)
    for line in lines:
        if not any(line.values):
            console.print(f"{line.label:{width}}  nothing beyond rounding", markup=False)
            continue
        coloured = terminal(tokens, line.values, special=special)
        numbers = Text(" ".join(f"{token.strip()} {v:+.2f}" for token, v in zip(tokens, line.values, strict=True)))
        console.print(Text(f"{line.label:{width}}  ") + (coloured if console.color_system else numbers))


def _entry(
    one: Answer, methods: Sequence[Method], question: Question, model_id: str, by_word: bool, at: int
) -> dict[str, Any]:
    """A prediction on the page. `at` counts the tokens that were predicted before it, which its text goes on with."""
    tokens, special, lines = one.tokens, one.row["special_mask"], _lines(one, methods)
    if by_word:
        tokens, special, lines = _grouped(one, lines)
    text = question.text
    slot = len(question.before) if PLACE in question.sentence else len(text)
    if question.second is not None:
        text = f"{question.sentence} | {question.second} "
        slot = len(text)
    if at:
        text = "".join(one.tokens) + " "
        slot = len(text)
    facts: dict[str, Any] = {
        "sample_id": f"token {at + 1}",
        "text": text,
        "slot": slot,
        "target": one.target,
        "foil": one.foil,
    }
    return data(tokens, lines, special=special, model=model_id, **facts)


def _plain(one: Answer) -> dict[str, Any]:
    """As JSON, with all digits; `words` are [start, end) of tokens."""
    row = one.row
    methods = [
        {
            "method": name,
            "explained": float(result.explained[0]),
            "residual": None if result.residual is None else float(result.residual[0]),
            "relevance": result.tokens[0].to(torch.float64).tolist(),
        }
        for name, result in one.relevance.items()
    ]
    return {
        "target": one.target,
        "foil": one.foil,
        **{key: row[key] for key in ("target_id", "foil_id", "position", "input_ids", "special_mask")},
        "tokens": one.tokens,
        "words": [[group[0], group[-1] + 1] for group in words(one.tokens, row["special_mask"])],
        "logit_target": one.logits[0],
        "logit_foil": one.logits[1] if one.foil is not None else None,
        "methods": methods,
    }


def _write(path: Path, text: str, console: Console) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}") from None
    console.print(f"written to {path}", markup=False)


def _name(model_id: str) -> str:
    """The last part of an id or path, as far as a configured model may be named so."""
    last = model_id.rstrip("/").rpartition("/")[2]
    return re.sub(r"^[^A-Za-z0-9]+|[^A-Za-z0-9._-]+", "", last) or "model"
