"""Vector-based methods, ALTI, ALTI-Logit, GlobEnc and DecompX, at lengths at which not every vector fits at once.

The table of their records stands here, without torch; the other names are imported when first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lrp_core.capabilities import ATTENTION, ONE_STACK, PLAIN_SUMS, POST_NORM, PRE_NORM, RULES
from lrp_core.lazy import lazily
from lrp_core.method import Method
from lrp_core.option import Option
from lrp_core.registry import Registry

if TYPE_CHECKING:
    from alti.logit import LogitContributions
    from alti.methods import AltiRelevance, explain_many
    from alti.planner import MemoryNeeds, MemoryPlan, predict
    from alti.transformed import Chunk

__all__ = [
    "METHODS",
    "AltiRelevance",
    "Chunk",
    "LogitContributions",
    "MemoryNeeds",
    "MemoryPlan",
    "alti",
    "alti_logit",
    "explain_many",
    "predict",
]

alti = Method(
    "alti",
    version=1,
    label="ALTI",
    explain="alti.methods:explain_many",
    family="vector",
    needs=(ATTENTION, ONE_STACK, POST_NORM),
    gives=("tokens", "layers"),
    explanations=("none",),
    embeddings=("none",),
    conserves=False,
    passes="alti",
    forwards=2.5,
    instead="alti_logit",
    order=20,
    column="alti_logit",
    about="L1 contributions of tokens to tokens, multiplied over layers",
    source="Ferrando et al. 2022",
    weak="That is no fault: it does not know which prediction is explained, and a token contributes most to itself.",
)
alti_logit = Method(
    "alti_logit",
    version=1,
    label="ALTI-Logit",
    explain="alti.methods:explain_many",
    family="vector",
    options=(
        Option("initial", True, "give the predicted position what its embeddings add to the logit; false as published"),
    ),
    needs=(ATTENTION, ONE_STACK, PRE_NORM, PLAIN_SUMS),
    gives=("tokens", "heads"),
    embeddings=("none",),
    passes="alti",
    forwards=2.5,
    instead="alti",
    order=10,
    colour="#cc79a7",
    about="logit updates of every attention block, moved to the inputs through ALTI maps",
    source="Ferrando et al. 2023; Close Look B.1",
    weak="That is no fault: the last token is given what its own embedding adds; initial: false leaves that out.",
)
globenc = Method(
    "globenc",
    version=1,
    label="GlobEnc",
    explain="alti.methods:globenc",
    family="vector",
    options=(
        Option(
            "normalise",
            True,
            "bring the rows of a layer's map to a sum of 1; false multiplies norms as they are, as the authors' code",
            added_later=True,
        ),
    ),
    needs=(ATTENTION, ONE_STACK, POST_NORM),
    gives=("tokens", "layers"),
    explanations=("none",),
    embeddings=("none",),
    conserves=False,
    forwards=2.5,
    instead="alti_logit",
    order=22,
    about="norms of what tokens bring to tokens behind both norms of a block, multiplied over layers",
    source="Modarressi et al. 2022",
)
decompx = Method(
    "decompx",
    version=1,
    label="DecompX",
    explain="alti.decompx:explain_many",
    family="vector",
    options=(
        Option(
            "score",
            "norm",
            "of a regression: the norms of the last vectors, as published, or what they add to the score",
            choices=("norm", "parts"),
        ),
    ),
    needs=(ATTENTION, ONE_STACK, POST_NORM, RULES),
    embeddings=("none",),
    forwards=lambda _, tokens: 1.5 * tokens,
    instead="alti_logit",
    order=15,
    about="every state as a sum of one vector for each input token, through all blocks and the head",
    source="Modarressi et al. 2023",
)
METHODS: Registry[Method] = Registry("method", alti, alti_logit, globenc, decompx)

__getattr__ = lazily(
    __name__,
    {
        **dict.fromkeys(("AltiRelevance", "explain_many"), "methods"),
        **dict.fromkeys(("MemoryNeeds", "MemoryPlan", "predict"), "planner"),
        "Chunk": "transformed",
        "LogitContributions": "logit",
    },
)
