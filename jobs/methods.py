"""Every method by name: ``METHODS["attnlrp"](view, batch) -> Relevance``."""

from __future__ import annotations

from alti import METHODS as ALTI_METHODS
from lrp_core import METHODS as CORE_METHODS
from lrp_core import Method
from lrp_core.registry import Registry
from lrp_core.types import UnsupportedMethod, nearest

METHODS: Registry[Method] = Registry("method", *CORE_METHODS.values(), *ALTI_METHODS.values())


def method(name: str) -> Method:
    """Raises UnsupportedMethod with the nearest name for an unknown one."""
    if name not in METHODS:
        raise UnsupportedMethod(f"unknown method {name!r}{nearest(name, METHODS)}")
    return METHODS[name]
