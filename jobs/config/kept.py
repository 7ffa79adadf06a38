"""The configuration that a root keeps: a copy of its last run's, so that later commands need only `--root`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import yaml
from pydantic import ValidationError

from closelook.jobs.config.file import ConfigError, default_config, describe, parse, read
from closelook.jobs.config.models import ModelConfig
from closelook.jobs.config.run import RunConfig
from closelook.lrp_core.records.types import UserError

if TYPE_CHECKING:
    from closelook.jobs.store import Store

FILE = "config.yaml"
HEADER = "# What this root was last computed with; commands with `--root` and no `--config` use it.\n"
MOST_NAMED = 3  # differences that one error names


@dataclass(frozen=True)
class Difference:
    """A setting that differs between an earlier and a later configuration."""

    key: str  # dotted path, in which entries of lists stand by their names
    then: Any  # the earlier value; None if the setting did not exist
    now: Any

    def __str__(self) -> str:
        return f"{self.key}: {_short(self.then)} -> {_short(self.now)}"


def load(source: str | None, root: str | None, overrides: Sequence[str]) -> tuple[RunConfig, Store]:
    """The configuration `source` (name or path), else that which `root` keeps, else the default; and its root's store.

    The default is that of a root that holds nothing yet. Raises Damaged if the root holds results but keeps no
    configuration: another one would list other artifacts, or compute them. Raises UserError if configuration or root
    cannot be used.
    """
    if source is not None or root is None:
        config = RunConfig.load(source or default_config(overrides), root, overrides)

        from closelook.jobs.store import Store  # slow to import: a mistake in the configuration is reported before

        return config, Store(config.root)

    from closelook.jobs.store import Damaged, Store

    store = Store(root)
    before = kept(store, overrides)
    if before is None and store.exists("manifest"):
        raise Damaged(
            f"{store.root} holds results, but its {FILE} is gone: try again, or add --config with the configuration "
            "that the results were computed with"
        )
    return before or RunConfig.load(default_config(overrides), root, overrides), store


def holds_run(store: Store) -> bool:
    """True if a run was begun in the root: it keeps a configuration, or has manifests."""
    return store.exists(FILE) or store.exists("manifest")


def kept(store: Store, overrides: Sequence[str] = ()) -> RunConfig | None:
    """The configuration that the root keeps, with ``key=value`` overrides applied; None if it keeps none.

    Raises ConfigError if this version does not understand it, and for overrides of `data` and `assets`: the kept
    configuration has them filled in already.
    """
    try:
        keys = _keys(store)
        if keys is None:
            return None
        for override in overrides:
            if override.partition("=")[0] in ("data", "assets"):
                raise ConfigError(
                    f"--set {override}: the configuration kept in {store.root} has its paths filled in already: "
                    "add --config with the configuration whose paths this should fill in"
                )
        return RunConfig.load(keys, store.root, overrides)
    except ConfigError as error:
        if overrides:
            raise
        reason = f"{error}: add --config with the configuration to use"
        raise ConfigError(f"the configuration kept in {store.root} cannot be used: {reason}") from None


def models_kept(store: Store) -> dict[str, ModelConfig]:
    """The settings of the models in the configuration that the root keeps, by name, even if their family is unknown.

    Raises ConfigError if this version does not understand them.
    """
    raw = read(_keys(store) or {}, store.root, ())
    try:
        models = [ModelConfig.model_validate(model) for model in raw.get("models", ())]
    except ValidationError as error:
        reason = describe(error, raw, RunConfig)
        raise ConfigError(f"this version does not understand the models kept in {store.root}: {reason}") from None
    return {model.name: model for model in models}


@contextmanager
def keeping(config: RunConfig, store: Store) -> Iterator[list[Difference]]:
    """Store this configuration in the root, and yield its differences from the one that the root kept before.

    If the block raises UserError, which means that the configuration cannot be run, the former one is restored; but not
    if another try may help (exit code 1).
    """
    text, settings = _text(store), _settings(config)
    before = None
    with suppress(ConfigError):  # another version wrote it: then no differences are reported
        before = _settings(kept(store))
    unchanged = json.dumps(before) == json.dumps(settings)  # the order of models matters too
    if not unchanged:
        store.write_bytes(FILE, (HEADER + yaml.safe_dump(settings, sort_keys=False, allow_unicode=True)).encode())
    try:
        yield [] if before is None else list(differences(before, settings))
    except UserError as error:
        if error.exit_code == 1:
            raise
        if text is None:
            store.delete(FILE)
        elif not unchanged:
            store.write_bytes(FILE, text)
        raise


def refuse_another(config: RunConfig, store: Store) -> None:
    """Raise UserError if the configuration differs from the one that the root keeps."""
    before = _settings(kept(store))
    named = [] if before is None else list(map(str, differences(before, _settings(config))))
    if named:
        more = f" and {len(named) - MOST_NAMED} more" if len(named) > MOST_NAMED else ""
        raise UserError(
            f"{store.root} was last computed with another configuration ({'; '.join(named[:MOST_NAMED])}{more}): leave "
            "out --config and --set to use that one, or run `closelook run` with them first"
        )


def differences(then: Any, now: Any, key: str = "") -> Iterator[Difference]:
    """Yield each setting that differs between two configurations, or two values of the setting `key`.

    Mappings, and lists whose entries all have a `name`, are compared entry by entry; other values as a whole.
    """
    before, after = _by_name(then), _by_name(now)
    if isinstance(before, dict) and isinstance(after, dict):
        for name in {**before, **after}:
            yield from differences(before.get(name), after.get(name), f"{key}.{name}" if key else name)
    elif then != now:
        yield Difference(key, then, now)


def _text(store: Store) -> bytes | None:
    """The content of the configuration file that the root keeps; None if it keeps none."""
    (text,) = store.read_all([FILE])
    return text


def _keys(store: Store) -> dict[str, Any] | None:
    """The raw keys of the configuration that the root keeps; None if it keeps none. Raises ConfigError for bad YAML."""
    text = _text(store)
    if text is None:
        return None
    return parse(text.decode(), f"{store.root}/{FILE}")


def _settings(config: RunConfig | None) -> dict[str, Any] | None:
    """All settings but the root, since one root may be reached by several paths; None for None."""
    return None if config is None else config.model_dump(mode="json", exclude={"root"})


def _by_name(value: Any) -> Any:
    """A list whose entries all have a `name` as a mapping by name; any other value unchanged."""
    if isinstance(value, list) and value and all(isinstance(entry, dict) and "name" in entry for entry in value):
        return {entry["name"]: entry for entry in value}
    return value


def _short(value: Any) -> str:
    """A value as JSON; keys of a section whose value is null or empty are left out."""
    if isinstance(value, dict):
        value = {key: part for key, part in value.items() if part not in (None, [], {})}
    return json.dumps(value, ensure_ascii=False)
