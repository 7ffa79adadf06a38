"""Every method by name: ``METHODS["attnlrp"](view, batch) -> Relevance``.

Installed packages add methods through the entry points `closelook.methods`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from alti import METHODS as ALTI_METHODS
from lrp_core import METHODS as CORE_METHODS
from lrp_core import Method
from lrp_core.plugins import Extended
from lrp_core.registry import Registry
from lrp_core.types import UnsupportedMethod, nearest

if TYPE_CHECKING:
    from jobs.config import MethodConfig, RunConfig

METHODS: Extended[Method] = Extended(
    Registry("method", *CORE_METHODS.values(), *ALTI_METHODS.values()), "closelook.methods", Method
)


def method(name: str) -> Method:
    """Raises UnsupportedMethod with the nearest name for an unknown one."""
    if name not in METHODS:
        raise UnsupportedMethod(f"unknown method {name!r}{nearest(name, METHODS)}")
    return METHODS[name]


def bound(entry: MethodConfig) -> Method:
    """One of a config's methods. Raises UserError for an unknown method or option, or a value that does not fit."""
    return method(entry.method).configured(entry.name, **entry.options)


def configured(config: RunConfig) -> dict[str, Method]:
    """The methods of a run and of its models, by their names there, options bound. Raises as :func:`bound`."""
    return {entry.name: bound(entry) for entry in config.every_method()}
