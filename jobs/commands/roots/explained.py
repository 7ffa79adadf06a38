"""`closelook export --relevance`: the relevance of a run as tidy rows, as `closelook explain-file` writes them."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow.parquet as pq

from closelook.evaluation.benchmark.encoding import Pieces, seen
from closelook.evaluation.benchmark.samples import Filled, Prompt, Row
from closelook.evaluation.benchmark.sources.own import ids_of
from closelook.evaluation.explained.rows import (
    DECODER,
    SECOND,
    TEXT,
    ExplainedText,
    MethodRelevance,
    ReadText,
    Tables,
    TokenLocation,
    locate,
    tables,
)
from closelook.evaluation.schema import RELEVANCE, TOKENS, WORDS
from closelook.jobs.config.kept import models_kept
from closelook.jobs.methods import METHODS
from closelook.jobs.plan.models import ResolvedModel, decoder_tokenizer_of, load_tokenizer, resolve
from closelook.jobs.results import Run, load
from closelook.jobs.store import TEMPORARY, Artifact, Store
from closelook.lrp_core.records.types import UserError
from closelook.terminal import complain, say

_AT_ONCE = 2_000  # samples whose rows are in memory together


@dataclass(frozen=True)
class Output:
    """Files of rows by word and by token."""

    path: Path  # rows by word

    def __post_init__(self) -> None:
        """Raise UserError unless `path` ends in .parquet and its folder exists."""
        if self.path.suffix != ".parquet":
            raise UserError(f"rows are written as Parquet: name the file {self.path.stem or 'explained'}.parquet")
        if not self.path.absolute().parent.is_dir():
            raise UserError(f"there is no folder {self.path.absolute().parent}: make it, or name another file")

    @property
    def tokens(self) -> Path:
        """The file of rows by token."""
        return self.path.with_suffix(".tokens.parquet")

    def check_free(self) -> None:
        """Raise UserError if one of the files exists."""
        for path in (self.path, self.tokens):
            if path.exists():
                raise UserError(f"{path} exists already: name another file or remove it")


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield the path of a temporary file, which is renamed to `path` at the end of the block.

    If the block raises an error, the file is removed. One that a killed process leaves is replaced by the next.
    """
    unfinished = path.with_name(f"{TEMPORARY}{path.name}.unfinished")
    try:
        yield unfinished
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
    os.replace(unfinished, path)


class Place(NamedTuple):
    """A model, task and precision, whose relevance is written together."""

    model: str
    task: str
    dtype: str


def write_relevance(store: Store, to: Path) -> None:
    """Write the relevance in the root to `to`, and print a summary.

    Raises UserError as `export_relevance` does, and if `to` exists.
    """
    output = Output(to)
    output.check_free()
    samples, left_out = export_relevance(load(store.root), output)
    for line in left_out:
        complain(line)
    say(f"{samples:,} samples, written to {output.path} (by word) and {output.tokens} (by token)")


def export_relevance(run: Run, output: Output) -> tuple[int, list[str]]:
    """Write the rows of all complete relevance of the run, by word and by token.

    Returns (number of samples with rows, a line for each model and task that is left out because it has no words).
    Raises UserError if the root holds no relevance, or keeps no configuration that names its models.
    """
    artifacts: dict[Place, list[Artifact]] = defaultdict(list)
    for artifact, _ in run.current("relevance"):
        artifacts[Place(artifact.model, artifact.task, artifact.dtype)].append(artifact)
    if not artifacts:
        raise UserError(f"{run.store.root} holds no complete relevance: `closelook status` shows what is missing")
    samples, left_out = 0, []
    with (
        replacing(output.path) as words,
        replacing(output.tokens) as tokens,
        pq.ParquetWriter(words, WORDS) as word_writer,
        pq.ParquetWriter(tokens, TOKENS) as token_writer,
    ):
        for place, of_place in artifacts.items():
            if reason := _no_text(run, place):
                left_out.append(f"{place.task} of {place.model}: {reason}")
                continue
            for count, (by_word, by_token) in _Texts(run, place).rows(of_place):
                samples += count
                word_writer.write_table(by_word)
                token_writer.write_table(by_token)
    return samples, left_out


