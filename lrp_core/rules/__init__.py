"""One small unit per rule; a `Composite` says which rules make a method."""

from lrp_core.rules.activation import ACTIVATIONS, Activation, activate, activation
from lrp_core.rules.bilinear import attend_with, share
from lrp_core.rules.composite import ATTNLRP, LRP, PLAIN, Composite, Switch
from lrp_core.rules.heads import HeadPooling, HeadRelevance
from lrp_core.rules.linear import ValuesOnly
from lrp_core.rules.normalization import inverse_rms, normalise

__all__ = [
    "ACTIVATIONS",
    "ATTNLRP",
    "LRP",
    "PLAIN",
    "Activation",
    "Composite",
    "HeadPooling",
    "HeadRelevance",
    "Switch",
    "ValuesOnly",
    "activate",
    "activation",
    "attend_with",
    "inverse_rms",
    "normalise",
    "share",
]
