"""The configuration that a root keeps: what it was last computed with, so that later commands need the root alone."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import yaml
from pydantic import ValidationError

from jobs.config.file import ConfigError, describe, parse, read
from jobs.config.lacking import told, without_unknown
from jobs.config.models import ModelConfig
from jobs.config.run import RunConfig
from lrp_core.types import UserError

if TYPE_CHECKING:  # commands tell a mistake in a config before they import what a store needs
    from jobs.store import Store

FILE = "config.yaml"
HEADER = "# What this root was last computed with; commands with `--root` and no `--config` use it.\n"
MOST_NAMED = 3  # differences in one error
_PLACEHOLDERS = ("data", "assets")


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

    Where `is_read`, what a kept one names and no installed package brings is left out: it is `lacking` that.
    Raises UserError for a configuration or root that cannot be used.
    """
    if source is not None or root is None:
        config = RunConfig.load(source or "demo", root, overrides)

        from jobs.store import Store  # after a mistake in the configuration is told: it imports much

        return config, Store(config.root)

    from jobs.store import Store

    store = Store(root)
    if is_read and not overrides:
        own = as_known(store)
        return own or RunConfig.load("demo", root, overrides), store
    return kept(store, overrides) or RunConfig.load("demo", root, overrides), store


def holds_run(store: Store) -> bool:
    """Whether a run was begun in the root: it keeps a configuration, or manifests of versions that kept none."""
    return store.exists(FILE) or store.exists("manifest")


def kept(store: Store, overrides: Sequence[str] = ()) -> RunConfig | None:
    """The configuration that the root keeps, after ``key=value`` overrides; None where it keeps none.

    Raises ConfigError for one that this version does not understand, and for overrides of what is filled in already.
    """
    text = _text(store)
    if text is None:
        return None
    for override in overrides:
        if override.partition("=")[0] in _PLACEHOLDERS:
            raise ConfigError(
                f"--set {override}: in the configuration that {store.root} keeps, paths are filled in: "
                "say with --config which one to fill in anew"
            )
    try:
        return RunConfig.load(parse(text.decode(), f"{store.root}/{FILE}"), store.root, overrides)
    except ConfigError as error:
        if overrides:
            raise
        reason = f"{error}: say with --config which one to use"
        raise ConfigError(f"the configuration that {store.root} keeps cannot be used: {reason}") from None


def as_known(store: Store) -> RunConfig | None:
    """The configuration that the root keeps, without what no installed package brings: it is `lacking` that.

    None where the root keeps none. Raises ConfigError for one that cannot be understood otherwise.
    """
    try:
        return kept(store)
    except ConfigError as error:
        try:
            raw = _raw(store)
            RunConfig.model_validate(raw)
        except (ConfigError, ValidationError):  # of another version, or no configuration
            raise error from None
        known, lacking = without_unknown(raw)
        if not lacking:
            raise
        try:
            return RunConfig.model_validate(known).without(lacking)
        except ValidationError:
            raise ConfigError(f"nothing of {store.root} can be read here; {told(lacking)}") from None


def models_kept(store: Store) -> dict[str, ModelConfig]:
    """The models of the configuration that the root keeps, by name, whether their families are known or not.

    Raises ConfigError for models of another version.
    """
    raw = _raw(store)
    try:
        models = [ModelConfig.model_validate(model) for model in raw.get("models", ())]
    except ValidationError as error:
        said = describe(error, raw, RunConfig)
        raise ConfigError(f"the models that {store.root} keeps cannot be understood: {said}") from None
    return {model.name: model for model in models}


def _raw(store: Store) -> dict[str, Any]:
    """The keys of the configuration that the root keeps; none where it keeps none."""
    text = _text(store)
    return {} if text is None else read(parse(text.decode(), f"{store.root}/{FILE}"), store.root, ())


@contextmanager
def keeping(config: RunConfig, store: Store) -> Iterator[list[Difference]]:
    """Let the root keep this configuration; gives what it changes there.

    Where a UserError ends the block, the configuration cannot be run, and the root keeps what it kept before. It does
    too where the configuration is lacking something.
    """
    if config.lacking:
        yield []
        return
    before, text = _settings_of(store), _text(store)
    settings = _settings(config)
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
    own = kept(store)
    differing = list(differences(_settings(own), _settings(config))) if own is not None else []
    if differing:
        named = "; ".join(str(difference) for difference in differing[:MOST_NAMED])
        more = f" and {len(differing) - MOST_NAMED} more" if len(differing) > MOST_NAMED else ""
        raise UserError(
            f"{store.root} was last computed with another configuration ({named}{more}): leave out --config and --set "
            "to use that one, or run with them first"
        )


def differences(then: Any, now: Any, key: str = "") -> Iterator[Difference]:
    """Between two values of a setting, as far down as both have keys or named entries."""
    one, other = _by_name(then), _by_name(now)
    if isinstance(one, dict) and isinstance(other, dict):
        for name in {**one, **other}:
            yield from differences(one.get(name), other.get(name), f"{key}.{name}" if key else name)
    elif then != now:
        yield Difference(key, then, now)


def _text(store: Store) -> bytes | None:
    try:
        return store.read_bytes(FILE)
    except FileNotFoundError:
        return None


def _settings_of(store: Store) -> dict[str, Any] | None:
    """What the root keeps; None where that is nothing, or of another version."""
    try:
        own = kept(store)
    except ConfigError:
        return None
    return None if own is None else _settings(own)


def _settings(config: RunConfig) -> dict[str, Any]:
    """All but the root, which may be reached by several names."""
    return config.model_dump(mode="json", exclude={"root"})


def _by_name(value: Any) -> Any:
    if isinstance(value, list) and value and all(isinstance(entry, dict) and "name" in entry for entry in value):
        return {entry["name"]: entry for entry in value}
    return value


def _short(value: Any) -> str:
    """JSON, without the keys of a section that say nothing."""
    if isinstance(value, dict):
        value = {key: part for key, part in value.items() if part not in (None, [], {})}
    return json.dumps(value, ensure_ascii=False)
