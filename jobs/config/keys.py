"""Every key of a configuration, from its records: what one means is the comment beside it there."""

from __future__ import annotations

import ast
import inspect
import textwrap
import types
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import yaml
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from jobs.config.models import MethodConfig
from jobs.config.run import RunConfig


@dataclass(frozen=True)
class Key:
    """One setting. `path` is dotted; NAME stands for a name that the user chooses, `[]` for an entry of a list."""

    path: str
    takes: str
    default: str  # as YAML; "required" where there is none
    about: str


def keys() -> list[Key]:
    """All of them, in the order of the records."""
    return list(_of(RunConfig, ""))


def _of(record: type[BaseModel], before: str) -> Iterator[Key]:
    about = comments(record)
    for name, field in record.model_fields.items():
        path = f"{before}{name}"
        section, inside = _section(field.annotation)
        yield Key(path, _takes(field.annotation), _default(field), about.get(name, ""))
        if section is not None and section is not MethodConfig:
            yield from _of(section, f"{path}{inside}.")


def _section(annotation: Any) -> tuple[type[BaseModel] | None, str]:
    """The record within a type, and what stands between a key and the record's own."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation, ""
    inside = {tuple: "[]", dict: ".NAME"}.get(get_origin(annotation), "")
    for part in get_args(annotation):
        section, more = _section(part)
        if section is not None:
            return section, inside + more
    return None, ""


def _takes(annotation: Any) -> str:
    """A type in the words of YAML."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return " or ".join(str(part) for part in parts)
    if origin in (Union, types.UnionType):
        return " or ".join("null" if part is type(None) else _takes(part) for part in parts)
    if origin is tuple:
        return (
            f"list of: {_takes(parts[0])}"
            if len(parts) == 2 and parts[1] is ...
            else f"[{', '.join(map(_takes, parts))}]"
        )
    if origin is dict:
        return f"mapping to: {_takes(parts[1])}"
    if origin is Annotated:
        return _takes(parts[0])
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "method" if annotation is MethodConfig else "section"
    return {Any: "anything", str: "text", bool: "true or false", int: "whole number", float: "number"}.get(
        annotation, str(annotation)
    )


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    if isinstance(value, BaseModel):
        return "as below"
    plain = list(value) if isinstance(value, tuple) else value
    return yaml.safe_dump(plain, default_flow_style=True, width=1000).removesuffix("...\n").strip()


@cache
def comments(record: type[BaseModel]) -> dict[str, str]:
    """The comments of every field: the lines above it and the one behind it."""
    lines = textwrap.dedent(inspect.getsource(record)).splitlines()
    (tree,) = ast.parse("\n".join(lines)).body
    of_fields = {}
    for node in getattr(tree, "body", ()):
        if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
            continue
        above: list[str] = []
        for line in reversed(lines[: node.lineno - 1]):
            if not line.strip().startswith("# "):
                break
            above.insert(0, line.strip()[2:])
        last = lines[(node.end_lineno or node.lineno) - 1]
        behind = last[node.end_col_offset :].partition("# ")[2]
        of_fields[node.target.id] = " ".join([*above, behind]).strip()
    return of_fields
