"""The table of vector-based methods. Imports no torch."""

from __future__ import annotations

from typing import Any

from closelook.lrp_core.methods.record import Method
from closelook.lrp_core.records.capabilities import (
    ATTENTION,
    ONE_STACK,
    PLAIN_MLPS,
    PLAIN_SUMS,
    POST_NORM,
    PRE_NORM,
)
from closelook.lrp_core.records.explained import NO_CHOICE
from closelook.lrp_core.records.option import Option
from closelook.lrp_core.records.registry import Registry


def _vectors(name: str, label: str, function: str, **record: Any) -> Method:
    """The record of a vector-based method, by default for post-norm models, without a choice of embeddings."""
    of_all: dict[str, Any] = {
        "family": "vector",
        "needs": (ATTENTION, ONE_STACK, POST_NORM),
        "embeddings": NO_CHOICE,
        "forwards": 2.5,
        "instead": "alti_logit",
    }
    return Method(name, version=1, label=label, explain=f"closelook.alti.{function}", **of_all | record)


METHODS: Registry[Method] = Registry(
    "method",
    _vectors(
        "alti",
        "ALTI",
        "methods:explain_many",
        gives=("tokens", "layers"),
        explanations=NO_CHOICE,
        conserves=False,
        passes="alti",
        order=20,
        column="alti_logit",
        about="L1 contributions of tokens to tokens, multiplied over layers",
        source="Ferrando et al. 2022",
        weak="Expected: it does not know which prediction is explained, and a token contributes most to itself.",
    ),
    _vectors(
        "alti_logit",
        "ALTI-Logit",
        "methods:explain_many",
        options=(
            Option(
                "initial",
                True,
                "give the predicted position what its own embeddings add to the logit; false: as published",
            ),
        ),
        needs=(ATTENTION, ONE_STACK, PRE_NORM, PLAIN_SUMS),
        spans="together",
        gives=("tokens", "heads"),
        passes="alti",
        instead="alti",
        order=10,
        colour="#cc79a7",
        about="logit updates of every attention block, moved to the inputs through ALTI maps",
        source="Ferrando et al. 2023; Close Look B.1",
        weak="Expected: the last token is given what its own embedding adds; initial: false leaves that out.",
    ),
    _vectors(
        "globenc",
        "GlobEnc",
        "methods:globenc",
        options=(
            Option(
                "normalise",
                True,
                "scale the rows of a layer's map to a sum of 1; false: multiply the norms as they are, as the "
                "authors' code does",
                added_later=True,
            ),
        ),
        gives=("tokens", "layers"),
        explanations=NO_CHOICE,
        conserves=False,
        order=22,
        about="norms of what tokens bring to tokens behind both norms of a block, multiplied over layers",
        source="Modarressi et al. 2022",
    ),
    _vectors(
        "decompx",
        "DecompX",
        "decompx:explain_many",
        options=(
            Option(
                "score",
                "norm",
                "relevance for a regressor's score: norms of the last vectors, as published, or what they add to it",
                choices=("norm", "parts"),
            ),
        ),
        needs=(ATTENTION, ONE_STACK, POST_NORM, PLAIN_MLPS),
        forwards=lambda _, tokens: 1.5 * tokens,
        order=15,
        about="every state as a sum of one vector for each input token, through all blocks and the head",
        source="Modarressi et al. 2023",
    ),
)
