"""Coreference clusters by fastcoref, which is imported only if it is needed, since it changes the logging of all."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

import datasets
from transformers import AutoConfig

from evaluation.benchmark.samples import Malformed
from lrp_core.records.types import UserError

if TYPE_CHECKING:
    from spacy.tokens import Doc, Token

Mention = tuple[int, int]  # [start, end) in tokens of a document


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

    def __init__(self, model_id: str, device: str | None = None) -> None:
        """Loads the weights; the default device is a GPU if there is one. Raises UserError as :func:`check` does."""
        check(model_id)
        root = logging.getLogger()
        handlers, level = list(root.handlers), root.level
        from fastcoref import FCoref
        from fastcoref.coref_models.modeling_fcoref import FCorefModel

        root.handlers[:], root.level = handlers, level  # importing fastcoref changes the root logger
        logging.getLogger("fastcoref").setLevel(logging.ERROR)  # it warns about every input of words instead of text
        FCorefModel.all_tied_weights_keys = {}  # transformers 5 needs this attribute of every model
        datasets.disable_progress_bars()
        self._model = FCoref(model_id, device=device, nlp=None, enable_progress_bar=False)

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
