"""Vector-based methods, ALTI, ALTI-Logit, GlobEnc and DecompX, at lengths at which not every vector fits at once.

Their records come without torch; the other names are imported when first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from alti.records import METHODS
from lrp_core.lazy import lazily

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


alti, alti_logit = METHODS["alti"], METHODS["alti_logit"]

__getattr__, __dir__ = lazily(
    __name__,
    {
        **dict.fromkeys(("AltiRelevance", "explain_many"), "alti.methods"),
        **dict.fromkeys(("MemoryNeeds", "MemoryPlan", "predict"), "alti.planner"),
        "Chunk": "alti.transformed",
        "LogitContributions": "alti.logit",
    },
)
