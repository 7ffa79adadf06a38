"""`closelook config`: prints the effective configuration, or explains keys."""

from __future__ import annotations

import types
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import yaml
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from closelook.jobs.config import MethodConfig, RunConfig
from closelook.jobs.config.base import section_in
from closelook.lrp_core.records.types import UserError, nearest
from closelook.terminal import say, say_table

_IN_YAML = {Any: "anything", str: "text", bool: "true or false", int: "whole number", float: "number"}


@dataclass(frozen=True)
class Key:
    """A config key and its documentation."""

    path: str  # dotted; NAME stands for a name that the user chooses, `[]` for an entry of a list
    takes: str  # its type, in the words of YAML
    default: str  # as YAML; "required" if there is none
    about: str


def keys(record: type[BaseModel] = RunConfig, before: str = "") -> Iterator[Key]:
    """All keys of a section and of the sections within it, in the order of their fields; paths begin with `before`."""
    for name, field in record.model_fields.items():
        path = f"{before}{name}"
        about = " ".join((field.description or "").split())
        yield Key(path, _takes(field.annotation), _default(field), about)
        section, inside = section_in(field.annotation)
        if section is not None and section is not MethodConfig:
            yield from keys(section, f"{path}{inside}.")


def _takes(annotation: Any) -> str:
    """A type annotation in the words of YAML, such as "list of: text, or null"."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if annotation is types.NoneType:
        return "null"
    if origin is Literal:
        return " or ".join(map(str, parts))
    if origin in (Union, types.UnionType):
        words = [_takes(part) for part in parts]
        return (", or " if ": " in words[0] else " or ").join(words)
    if origin is tuple and parts[1:] == (...,):
        return f"list of: {_takes(parts[0])}"
    if origin is tuple:
        return f"[{', '.join(map(_takes, parts))}]"
    if origin is dict:
        return f"mapping to: {_takes(parts[1])}"
    if origin is Annotated:
        return _takes(parts[0])
    if annotation is MethodConfig:
        return "method"
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "section"
    return _IN_YAML.get(annotation, str(annotation))


def _default(field: FieldInfo) -> str:
    """The default of a field as YAML; "required" if there is none, "as below" for a section."""
    if isinstance(field.json_schema_extra, dict):
        return str(field.json_schema_extra["default"])
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    if isinstance(value, BaseModel):
        return "as below"
    if isinstance(value, tuple):
        value = list(value)
    return yaml.safe_dump(value, default_flow_style=True, width=1000).removesuffix("...\n").strip()


def show(config: RunConfig) -> None:
    """Print the configuration as YAML that `--config` takes: defaults filled in, overrides applied."""
    text = yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)
    say(text, end="")


def show_keys(word: str) -> None:
    """Print the keys whose path contains `word`. Raises UserError, with the nearest key, if there are none."""
    shown = [(key.path, key.takes, key.default, key.about) for key in keys() if word in key.path]
    if not shown:
        names = [key.path for key in keys()]
        near = nearest(word, [*names, *(name.rpartition(".")[2] for name in names)])
        advice = near if "mean" in near else ": `closelook config --keys ''` lists all"
        raise UserError(f"no key has {word!r} in its name{advice}")
    say_table(("key", "takes", "default", "what it is"), shown)
