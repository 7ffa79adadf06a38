"""Vector-based methods (ALTI, ALTI-Logit, GlobEnc, DecompX), also for texts whose vectors do not all fit into memory.

Their records import no torch; other names are imported when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from closelook.alti.records import METHODS
from closelook.lrp_core.lazy import lazily

if TYPE_CHECKING:
    from closelook.alti.methods import AltiRelevance, explain_many

__all__ = ["METHODS", "AltiRelevance", "alti", "alti_logit", "explain_many"]


alti, alti_logit = METHODS["alti"], METHODS["alti_logit"]

__getattr__, __dir__ = lazily(__name__, dict.fromkeys(("AltiRelevance", "explain_many"), "closelook.alti.methods"))
