"""Reads a run configuration from YAML: ``key=value`` overrides, placeholders, and errors in one line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from glob import glob
from itertools import chain
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from closelook.evaluation.benchmark.sources.remote import scheme_of
from closelook.jobs.config.base import section_in
from closelook.lrp_core.records.types import UserError, did_you_mean, nearest

CONF_DIR = Path(__file__).parents[1] / "conf"
#: By type of pydantic's error, what the value should have been, in the words of YAML.
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


#: Nodes that unfolding aliases may add to a file: enough to repeat a section for every model, but a file whose nested
#: aliases unfold exponentially ("billion laughs") is refused before it fills the memory.
_ALIASED_NODES = 10_000


class ConfigError(UserError):
    """A configuration that cannot be run. The message names the config key and what it should be."""


class _Loader(yaml.SafeLoader):
    """A YAML loader that refuses duplicate keys, and aliases that expand to huge documents."""

    def get_single_node(self) -> yaml.Node | None:
        """The root node of the document. Raises YAMLError as `_size` does, and for aliases that unfold too far."""
        node = super().get_single_node()
        sizes: dict[int, int] = {}
        if node is not None and _size(node, sizes) > len(sizes) + _ALIASED_NODES:
            raise yaml.YAMLError(f"its aliases (*name) unfold into more than {_ALIASED_NODES:,} values: use fewer")
        return node


def _size(node: yaml.Node, sizes: dict[int, int]) -> int:
    """The number of nodes in the tree of `node`, itself included, with aliases unfolded.

    `sizes` keeps the number of each node by `id`, so that every node is visited once; 0 marks a node that is being
    visited. Raises YAMLError for a value that contains an alias of itself, and for duplicate keys.
    """
    if sizes.get(id(node)) == 0:
        raise yaml.YAMLError(f"the alias in line {node.start_mark.line + 1} refers to a value that contains it")
    if id(node) not in sizes:
        sizes[id(node)] = 0
        parts = node.value
        if isinstance(node, yaml.MappingNode):
            _check_keys([key for key, _ in parts if isinstance(key, yaml.ScalarNode)])
            parts = chain.from_iterable(parts)
        sizes[id(node)] = 1 + sum(_size(part, sizes) for part in parts if isinstance(part, yaml.Node))
    return sizes[id(node)]


def _check_keys(keys: list[yaml.ScalarNode]) -> None:
    """Raise YAMLError if a mapping has a key twice, of which PyYAML would silently keep the last."""
    seen = set()
    for key in keys:
        if key.value in seen:
            raise yaml.YAMLError(f"the key {key.value!r} occurs twice, again in line {key.start_mark.line + 1}")
        seen.add(key.value)


def _parse(text: str) -> Any:
    """The value of a YAML text. Raises YAMLError if it is invalid."""
    try:
        return yaml.load(text, _Loader)  # a SafeLoader
    except RecursionError:
        raise yaml.YAMLError("it is nested too deeply") from None


def default_config(overrides: Sequence[str]) -> str:
    """The shipped config of a run that names none: `demo`, or `own` if an override gives the run tasks of its own."""
    keys = {override.partition("=")[0] for override in overrides}
    return "own" if "tasks" in keys else "demo"


def read(source: str | Path | dict[str, Any], root: str | None, overrides: Sequence[str]) -> dict[str, Any]:
    """The raw keys of a configuration, with placeholders filled in and optional tasks without data left out.

    `source` is a name in ``jobs/conf``, a path, or raw keys, which are changed in place. `overrides` ("a.b=value")
    replace values of the file, and `root` replaces both. Raises ConfigError.
    """
    raw = source if isinstance(source, dict) else _read_yaml(_locate(source))
    for override in overrides:
        _override(raw, override)
    if root is not None:
        raw["root"] = root
    paths = {name: str(task["path"]) for name, task in _tasks(raw).items() if task.get("path")}
    # Taken before placeholders are filled in, so that an error can name paths as the file wrote them.
    paths_as_written = {name: path.removeprefix("{data}/") for name, path in paths.items()}
    raw = _fill(raw)
    _drop_absent_tasks(raw, paths_as_written)
    return raw


def describe(error: ValidationError, raw: dict[str, Any], config: type[BaseModel]) -> str:
    """The first of pydantic's errors in one line, with the dotted key, in which entries of lists stand by name.

    For an unknown key it adds the nearest known one.
    """
    first = error.errors()[0]
    location, kind = first["loc"], first["type"]
    key = ".".join(map(str, _named(location, raw)))
    if kind == "extra_forbidden":
        return f"unknown config key {key!r}{nearest(str(location[-1]), _fields_at(location[:-1], config))}"
    message = first["msg"].removeprefix("Value error, ")
    if kind in _EXPECTED:
        message = f"expected {_EXPECTED[kind]}, not {first['input']!r}"
    return f"config key {key!r}: {message}" if key else message


def _locate(source: str | Path) -> Path:
    """The file of a configuration, by its name in ``jobs/conf`` or its path. Raises ConfigError if there is none."""
    shipped = {path.stem: path for path in CONF_DIR.glob("*.yaml")}
    path = shipped.get(str(source), Path(source))
    if not path.is_file():
        near = did_you_mean(str(source), shipped)
        raise ConfigError(f"no config {str(source)!r}{near}: give a path or one of {', '.join(sorted(shipped))}")
    return path


def _read_yaml(path: Path) -> dict[str, Any]:
    """The keys of a YAML file. Raises ConfigError if it cannot be read or is no mapping."""
    try:
        text = path.read_text(encoding="utf-8")
    except (UnicodeDecodeError, OSError) as error:
        raise _unreadable(str(path), error) from None
    return parse(text, str(path))


def parse(text: str, name: str) -> dict[str, Any]:
    """The keys of a YAML text. Raises ConfigError, which calls the text `name`, if it is no mapping."""
    try:
        raw = _parse(text)
    except yaml.YAMLError as error:
        raise _unreadable(name, error) from None
    if not isinstance(raw, dict):
        raise ConfigError(f"{name} holds no mapping of keys: write lines of KEY: VALUE")
    return raw


def _unreadable(name: str, error: Exception) -> ConfigError:
    """The error of a file that is not readable YAML."""
    return ConfigError(f"{name} is not readable YAML: {' '.join(str(error).split())}")


def yaml_value(text: str, option: str) -> Any:
    """The value that was typed, as YAML, for `option` of a command. Raises ConfigError, naming the option."""
    try:
        return _parse(text)
    except yaml.YAMLError as error:
        reason = "the value is not YAML" if isinstance(error, yaml.MarkedYAMLError) else error
        raise ConfigError(f"{option}: {reason}") from None


def _override(raw: dict[str, Any], override: str) -> None:
    """Apply ``a.b.c=value`` to `raw` in place. The value is YAML; entries of a list are found by their `name`.

    Missing sections are added. Raises ConfigError for a path that leads nowhere.
    """
    option = f"--set {override}"
    path, equals, text = override.partition("=")
    if not equals or not path:
        raise ConfigError(f"{option}: expected key=value")
    value = yaml_value(text, option)
    node: Any = raw
    while "." in path:
        if isinstance(node, list):
            entries = _by_name(node)
            key = next((name for name in entries if path.startswith(f"{name}.")), None)
            if key is None:
                name = path.rpartition(".")[0]
                known = nearest(name, entries) if entries else ": its entries have no names"
                raise ConfigError(f"{option}: no entry of that list is named {name!r}{known}")
            path, node = path.removeprefix(f"{key}."), entries[key]
        else:
            key, _, path = path.partition(".")
            if node.get(key) is None:
                node[key] = {}
            node = node[key]
        if not isinstance(node, dict | list):
            raise ConfigError(f"{option}: {key!r} is a value and has no keys")
    if isinstance(node, list):
        raise ConfigError(f"{option}: name an entry of the list and its key, as in models.NAME.KEY=value")
    node[path] = value


def _by_name(entries: list[Any]) -> dict[str, Any]:
    """The entries of a list that have a `name`, by it. Names may contain dots (Llama-3.2-1B)."""
    return {str(entry["name"]): entry for entry in entries if isinstance(entry, dict) and "name" in entry}


def _fill(raw: dict[str, Any]) -> dict[str, Any]:
    """The raw keys with ``{data}`` and ``{assets}`` replaced by the folders of these keys.

    A value that needs a folder which is not set becomes null, or is dropped from its list; `left_out` then names it
    with the reason. The `left_out` of a configuration that a root keeps is kept.
    """
    left_out: list[str] = [*raw.get("left_out", ())]
    values = {"data": raw.get("data")}
    values["assets"] = _substitute(raw.get("assets"), values, "assets", left_out)
    done = {**values, "left_out": left_out}
    filled = {key: _substitute(value, values, key, left_out) for key, value in raw.items() if key not in done}
    return {**filled, **done}


def _substitute(value: Any, values: Mapping[str, str | None], path: str, left_out: list[str]) -> Any:
    """`value`, at the dotted key `path`, with each {NAME} in it replaced by `values[NAME]`, at any depth."""
    if isinstance(value, dict):
        return {key: _substitute(item, values, f"{path}.{key}", left_out) for key, item in value.items()}
    if isinstance(value, list):
        filled = [(item, _substitute(item, values, path, left_out)) for item in value]
        return [new for old, new in filled if new is not None or old is None]
    if isinstance(value, str):
        for name, replacement in values.items():
            placeholder = f"{{{name}}}"
            if placeholder in value and replacement is None:
                left_out.append(f"{path}: {value}, since {name!r} is not set")
                return None
            value = value.replace(placeholder, str(replacement))
    return value


def _tasks(raw: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The raw tasks by name, without those that are not mappings: pydantic reports those later."""
    tasks = raw.get("tasks")
    return {name: task for name, task in tasks.items() if isinstance(task, dict)} if isinstance(tasks, dict) else {}


