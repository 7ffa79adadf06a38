"""Vector-based methods (ALTI, ALTI-Logit, GlobEnc, DecompX), also for texts whose vectors do not all fit into memory.

Their records import no torch; other names are imported when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from closelook.alti.records import METHODS
from closelook.lrp_core.lazy import lazily

if TYPE_CHECKING:
    from closelook.alti.logit import LogitContributions
    from closelook.alti.methods import AltiRelevance, explain_many
    from closelook.alti.planner import MemoryNeeds, MemoryPlan, predict
    from closelook.alti.transformed import Chunk

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
    "AltiRelevance": "closelook.alti.methods",
    "explain_many": "closelook.alti.methods",
    "MemoryNeeds": "closelook.alti.planner",
    "MemoryPlan": "closelook.alti.planner",
    "predict": "closelook.alti.planner",
    "Chunk": "closelook.alti.transformed",
    "LogitContributions": "closelook.alti.logit",
}
__getattr__, __dir__ = lazily(__name__, _HOMES)
