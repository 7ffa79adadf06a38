"""One module per kind of layer, with its rules; a `Composite` says which of them make a method."""

from lrp_core.rules.activation import ACTIVATIONS, Activation, activate, activation, soft_cap
from lrp_core.rules.bilinear import as_gate, attend_with, share
from lrp_core.rules.composite import ATTNLRP, COMPOSITES, LRP, PLAIN, changed
from lrp_core.rules.latent import KEPT, BiasTap, HeadRelevance, LayerRelevance, NeuronRelevance, Tap
from lrp_core.rules.linear import project, values_only
from lrp_core.rules.normalization import inverse_rms, normalise
from lrp_core.rules.records import Composite, LinearRule, LinearRules, SoftmaxRule
from lrp_core.rules.softmax import attend_openly
from lrp_core.rules.switch import Switch

__all__ = [
    "ACTIVATIONS",
    "ATTNLRP",
    "COMPOSITES",
    "KEPT",
    "LRP",
    "PLAIN",
    "Activation",
    "BiasTap",
    "Composite",
    "HeadRelevance",
    "LayerRelevance",
    "LinearRule",
    "LinearRules",
    "NeuronRelevance",
    "SoftmaxRule",
    "Switch",
    "Tap",
    "activate",
    "activation",
    "as_gate",
    "attend_openly",
    "attend_with",
    "changed",
    "inverse_rms",
    "normalise",
    "project",
    "share",
    "soft_cap",
    "values_only",
]