def _drop_absent_tasks(raw: dict[str, Any], paths: Mapping[str, str]) -> None:
    """Drop from `raw` the optional tasks whose file or folder does not exist."""
    optional = {name: str(task.get("path") or "") for name, task in _tasks(raw).items() if task.get("optional")}
    absent = {}
    for name, path in optional.items():
        if not (scheme_of(path) or glob(path) or (path and Path(path).exists())):
            absent[name] = path
    if absent and len(absent) == len(raw["tasks"]):
        named = ", ".join(dict.fromkeys(paths.get(name, name) for name in absent))
        if raw.get("data") is None:
            raise ConfigError(f"this config reads published data: add --set data=DIR, a folder with any of {named}")
        advice = "set `data` (--set data=DIR) to a folder with any of these"
        raise ConfigError(f"no task data in {raw['data']}: there is none of {named}; {advice}")
    raw["left_out"] += [f"tasks.{name}: {path} is not there" for name, path in absent.items() if path]
    for name in absent:
        del raw["tasks"][name]


def _named(location: Sequence[str | int], raw: Any) -> Iterator[str | int]:
    """`location`, pydantic's path of an error in `raw`, with positions in lists replaced by the entries' names."""
    for part in location:
        try:
            raw = raw[part]
        except (IndexError, KeyError, TypeError):
            raw = None
        yield raw["name"] if isinstance(part, int) and isinstance(raw, dict) and "name" in raw else part


def _fields_at(location: Sequence[str | int], config: type[BaseModel]) -> list[str]:
    """The keys that the section of the configuration at `location` may have."""
    for part in location:
        if part in config.model_fields:
            config = section_in(config.model_fields[str(part)].annotation)[0] or config
    return list(config.model_fields)
