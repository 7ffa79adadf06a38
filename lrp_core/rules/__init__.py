"""A module for each kind of layer with its rules; a `Composite` combines rules to a method. Imports no torch."""

from closelook.lrp_core.rules.composite import ATTNLRP, COMPOSITES, LRP, PLAIN, changed
from closelook.lrp_core.rules.records import Composite, LinearRule, LinearRules, SoftmaxRule

__all__ = [
    "ATTNLRP",
    "COMPOSITES",
    "LRP",
    "PLAIN",
    "Composite",
    "LinearRule",
    "LinearRules",
    "SoftmaxRule",
    "changed",
]
