"""Reading a run configuration: YAML, ``key=value`` overrides, placeholders, and errors in one line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from glob import glob, has_magic
from pathlib import Path
from typing import Any, get_args

import yaml
from pydantic import BaseModel, ValidationError

from lrp_core.types import UserError, nearest

CONF_DIR = Path(__file__).parents[1] / "conf"
#: What pydantic's complaints about the type of a value mean in YAML.
_EXPECTED = {
    "tuple_type": "a list, as in [a, b]",
    "dict_type": "keys with values, as in {key: value}",
    "model_type": "keys with values, as in {key: value}",
    "string_type": "text",
    "int_parsing": "a whole number",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_parsing": "a number",
    "float_type": "a number",
    "bool_parsing": "true or false",
    "bool_type": "true or false",
    "too_short": "at least one entry",
}


#: Nodes that aliases may add to a file: enough to repeat a section for every model, too few for a bomb to hurt.
_ALIASED_NODES = 10_000


class ConfigError(UserError):
    """A configuration that cannot be run; the message names the key and what is expected there."""


class _Loader(yaml.SafeLoader):
    """YAML in which a key stands once, and a short text does not unfold into a huge one."""

    def get_single_node(self) -> yaml.Node | None:
        node = super().get_single_node()
        sizes: dict[int, int] = {}
        if node is not None and _size(node, sizes) > len(sizes) + _ALIASED_NODES:
            raise yaml.YAMLError(f"its aliases (*name) unfold into more than {_ALIASED_NODES:,} values: write them out")
        return node


def _size(node: yaml.Node, sizes: dict[int, int]) -> int:
    """Nodes below and with `node`, aliases unfolded; `sizes` has those of every node seen, by id.

    Raises YAMLError for an alias of what it is in, and for a key that stands twice.
    """
    if id(node) not in sizes:
        sizes[id(node)] = 0
        parts = [part for pair in node.value for part in pair] if isinstance(node, yaml.MappingNode) else node.value
        if isinstance(node, yaml.MappingNode):
            keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
            for at, (key, _) in enumerate(node.value):
                if isinstance(key, yaml.ScalarNode) and key.value in keys[:at]:
                    raise yaml.YAMLError(f"the key {key.value!r} stands twice, again in line {key.start_mark.line + 1}")
        sizes[id(node)] = 1 + sum(_size(part, sizes) for part in parts if isinstance(part, yaml.Node))
    elif sizes[id(node)] == 0:
        raise yaml.YAMLError(f"the alias in line {node.start_mark.line + 1} is of what it stands in")
    return sizes[id(node)]


def _parse(text: str) -> Any:
    """Raises YAMLError."""
    try:
        return yaml.load(text, _Loader)  # a SafeLoader
    except RecursionError:
        raise yaml.YAMLError("it is nested too deeply") from None


def read(source: str | Path | dict[str, Any], root: str | None, overrides: Sequence[str]) -> dict[str, Any]:
    """The raw keys of `source`: a name in ``jobs/conf``, a path, or such keys, which are changed in place.

    Later wins: file, `overrides`, `root`.
    """
    raw = source if isinstance(source, dict) else _read_yaml(_locate(source))
    for override in overrides:
        _override(raw, override)
    if root is not None:
        raw["root"] = root
    folders = _folders(raw)
    raw = _fill(raw)
    _drop_absent_tasks(raw, folders)
    return raw


def describe(error: ValidationError, raw: dict[str, Any], config: type[BaseModel]) -> str:
    """The first of pydantic's complaints in one line, with list entries by name and the nearest known key."""
    first = error.errors()[0]
    key = ".".join(str(part) for part in _named(first["loc"], raw))
    if first["type"] == "extra_forbidden":
        return f"unknown config key {key!r}{nearest(str(first['loc'][-1]), _fields_at(first['loc'][:-1], config))}"
    expected = _EXPECTED.get(first["type"])
    message = f"expected {expected}, not {first['input']!r}" if expected else first["msg"].removeprefix("Value error, ")
    return f"config key {key!r}: {message}" if key else message


def _locate(source: str | Path) -> Path:
    shipped = {path.stem: path for path in CONF_DIR.glob("*.yaml")}
    if str(source) in shipped:
        return shipped[str(source)]
    if not Path(source).is_file():
        raise ConfigError(f"no config {str(source)!r}: give a path or one of {', '.join(sorted(shipped))}")
    return Path(source)


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except (UnicodeDecodeError, OSError) as error:
        raise _unreadable(str(path), error) from None
    return parse(text, str(path))


def parse(text: str, where: str) -> dict[str, Any]:
    """The keys of a YAML text that stands at `where`. Raises ConfigError."""
    try:
        raw = _parse(text)
    except yaml.YAMLError as error:
        raise _unreadable(where, error) from None
    if not isinstance(raw, dict):
        raise ConfigError(f"{where} holds no mapping of keys")
    return raw


def _unreadable(where: str, error: Exception) -> ConfigError:
    return ConfigError(f"{where} is not readable YAML: {' '.join(str(error).split())}")