def _no_text(run: Run, place: Place) -> str | None:
    """The reason why relevance of this place has no rows by word; None if it has."""
    views = run.views("arrow", model=place.model, task=place.task)
    if any(views["pixels"].is_valid().to_pylist()):
        return "images have no words"
    if "answer_ids" in views.column_names and any(views["answer_ids"].is_valid().to_pylist()):
        return "answers are explained by the sources of their prompts"
    return None


@dataclass(frozen=True)
class _Read:
    """A sample with its tokens, as the model reads it."""

    sample: Row  # of schema GENERIC
    view: Row  # of schema VIEW
    tokens: list[str]
    decoder: list[str]  # the tokens that the decoder has read; [] if there is none
    locations: list[TokenLocation]  # of every token, then of the decoder's

    @property
    def names(self) -> list[str]:
        """The name of each row of the user's own file with this content; else the sample's id."""
        return [name or self.sample["sample_id"] for name in ids_of(self.sample["meta"])]


class _Texts:
    """The samples of a place and their tokenizer, from which rows are made."""

    def __init__(self, run: Run, place: Place) -> None:
        self._run, self._place = run, place
        models = models_kept(run.store)
        if place.model not in models:
            raise UserError(
                f"config.yaml of {run.store.root} lacks {place.model}, so its tokenizer is unknown: run `closelook run "
                f"--root {run.store.root} --config CONFIG` with a config that has it"
            )
        config, seed = models[place.model], run.config.seed if run.config is not None else 0
        self._model: ResolvedModel = resolve(config, seed)
        self._tokenizer = load_tokenizer(config)
        self._writer = decoder_tokenizer_of(config) or self._tokenizer
        self._pieces, self._written = Pieces(self._tokenizer), Pieces(self._writer)
        samples = run.samples("arrow", task=place.task)
        self._samples = {row["sample_id"]: row for row in samples.to_pylist()}

    def rows(self, artifacts: Sequence[Artifact]) -> Iterator[tuple[int, Tables]]:
        """(number of samples, tables of their rows by all methods), for _AT_ONCE samples at a time."""
        views = self._run.views("arrow", model=self._place.model, task=self._place.task)
        explanations = self._told(artifacts)
        for start in range(0, views.num_rows, _AT_ONCE):
            some = [row for row in views.slice(start, _AT_ONCE).to_pylist() if row["sample_id"] in explanations]
            texts = []
            for read in self._read(some):
                for text in self._explained(read, explanations[read.view["sample_id"]]):
                    texts += [(name, text) for name in read.names]
            yield len(some), tables(texts, self._place.model, self._place.task)

    def _told(self, artifacts: Sequence[Artifact]) -> dict[str, list[tuple[str, Row]]]:
        """By sample, (method, row of schema RELEVANCE) of every method and explanation."""
        explanations: dict[str, list[tuple[str, Row]]] = defaultdict(list)
        for artifact in sorted(artifacts, key=_order):
            table = self._run.ledger.read(artifact, RELEVANCE)
            lists = {name: table[name].combine_chunks() for name in ("relevance", "decoder_relevance")}
            plain = table.drop_columns(list(lists)).to_pylist()
            for at, row in enumerate(plain):
                for name, values in lists.items():
                    row[name] = values[at].values.to_numpy() if values[at].is_valid else None
                explanations[row["sample_id"]].append((artifact.method, row))
        return explanations

    def _read(self, views: Sequence[Row]) -> Iterator[_Read]:
        """The samples of these views with their tokens and the places of these in the text."""
        samples = [self._samples[view["sample_id"]] for view in views]
        readings = [self._reading(sample) for sample in samples]
        located = locate(self._tokenizer, readings, [view["input_ids"] for view in views])
        for sample, view, locations in zip(samples, views, located, strict=True):
            answer = view["decoder_input_ids"]
            decoder = [] if answer is None else seen(self._writer, answer)
            locations = [*locations, *(TokenLocation(DECODER) for _ in decoder)]
            yield _Read(sample, view, self._pieces.of(view["input_ids"]), decoder, locations)

    def _reading(self, sample: Row) -> ReadText:
        """The text that the tokenizer got for this sample."""
        kind, slot = self._model.kind, sample["slot"]
        if kind.labels or slot is None:
            return ReadText(sample["text"], sample["second"] if kind.labels else None)
        if not kind.slot:
            return ReadText(Prompt.of(sample["text"][:slot]).text)
        filled = Filled.of(sample["text"], slot, self._tokenizer.mask_token)
        return ReadText(filled.text, filled=filled)

    def _explained(self, read: _Read, explanations: Sequence[tuple[str, Row]]) -> Iterator[ExplainedText]:
        """The explained text, once for each decision (predicted label or token) that relevance explains."""
        special = [*read.view["special_mask"], *(at == 0 for at in range(len(read.decoder)))]
        tokens = [*read.tokens, *read.decoder]
        sides = {TEXT: read.sample["text"], SECOND: read.sample["second"] or ""}
        by_decision: dict[int | None, list[tuple[str, Row]]] = defaultdict(list)
        for method, row in explanations:
            by_decision[row["predicted_id"]].append((method, row))
        for rows in by_decision.values():
            _, first = rows[0]
            decision, against = self._decided(read, first)
            by_method = [_relevance_of(method, row) for method, row in rows]
            probability = next(filter(None, (self._probability(row) for _, row in rows)), None)
            yield ExplainedText(sides, tokens, special, read.locations, decision, against, probability, by_method)

    def _decided(self, read: _Read, row: Row) -> tuple[str | None, str | None]:
        """(explained label or word, the one that it is contrasted with); None for what does not exist."""
        if self._model.output == "score":
            return None, None
        view, is_predicted = read.view, row["predicted_id"] is not None
        target = row["predicted_id"] if is_predicted else view["target_id"]
        if self._model.kind.labels:
            labels = self._model.labels
            foil = 1 - target if len(labels) == 2 else view["foil_id"]
            return labels[target], None if foil is None else labels[foil]
        before = view["input_ids"] if view["decoder_input_ids"] is None else view["decoder_input_ids"]
        foil = view["foil_id"]
        return self._next_word(before, target), None if foil is None else self._next_word(before, foil)

    def _next_word(self, before: Sequence[int], token: int) -> str:
        """The text that `token` adds after the tokens `before`."""
        return self._written.of([*before, token])[-1].strip()

    def _probability(self, row: Row) -> float | None:
        """The probability of a binary classifier's decision, which follows from both logits; None for other models."""
        if not self._model.kind.labels or len(self._model.labels) != 2 or row["logit_foil"] is None:
            return None
        return float(np.exp(-np.logaddexp(0, row["logit_foil"] - row["logit_target"])))


def _order(artifact: Artifact) -> tuple[int, str]:
    """A sort key: methods in the order of the registry, then those that no installed package defines."""
    known = list(METHODS)
    return known.index(artifact.method) if artifact.method in known else len(known), artifact.method


def _relevance_of(method: str, row: Mapping[str, Any]) -> MethodRelevance:
    """The relevance in a row of schema RELEVANCE, tokens of the decoder appended."""
    parts = [row["relevance"], row["decoder_relevance"]]
    relevance = np.concatenate([part for part in parts if part is not None])
    conserves = row["residual"] is not None
    return MethodRelevance(method, row["explanation"], row["embedding"], row["explained"], relevance, conserves)
