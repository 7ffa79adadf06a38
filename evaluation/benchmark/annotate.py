"""Finds evidence where sources have none: the head of a verb's subject, a reflexive's antecedent, a determiner's noun.

A sample whose evidence is not found becomes a reject with the reason; nothing is guessed. Antecedents are found by
fastcoref, if a model is given; it is imported only then, since it changes the logging of all.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import datasets
import spacy
from transformers import AutoConfig

from closelook.evaluation.benchmark.samples import Filled, Malformed, Row, meta_of, reject, with_evidence
from closelook.evaluation.benchmark.syntax import (
    binder,
    noun,
    of_determiner,
    of_head,
    of_reflexive,
    of_verb,
    subject,
    token_at,
)
from closelook.evaluation.tasks.record import Finds
from closelook.lrp_core.records.types import UserError

if TYPE_CHECKING:
    from spacy.tokens import Doc, Token

Mention = tuple[int, int]  # [start, end) in tokens of a document
_UNUSED = ["ner", "lemmatizer", "entity_linker", "entity_ruler", "textcat", "textcat_multilabel", "senter"]
_BATCH = 256  # sentences


def pipeline(candidates: Sequence[str]) -> str:
    """The first of `candidates`, names of spaCy pipelines, that is an installed package or a directory.

    Raises UserError, with a command that installs one, if none is.
    """
    for name in candidates:
        if spacy.util.is_package(name) or (Path(name) / "meta.json").is_file():
            return name
    suggestion = next((name for name in reversed(candidates) if "/" not in name), "en_core_web_sm")
    tried = f" (tried {', '.join(candidates)})" if candidates else ""
    raise UserError(f"no spaCy pipeline to find evidence with{tried}; run `python -m spacy download {suggestion}`")


def identity(spacy_name: str, coref_id: str | None) -> str:
    """The name of the annotator that finds the evidence, as `meta.annotator` has it.

    Raises UserError for a pipeline without a parser, or a coreference model that cannot be read.
    """
    folder = Path(spacy_name) if Path(spacy_name).is_dir() else spacy.util.get_package_path(spacy_name)
    meta = json.loads((folder / "meta.json").read_text())
    if "parser" not in meta["pipeline"]:
        raise UserError(f"the spaCy pipeline {spacy_name} has no parser; run `python -m spacy download en_core_web_sm`")
    parser = f"{meta['lang']}_{meta['name']} {meta['version']}"
    if coref_id is None:
        return parser
    check(coref_id)
    return f"{coref_id}, {parser}"


class Annotator:
    """Finds the evidence of samples by a spaCy pipeline, and antecedents by a coreference model if one is given."""

    def __init__(self, spacy_name: str, coref_id: str | None = None) -> None:
        """Loads the pipeline and the model. Raises UserError as :func:`identity` does."""
        self._name = identity(spacy_name, coref_id)
        self._nlp = spacy.load(spacy_name, exclude=_UNUSED)
        self._coref = None if coref_id is None else Coreference(coref_id)

    def annotate(self, rows: Sequence[Row], kind: Finds) -> list[Row]:
        """Generic rows with their evidence, or rejects, in the order of `rows`."""
        kinds = [meta_of(row)["evidence"] if kind == "sample" else kind for row in rows]
        filled = [Filled.of(row["text"], row["slot"], row["target"]) for row in rows]
        sentences = [text.text + meta_of(row).get("rest", "") for text, row in zip(filled, rows, strict=True)]
        with self._nlp.memory_zone():  # frees the strings that spaCy keeps of new words
            docs = list(self._nlp.pipe(sentences, batch_size=_BATCH))
            clusters: Sequence[list[list[Mention]] | None] = [None] * len(docs)
            if "antecedent" in kinds and self._coref is not None:
                clusters = self._coref.clusters(docs)
            return [self._one(*each) for each in zip(kinds, rows, filled, docs, clusters, strict=True)]

    def _one(self, kind: str, row: Row, filled: Filled, doc: Doc, clusters: list[list[Mention]] | None) -> Row:
        """`row` with its evidence of this `kind`, or a reject."""
        try:
            word = token_at(doc, *filled.word)
            if kind == "subject":
                head, takes = subject(word), of_verb(row["target"], row["foil"])
            elif kind == "noun":
                head, takes = noun(word), of_determiner(row["target"])
            else:
                head = binder(word) if clusters is None else antecedent(doc, word, clusters)
                takes = of_reflexive(row["target"])
            has = of_head(head)
            evidence = filled.origin((head.idx, head.idx + len(head)))
            agrees = None if has is None else has == takes
            return with_evidence(row, [evidence], annotator=self._name, head=head.text, agrees=agrees)
        except Malformed as error:
            return reject("annotate", error.reason, sample_id=row["sample_id"], detail=error.detail)


def check(model_id: str) -> None:
    """Raises UserError unless `model_id` is a local directory or hub id of a fastcoref model that can be read."""
    try:
        config = AutoConfig.from_pretrained(model_id, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise UserError(
            f"no coreference model {model_id!r} ({' '.join(str(error).split())[:100]}); get it with "
            f"`hf download {model_id}`, give a local directory, or set `coref: null` to use the parse alone"
        ) from error
    if "coref_head" not in config.to_dict():
        raise UserError(
            f"{model_id} is not a fastcoref model, since its config has no coref_head: give the id or folder of one, "
            "or set `coref: null` to use the parse alone"
        )


class Coreference:
    """A fastcoref model. Documents are passed as the parser's tokens, so that mentions are spans of these."""

    def __init__(self, model_id: str) -> None:
        """Loads the weights, onto a GPU if there is one. Raises UserError as :func:`check` does."""
        check(model_id)
        root = logging.getLogger()
        handlers, level = list(root.handlers), root.level
        from fastcoref import FCoref
        from fastcoref.coref_models.modeling_fcoref import FCorefModel

        root.handlers[:], root.level = handlers, level  # importing fastcoref changes the root logger
        logging.getLogger("fastcoref").setLevel(logging.ERROR)  # it warns about every input of words instead of text
        FCorefModel.all_tied_weights_keys = {}  # transformers 5 needs this attribute of every model
        datasets.disable_progress_bars()
        self._model = FCoref(model_id, nlp=None, enable_progress_bar=False)

    def clusters(self, docs: Sequence[Doc]) -> list[list[list[Mention]]]:
        """The clusters of mentions of each document; [] for a document that is longer than the model takes."""
        by_document: list[list[list[Mention]]] = [[] for _ in docs]
        if not docs:
            return by_document
        for result in self._model.predict([[token.text for token in doc] for doc in docs], is_split_into_words=True):
            for cluster in result.get_clusters(as_strings=False):
                # None is a mention that touches the template's special tokens
                by_document[result.text_idx].append([mention for mention in cluster if mention is not None])
        return by_document


def antecedent(doc: Doc, reflexive: Token, clusters: list[list[Mention]]) -> Token:
    """The head of the nearest mention before `reflexive` in its cluster. Raises Malformed when there is none."""
    for cluster in clusters:
        if (reflexive.i, reflexive.i + 1) in cluster:
            before = [doc[start:end] for start, end in cluster if end <= reflexive.i]
            if before:
                return max(before, key=lambda mention: mention.end).root
    raise Malformed("no antecedent by coreference", reflexive.text)
