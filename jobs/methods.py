"""Every method by name: ``METHODS["attnlrp"](view, batch) -> Relevance``.

Installed packages add methods through the entry points `closelook.methods`.

>>> METHODS["attnlrp"].label, METHODS["attnlrp"].explanations
('AttnLRP', ('contrastive', 'target', 'log_prob'))
"""

from __future__ import annotations

from collections.abc import Collection

from closelook.alti import METHODS as ALTI_METHODS
from closelook.evaluation.ablations.methods import METHODS as ABLATION_METHODS
from closelook.lrp_core import METHODS as CORE_METHODS
from closelook.lrp_core import Method
from closelook.lrp_core.methods.records import PLANTED
from closelook.lrp_core.records.capabilities import Capability
from closelook.lrp_core.records.registry import Registry
from closelook.lrp_core.records.types import UnsupportedMethod, nearest

_OURS = (*CORE_METHODS.values(), *ALTI_METHODS.values(), *ABLATION_METHODS.values())
METHODS: Registry[Method] = Registry("method", *_OURS, group="closelook.methods", record_class=Method)


def method(name: str) -> Method:
    """The method of this name. Raises UnsupportedMethod for an unknown name, with the nearest, and for planted methods.

    Planted methods serve as negative controls, and are computed by `controls` alone.
    """
    refuse_planted(name)
    if name not in METHODS:
        raise UnsupportedMethod(f"unknown method {name!r}{nearest(name, METHODS)}")
    return METHODS[name]


def applicable(capabilities: Collection[Capability]) -> list[Method]:
    """The methods that give relevance of tokens for models with these `capabilities`, in the order of the registry."""
    return [record for record in METHODS.values() if record.applies(capabilities)]


def refuse_planted(name: str) -> None:
    """Raise UnsupportedMethod if `name` is that of a planted method."""
    if name in PLANTED:
        raise UnsupportedMethod(f"{name!r} is a planted method, which `controls` always computes: leave it out")