def yaml_value(text: str, where: str) -> Any:
    """A value that is typed on a command line, of the option `where`. Raises ConfigError."""
    try:
        return _parse(text)
    except yaml.MarkedYAMLError:
        raise ConfigError(f"{where}: the value is not YAML") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{where}: {error}") from None


def _override(raw: dict[str, Any], override: str) -> None:
    """Apply ``a.b.c=value`` in place; the value is YAML, and a list of named entries is indexed by name."""
    path, equals, text = override.partition("=")
    if not equals or not path:
        raise ConfigError(f"--set {override}: expected key=value")
    value = yaml_value(text, f"--set {override}")
    node: Any = raw
    while "." in path:
        if isinstance(node, list):
            key, path, node = _entry(node, path, override)
        else:
            key, _, path = path.partition(".")
            if node.get(key) is None:
                node[key] = {}
            node = node[key]
        if not isinstance(node, dict | list):
            raise ConfigError(f"--set {override}: {key!r} holds no keys of its own")
    if isinstance(node, list):
        raise ConfigError(f"--set {override}: name a key of the entry, as in models.NAME.KEY=value")
    node[path] = value


def _entry(entries: list[Any], path: str, override: str) -> tuple[str, str, Any]:
    """The entry whose name starts `path`, split off; names may hold dots (Llama-3.2-1B)."""
    names = {str(entry["name"]): entry for entry in entries if isinstance(entry, dict) and "name" in entry}
    for name, entry in names.items():
        if path.startswith(f"{name}."):
            return name, path[len(name) + 1 :], entry
    raise ConfigError(f"--set {override}: no such entry{nearest(path.rpartition('.')[0], names)}")


def _fill(raw: dict[str, Any]) -> dict[str, Any]:
    """Replace ``{data}`` and ``{assets}``; what needs a placeholder without a value becomes null or leaves its list.

    `left_out` says what, and why; a configuration that a root keeps says it already.
    """
    left_out: list[str] = [*raw.get("left_out", ())]
    values = {"data": raw.get("data")}
    values["assets"] = _substitute(raw.get("assets"), values, "assets", left_out)
    known = (*values, "left_out")
    filled = {key: _substitute(value, values, key, left_out) for key, value in raw.items() if key not in known}
    return {**filled, **values, "left_out": left_out}


def _substitute(value: Any, values: Mapping[str, str | None], path: str, left_out: list[str]) -> Any:
    if isinstance(value, dict):
        return {key: _substitute(item, values, f"{path}.{key}", left_out) for key, item in value.items()}
    if isinstance(value, list):
        filled = [(item, _substitute(item, values, path, left_out)) for item in value]
        return [new for old, new in filled if new is not None or old is None]
    if isinstance(value, str):
        for name, replacement in values.items():
            if f"{{{name}}}" in value:
                if replacement is None:
                    left_out.append(f"{path}: {value}, since {name!r} is not set")
                    return None
                value = value.replace(f"{{{name}}}", str(replacement))
    return value


def _folders(raw: Mapping[str, Any]) -> dict[str, str]:
    """The last part, as it is written, of the path of each task that reads one."""
    tasks = raw.get("tasks")
    items = tasks.items() if isinstance(tasks, dict) else ()
    paths = {name: str(task["path"]) for name, task in items if isinstance(task, dict) and task.get("path")}
    return {name: Path(path).name for name, path in paths.items() if not has_magic(path)}


def _drop_absent_tasks(raw: dict[str, Any], folders: Mapping[str, str]) -> None:
    """Optional tasks whose file or folder is not there leave the run; a run left without any is an error.

    `folders` are the names of those files and folders, by task.
    """
    tasks = raw.get("tasks")
    if not isinstance(tasks, dict):
        return
    optional = [name for name, task in tasks.items() if isinstance(task, dict) and task.get("optional")]
    absent = [name for name in optional if not _exists(tasks[name].get("path"))]
    if absent and len(absent) == len(tasks):
        named = ", ".join(f"{folders.get(name, name)}/" for name in absent)
        if raw.get("data") is None:
            raise ConfigError(f"this config reads published data: add --set data=DIR, a folder with any of {named}")
        raise ConfigError(f"no task data in {raw['data']}: it holds none of {named}")
    raw["left_out"] += [
        f"tasks.{name}: {tasks[name]['path']} is not there" for name in absent if tasks[name].get("path")
    ]
    raw["tasks"] = {name: task for name, task in tasks.items() if name not in absent}


def _exists(path: str | None) -> bool:
    return bool(path) and (Path(str(path)).exists() or bool(glob(str(path))))


def _named(location: Sequence[str | int], raw: Any) -> Iterator[str | int]:
    """`location` with list positions replaced by the names of their entries."""
    for part in location:
        value = raw[part] if isinstance(raw, list) and isinstance(part, int) and part < len(raw) else None
        value = raw.get(part) if isinstance(raw, dict) else value
        yield value["name"] if isinstance(part, int) and isinstance(value, dict) and "name" in value else part
        raw = value


def _fields_at(location: Sequence[str | int], config: type[BaseModel]) -> list[str]:
    """The keys that the section at `location` knows."""
    for part in location:
        if part in config.model_fields:
            config = next(_sections(config.model_fields[str(part)].annotation), config)
    return list(config.model_fields)


def _sections(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from _sections(argument)
