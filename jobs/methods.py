"""Every method by name: ``METHODS["attnlrp"](view, batch) -> Relevance``.

Installed packages add methods through the entry points `closelook.methods`.
"""

from __future__ import annotations

from alti import METHODS as ALTI_METHODS
from lrp_core import METHODS as CORE_METHODS
from lrp_core import Method
from lrp_core.methods.planted_records import PLANTED
from lrp_core.plugins import Extended
from lrp_core.registry import Registry
from lrp_core.types import UnsupportedMethod, nearest

METHODS: Extended[Method] = Extended(
    Registry("method", *CORE_METHODS.values(), *ALTI_METHODS.values()), "closelook.methods", Method
)


def method(name: str) -> Method:
    """Raises UnsupportedMethod with the nearest name for an unknown one, and for one that is planted."""
    refuse_planted(name)
    if name not in METHODS:
        raise UnsupportedMethod(f"unknown method {name!r}{nearest(name, METHODS)}")
    return METHODS[name]


def refuse_planted(name: str) -> None:
    """Raises UnsupportedMethod for the name of a method that is planted."""
    if name in PLANTED:
        raise UnsupportedMethod(f"{name!r} names a method that is planted among the `controls`, which show it anyway")
