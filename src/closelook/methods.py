"""Every method by name: ``METHODS["attnlrp"](view, batch) -> Relevance``.

Installed packages add methods through the entry points `closelook.methods`. Users write methods as
`lrp,attnlrp:composite=vit,integrated_gradients:steps=25`: each option follows the name of its method after a colon.
Values are YAML; commas and colons in brackets separate nothing: `attnlrp:composite={linear: {gamma: 0.1}}`.

>>> METHODS["attnlrp"].label, METHODS["attnlrp"].explanations
('AttnLRP', ('contrastive', 'target', 'log_prob'))
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

import yaml

from closelook.alti import METHODS as ALTI_METHODS
from closelook.evaluation.ablations.methods import METHODS as ABLATION_METHODS
from closelook.lrp_core import METHODS as CORE_METHODS
from closelook.lrp_core import Method
from closelook.lrp_core.methods.records import PLANTED
from closelook.lrp_core.records.capabilities import Capability
from closelook.lrp_core.records.registry import Registry
from closelook.lrp_core.records.types import UnsupportedMethod, UserError, nearest

_DEPTH = {"[": 1, "{": 1, "]": -1, "}": -1}  # change of the depth of brackets
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


def parse_method(text: str) -> Method:
    """The method that a user wrote; with options, `text` is its name. Raises UserError for an invalid text."""
    name, *options = (part.strip() for part in _split(text, ":"))
    record = method(name)
    values = {}
    for option in options:
        key, equals, value = option.partition("=")
        if not equals:
            raise UserError(f"method {text!r}: its options are written {name}:OPTION=VALUE, not {option!r}")
        try:
            values[key.strip()] = yaml.safe_load(value)
        except yaml.YAMLError:
            raise UserError(f"method {text!r}: the value is not YAML") from None
    return record.configured(text.strip(), **values) if values else record


def parse_methods(text: str) -> list[Method]:
    """The methods in `text`, which commas separate. Raises UserError as `parse_method`, and for duplicates."""
    methods = [parse_method(part.strip()) for part in _split(text, ",")]
    names = [record.name for record in methods]
    for name in names:
        if names.count(name) > 1:
            raise UserError(f"method {name!r} is named twice")
    return methods


def _split(text: str, separator: str) -> Iterator[str]:
    """The parts of `text` between separators outside of brackets."""
    depth, part = 0, ""
    for letter in text:
        depth += _DEPTH.get(letter, 0)
        if letter == separator and depth == 0:
            yield part
            part = ""
        else:
            part += letter
    yield part
