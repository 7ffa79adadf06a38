"""Checkpoints of configured models: where they lie, their configs with those of adapters, and the files of numbers."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import TYPE_CHECKING

from evaluation.benchmark.demo import EVERY, model_dir
from jobs.config import ModelConfig
from jobs.plan.geometries import GEOMETRIES
from jobs.plan.hub import ModelUnavailable, hash_files, hub_reachable, one_line
from jobs.store.retry import HUB_PATIENCE_S, causes, retried
from lrp_core.types import UserError, nearest

if TYPE_CHECKING:
    from transformers import PretrainedConfig


def location_of(model: ModelConfig) -> str:
    """The directory of a model's files, or its id on the hub. Raises UserError for a demo that does not exist."""
    if not model.id.startswith("demo/"):
        return str(Path(model.id).expanduser()) if Path(model.id).expanduser().is_dir() else model.id
    name = model.id.removeprefix("demo/")
    if name not in EVERY:
        raise UserError(f"model {model.name}: unknown id {model.id!r}{nearest(model.id, reserved('demo'))}")
    return str(model_dir(name))


def reserved(prefix: str) -> list[str]:
    """The ids that begin with `demo` or `random`."""
    return [f"{prefix}/{name}" for name in (EVERY if prefix == "demo" else GEOMETRIES)]


def read_config(model: ModelConfig) -> tuple[str, PretrainedConfig]:
    """Where a model lies, and its config. Raises UserError for none, ModelUnavailable where it cannot be reached."""
    from huggingface_hub.errors import HFValidationError, RepositoryNotFoundError

    from lrp_core import loading

    location = location_of(model)
    directory = Path(location)
    if directory.is_dir():
        if not (directory / "config.json").is_file() or not any(directory.glob("*.safetensors")):
            raise UserError(f"model {model.name}: {directory} holds no config.json with *.safetensors weights")
    elif directory.is_absolute() or location.startswith((".", "~")) or location.count("/") > 1:
        raise UserError(_no_directory(model, directory))
    offline = not directory.is_dir() and not hub_reachable()
    try:
        return location, retried(
            lambda: loading.read_config(location, model.revision, offline, model.family), HUB_PATIENCE_S
        )
    except UserError as error:
        raise type(error)(f"model {model.name}: {error}") from None
    except (OSError, ValueError) as error:
        if any(isinstance(cause, RepositoryNotFoundError | HFValidationError) for cause in causes(error)):
            raise UserError(f"model {model.name}: {location} is neither a directory nor a model on the hub") from None
        if directory.parent != Path() and directory.parent.is_dir():
            raise UserError(_no_directory(model, directory)) from None
        reason = f"there is no directory {location}, the hub does not answer, and it is not in the local cache"
        raise ModelUnavailable(f"model {model.name}: {reason if offline else one_line(error)}") from error


def with_adapter(model: ModelConfig, location: str, config: PretrainedConfig) -> tuple[PretrainedConfig, str]:
    """`config` with what the model's adapter adds to it, and what the adapter adds to the model's identity.

    Raises UserError for an adapter that is none or of another base, ModelUnavailable for one that cannot be reached.
    """
    if model.adapter is None:
        return config, ""
    from lrp_core import adapters

    folder = _adapter_folder(model, model.adapter)
    adapters.check_base(folder, location)
    config = adapters.with_head_of(config, folder, model.family)
    adapters.check_fit(config, folder, model.family, model.merge)
    return config, adapter_key(model)


def adapter_key(model: ModelConfig) -> str:
    """What the model's adapter adds to its identity, by its files as they are. Raises ModelUnavailable."""
    if model.adapter is None:
        return ""
    from lrp_core import adapters

    folder = _adapter_folder(model, model.adapter)
    digest = hash_files((folder / adapters.SETTINGS, folder / adapters.WEIGHTS))
    return f" with adapter sha256:{digest}{'' if model.merge else ' beside it'}"


def _adapter_folder(model: ModelConfig, adapter: str) -> Path:
    from lrp_core import adapters

    offline = not Path(adapter).expanduser().is_dir() and not hub_reachable()
    try:
        return retried(lambda: adapters.folder_of(adapter, offline), HUB_PATIENCE_S)
    except OSError as error:
        nowhere = f"there is no directory {adapter}, the hub does not answer, and it is not in the local cache"
        reason = nowhere if offline else one_line(error)
        raise ModelUnavailable(f"model {model.name}: its adapter cannot be read: {reason}") from error


def numbers_of(directory: Path) -> list[Path]:
    """Weights and config; other files of a model's directory change no number."""
    return sorted([directory / "config.json", *directory.glob("*.safetensors")])


def _no_directory(model: ModelConfig, directory: Path) -> str:
    """Says so, and names the folder beside it that is meant perhaps."""
    beside = directory.expanduser().parent
    folders = [path.name for path in beside.iterdir() if path.is_dir()] if beside.is_dir() else []
    close = difflib.get_close_matches(directory.name, folders, n=1)
    hint = f" (did you mean {close[0]!r}?)" if close else ""
    return f"model {model.name}: there is no directory {directory}{hint}"
