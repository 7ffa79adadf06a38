"""Vector-based methods (ALTI, ALTI-Logit, GlobEnc, DecompX), also for texts whose vectors do not all fit into memory.

Their records import no torch; other names are imported when they are first used.
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

_HOMES = {
    "AltiRelevance": "alti.methods",
    "explain_many": "alti.methods",
    "MemoryNeeds": "alti.planner",
    "MemoryPlan": "alti.planner",
    "predict": "alti.planner",
    "Chunk": "alti.transformed",
    "LogitContributions": "alti.logit",
}
__getattr__, __dir__ = lazily(__name__, _HOMES)
