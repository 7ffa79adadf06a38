"""One small unit per rule; a `Composite` says which rules make a method."""

from lrp_core.rules.activation import ACTIVATIONS, Activation, ActivationRule, activation
from lrp_core.rules.bilinear import AttentionRule, SignalRule
from lrp_core.rules.composite import ATTNLRP, LRP, PLAIN, Composite, Switch
from lrp_core.rules.heads import HeadPooling, HeadRelevance
from lrp_core.rules.normalization import LayerNormRule, RMSNormRule, inverse_rms

__all__ = [
    "ACTIVATIONS",
    "ATTNLRP",
    "LRP",
    "PLAIN",
    "Activation",
    "ActivationRule",
    "AttentionRule",
    "Composite",
    "HeadPooling",
    "HeadRelevance",
    "LayerNormRule",
    "RMSNormRule",
    "SignalRule",
    "Switch",
    "activation",
    "inverse_rms",
]
