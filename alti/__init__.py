"""ALTI and ALTI-Logit for models and lengths at which every transformed vector at once would not fit anywhere."""

from alti.logit import LogitContributions
from alti.methods import METHODS, AltiRelevance, alti, alti_logit, explain_many
from alti.planner import Geometry, Plan, predict
from alti.transformed import Chunk

__all__ = [
    "METHODS",
    "AltiRelevance",
    "Chunk",
    "Geometry",
    "LogitContributions",
    "Plan",
    "alti",
    "alti_logit",
    "explain_many",
    "predict",
]
