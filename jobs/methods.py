"""Every method by name: ``METHODS["attnlrp"](view, batch) -> Relevance``."""

from __future__ import annotations

from collections.abc import Mapping

from alti import METHODS as ALTI_METHODS
from jobs.configfile import nearest
from lrp_core import METHODS as CORE_METHODS
from lrp_core.types import MethodInfo, UnsupportedMethod

METHODS: Mapping[str, MethodInfo] = {**CORE_METHODS, **ALTI_METHODS}


def method(name: str) -> MethodInfo:
    """Raises UnsupportedMethod with the nearest name for an unknown one."""
    if name not in METHODS:
        raise UnsupportedMethod(f"unknown method {name!r}{nearest(name, METHODS)}")
    return METHODS[name]
