"""The configuration that a root keeps: that of its last run, so that later commands need the root alone."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import yaml
from pydantic import ValidationError

from jobs.config.file import ConfigError, describe, parse, read
from jobs.config.lacking import told, without_unknown
from jobs.config.models import ModelConfig
from jobs.config.run import RunConfig
from lrp_core.records.types import UserError

if TYPE_CHECKING:  # commands tell a mistake in a config before they import what a store needs
    from jobs.store import Store

FILE = "config.yaml"
HEADER = "# What this root was last computed with; commands with `--root` and no `--config` use it.\n"
MOST_NAMED = 3  # differences in one error


@dataclass(frozen=True)
class Difference:
    """A setting that differs between two configurations; `key` is its dotted path, entries of lists by name."""

    key: str
    then: Any  # None where the setting did not exist
    now: Any

    def __str__(self) -> str:
        return f"{self.key}: {_short(self.then)} -> {_short(self.now)}"


def load(
    source: str | None, root: str | None, overrides: Sequence[str], is_read: bool = False
) -> tuple[RunConfig, Store]:
    """The configuration `source`, else the one that `root` keeps, else `demo`, with its store.

    Where `is_read`, records that a kept one names and no installed package brings are left out: they are its `lacking`.
    Raises UserError for a configuration or root that cannot be used.
    """
    if source is not None or root is None:
        config = RunConfig.load(source or "demo", root, overrides)

        from jobs.store import Store  # it imports much: after a mistake in the configuration is told

        return config, Store(config.root)

    from jobs.store import Store

    store = Store(root)
    before = as_known(store) if is_read and not overrides else kept(store, overrides)
    return before or RunConfig.load("demo", root, overrides), store


def holds_run(store: Store) -> bool:
    """True where a run was begun in the root: it keeps a configuration, or manifests of versions that kept none."""
    return store.exists(FILE) or store.exists("manifest")


def kept(store: Store, overrides: Sequence[str] = ()) -> RunConfig | None:
    """The configuration that the root keeps, after ``key=value`` overrides; None where it keeps none.

    Raises ConfigError for one that this version does not understand, and for overrides of paths that are filled in.
    """
    try:
        keys = _keys(store)
        if keys is None:
            return None
        for override in overrides:
            if override.partition("=")[0] in ("data", "assets"):
                raise ConfigError(
                    f"--set {override}: in the configuration that {store.root} keeps, paths are filled in: "
                    "say with --config which one to fill in anew"
                )
        return RunConfig.load(keys, store.root, overrides)
    except ConfigError as error:
        if overrides:
            raise
        reason = f"{error}: say with --config which one to use"
        raise ConfigError(f"the configuration that {store.root} keeps cannot be used: {reason}") from None


def as_known(store: Store) -> RunConfig | None:
    """The configuration that the root keeps, without records that no installed package brings: they are its `lacking`.

    None where the root keeps none. Raises ConfigError for one that cannot be understood otherwise.
    """
    try:
        return kept(store)
    except ConfigError as error:
        try:
            config = RunConfig.model_validate(read(_keys(store) or {}, store.root, ()))
        except (ConfigError, ValidationError):  # of another version, or no configuration
            raise error from None
        known, lacking = without_unknown(config)
        if not lacking:
            raise
        try:
            return RunConfig.model_validate(known.model_dump()).without(lacking)
        except ValidationError:
            raise ConfigError(f"nothing of {store.root} can be read here; {told(lacking)}") from None


def models_kept(store: Store) -> dict[str, ModelConfig]:
    """The models of the configuration that the root keeps, by name, whether their families are known or not.

    Raises ConfigError for models of another version.
    """
    raw = read(_keys(store) or {}, store.root, ())
    try:
        models = [ModelConfig.model_validate(model) for model in raw.get("models", ())]
    except ValidationError as error:
        reason = describe(error, raw, RunConfig)
        raise ConfigError(f"the models that {store.root} keeps cannot be understood: {reason}") from None
    return {model.name: model for model in models}


@contextmanager
def keeping(config: RunConfig, store: Store) -> Iterator[list[Difference]]:
    """Let the root keep this configuration; gives its differences from the one before.

    A UserError inside says that the configuration cannot be run: the root then keeps the one before. It does so too
    where the configuration is `lacking` something.
    """
    if config.lacking:
        yield []
        return
    text, settings = _text(store), _settings(config)
    before = None
    with suppress(ConfigError):  # of another version
        before = _settings(kept(store))
    unchanged = json.dumps(before) == json.dumps(settings)  # the order of models matters too
    if not unchanged:
        store.write_bytes(FILE, (HEADER + yaml.safe_dump(settings, sort_keys=False, allow_unicode=True)).encode())
    try:
        yield [] if before is None else list(differences(before, settings))
    except UserError:
        if text is None:
            store.delete(FILE)
        elif not unchanged:
            store.write_bytes(FILE, text)
        raise


def refuse_another(config: RunConfig, store: Store) -> None:
    """Raises UserError for a configuration that differs from the one that the root keeps."""
    before = _settings(kept(store))
    named = [] if before is None else list(map(str, differences(before, _settings(config))))
    if named:
        more = f" and {len(named) - MOST_NAMED} more" if len(named) > MOST_NAMED else ""
        raise UserError(
            f"{store.root} was last computed with another configuration ({'; '.join(named[:MOST_NAMED])}{more}): leave "
            "out --config and --set to use that one, or run with them first"
        )


def differences(then: Any, now: Any, key: str = "") -> Iterator[Difference]:
    """The differences between two values of a setting, as far down as both have keys or named entries."""
    before, after = _by_name(then), _by_name(now)
    if isinstance(before, dict) and isinstance(after, dict):
        for name in {**before, **after}:
            yield from differences(before.get(name), after.get(name), f"{key}.{name}" if key else name)
    elif then != now:
        yield Difference(key, then, now)


def _text(store: Store) -> bytes | None:
    """The file of the configuration that the root keeps; None where it keeps none."""
    (text,) = store.read_all([FILE])
    return text


def _keys(store: Store) -> dict[str, Any] | None:
    """The raw keys of the configuration that the root keeps; None where it keeps none. Raises ConfigError."""
    text = _text(store)
    if text is None:
        return None
    keys = parse(text.decode(), f"{store.root}/{FILE}")
    for settings in (keys.get("tasks") or {}).values():
        # versions whose tasks have no `columns` wrote `evidence: false` for what is null now
        if settings.get("evidence") is False and "columns" not in settings:
            settings["evidence"] = None
    return keys


def _settings(config: RunConfig | None) -> dict[str, Any] | None:
    """All keys but the root, which may be reached by several names; None of no configuration."""
    return None if config is None else config.model_dump(mode="json", exclude={"root"})


def _by_name(value: Any) -> Any:
    """A list as a mapping, where all its entries have names; other values as they are."""
    if isinstance(value, list) and value and all(isinstance(entry, dict) and "name" in entry for entry in value):
        return {entry["name"]: entry for entry in value}
    return value


def _short(value: Any) -> str:
    """A value as JSON, without the keys of a section that say nothing."""
    if isinstance(value, dict):
        value = {key: part for key, part in value.items() if part not in (None, [], {})}
    return json.dumps(value, ensure_ascii=False)
