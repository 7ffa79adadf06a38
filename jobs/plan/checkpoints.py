"""Files of models, on the hub or in a directory: config, head, adapter, image settings, weights and their hashes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from closelook.evaluation.benchmark.demo import EVERY, place_of
from closelook.evaluation.benchmark.labels import distinct
from closelook.evaluation.tasks.record import Output
from closelook.gguf import folder_of
from closelook.hub import hub_reachable
from closelook.jobs.config import ModelConfig
from closelook.jobs.geometries import GEOMETRIES
from closelook.jobs.store.retry import HUB_PATIENCE_S, causes, is_passing, one_line, retried
from closelook.lrp_core.opening.checkpoint import CONFIG, files_of_index
from closelook.lrp_core.records.types import UserError, did_you_mean
from closelook.weights import hash_files

if TYPE_CHECKING:
    from transformers import PretrainedConfig

    from closelook.evaluation.benchmark.pictures import Preprocessing
    from closelook.lrp_core.families import Family


class ModelUnavailable(RuntimeError):
    """The model may exist but cannot be reached or read now. Its own cells fail; other models go on."""

    def _render_traceback_(self) -> list[str]:
        """The lines that a notebook shows in place of a traceback."""
        return [f"{type(self).__name__}: {self}"]


def commit_of(model: ModelConfig, location: str) -> str:
    """The hub's commit of the config that was just read, from its path in the cache.

    Raises ModelUnavailable if the path does not tell.
    """
    from transformers.utils.hub import cached_file, extract_commit_hash

    path = cached_file(location, "config.json", revision=model.revision, local_files_only=True)
    commit = extract_commit_hash(path, None)
    if commit is None:
        raise ModelUnavailable(f"model {model.name}: {path} does not tell the commit of {location}: fetch it again")
    return commit


def fetch_weights(location: str, revision: str | None) -> None:
    """Download the model's safetensors into the hub's cache, before transformers reads them there.

    Raises the hub's errors, so that the caller can retry: transformers would call a refused file missing. Does nothing
    for a model without safetensors.
    """
    if fetch(location, "model.safetensors", revision) is not None:
        return
    index = fetch(location, "model.safetensors.index.json", revision)
    if index is not None:
        for name in files_of_index(Path(index)):
            fetch(location, name, revision)


def fetch(location: str, name: str, revision: str | None = None) -> str | None:
    """The path of a hub file in the local cache. Returns None if the hub (offline: the cache) does not have the file.

    Raises every other error of the hub, and that of a missing file if it is transient, so that the caller can retry.
    """
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError

    try:
        return hf_hub_download(location, name, revision=revision)
    except EntryNotFoundError as error:
        if is_passing(error):
            raise
        return None


def location_of(model: ModelConfig) -> str:
    """The directory of a model's files, or its id on the hub.

    Raises UserError for a demo model or GGUF file that does not exist, ModelUnavailable for one out of reach.
    """
    try:
        return retried(lambda: folder_of(place_of(model.id), model.revision), HUB_PATIENCE_S)
    except UserError as error:
        raise UserError(f"model {model.name}: {error}") from None
    except OSError as error:
        raise ModelUnavailable(f"model {model.name}: {one_line(error)}") from error


def reserved(prefix: str) -> list[str]:
    """All ids of demo models (`prefix` is demo) or of random models (random)."""
    return [f"{prefix}/{name}" for name in (EVERY if prefix == "demo" else GEOMETRIES)]


def read_config(model: ModelConfig) -> tuple[str, PretrainedConfig]:
    """(location, transformers config) of a model.

    Raises UserError if there is no such model, ModelUnavailable if it cannot be reached now.
    """
    from huggingface_hub.errors import HFValidationError, RepositoryNotFoundError

    from closelook.lrp_core.opening import checkpoint

    location = location_of(model)
    directory = Path(location)
    is_directory = directory.is_dir()
    if not is_directory and (directory.is_absolute() or location.startswith((".", "~")) or location.count("/") > 1):
        raise UserError(_no_directory(model, directory))
    offline = not is_directory and not hub_reachable()

    def read() -> PretrainedConfig:
        if is_directory:
            checkpoint.check_folder(directory)
        return checkpoint.read_config(location, model.revision, offline, model.family)

    try:
        return location, retried(read, HUB_PATIENCE_S)
    except UserError as error:
        raise type(error)(f"model {model.name}: {error}") from None
    except (OSError, ValueError) as error:
        if any(isinstance(cause, RepositoryNotFoundError | HFValidationError) for cause in causes(error)):
            raise UserError(
                f"model {model.name}: {location!r} is neither a directory nor a model on the hub{_near_id(location)}: "
                "check its name; if it is not public, log in with `hf auth login`"
            ) from None
        if directory.parent != Path() and directory.parent.is_dir():
            raise UserError(_no_directory(model, directory)) from None
        raise ModelUnavailable(f"model {model.name}: {_why_unread(location, offline, error)}") from error
    except Exception as error:  # the constructors of configs raise what their arithmetic raises
        raise ModelUnavailable(
            f"model {model.name}: transformers cannot read its {CONFIG} ({type(error).__name__}: {one_line(error)})"
        ) from error


def _why_unread(location: str, offline: bool, error: Exception) -> str:
    """The reason why a model or adapter at this location cannot be read, and a remedy."""
    nowhere = f"there is no directory {location}, the hub does not answer, and it is not in the local cache"
    advice = "give a folder, or an id that is in that cache"
    return f"{nowhere}{_near_id(location)}: {advice}" if offline else one_line(error)


def _near_id(location: str) -> str:
    """The end of a message about an unknown id: the nearest id among cached models and known geometries."""
    from huggingface_hub import constants

    cached = [path.name.split("--", 1)[1].replace("--", "/") for path in Path(constants.HF_HUB_CACHE).glob("models--*")]
    return did_you_mean(location, [*cached, *(geometry.hub_id for geometry in GEOMETRIES.values())])


def with_adapter(model: ModelConfig, location: str, config: PretrainedConfig) -> tuple[PretrainedConfig, str]:
    """`config` with the fields that the model's adapter changes, and the adapter's part of the model's identity.

    Raises UserError for something that is no adapter, or one of another base, ModelUnavailable if it cannot be reached.
    """
    if model.adapter is None:
        return config, ""
    from closelook.lrp_core.opening import adapters

    folder = _adapter_folder(model, model.adapter)
    adapters.check_base(folder, location)
    return adapters.with_head_of(config, folder, model.family), adapter_key(model)


def adapter_key(model: ModelConfig) -> str:
    """The adapter's part of the model's identity: a hash of its files; "" without one. Raises ModelUnavailable."""
    if model.adapter is None:
        return ""
    from closelook.lrp_core.opening import adapters

    folder = _adapter_folder(model, model.adapter)
    digest = hash_files((folder / adapters.SETTINGS, folder / adapters.WEIGHTS))
    return f" with adapter sha256:{digest}{'' if model.merge else ' beside it'}"


def _adapter_folder(model: ModelConfig, adapter: str) -> Path:
    """The folder with the adapter's files. Raises ModelUnavailable if it cannot be read."""
    from closelook.lrp_core.opening import adapters

    offline = not Path(adapter).expanduser().is_dir() and not hub_reachable()
    try:
        return retried(lambda: adapters.folder_of(adapter, offline), HUB_PATIENCE_S)
    except OSError as error:
        reason = _why_unread(adapter, offline, error)
        raise ModelUnavailable(f"model {model.name}: cannot read its adapter {adapter!r}: {reason}") from error


def _no_directory(model: ModelConfig, directory: Path) -> str:
    """The message that a directory does not exist, with the nearest name among its neighbours."""
    folders = [path.name for path in directory.expanduser().parent.glob("*/")]
    near = did_you_mean(directory.name, folders)
    advice = "give a folder that `save_pretrained` wrote, or a model of `closelook models`"
    return f"model {model.name}: there is no directory {directory}{near}: {advice}"


def preprocessing_of(model: ModelConfig, location: str, config: PretrainedConfig) -> Preprocessing:
    """The settings with which a model's images are prepared; random models get those of the first vision transformers.

    Raises UserError for settings that are missing, unreadable or not known, ModelUnavailable if the hub does not
    answer.
    """
    from closelook.evaluation.benchmark.pictures import Preprocessing

    if not location.startswith("random/"):
        settings = _image_settings(model, location)
    elif isinstance(config.image_size, int):
        settings = {"size": {"height": config.image_size, "width": config.image_size}}
    else:
        raise UserError(
            f"model {model.name}: random weights are supported for square images only: give its geometry one number "
            "as `image_size`"
        )
    try:
        return Preprocessing.of(settings, config.to_dict())
    except UserError as error:
        raise UserError(f"model {model.name}: {error}") from None


def _image_settings(model: ModelConfig, location: str) -> dict[str, Any]:
    """The image settings of a checkpoint, from its file SETTINGS. Raises as :func:`preprocessing_of` does."""
    from closelook.evaluation.benchmark.pictures import SETTINGS

    path: Path | str | None = Path(location) / SETTINGS
    try:
        if not Path(location).is_dir():
            path = retried(lambda: fetch(location, SETTINGS, model.revision), HUB_PATIENCE_S)
        if path is None or not Path(path).is_file():
            raise UserError(
                f"model {model.name}: {location} has no {SETTINGS}, which says how images are prepared: put it there"
            )
        settings = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:  # StillUnavailable too
        raise ModelUnavailable(f"model {model.name}: its {SETTINGS} cannot be read: {error}") from error
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"model {model.name}: its {SETTINGS} is not JSON: {error}") from None
    if not isinstance(settings, dict):
        raise UserError(f"model {model.name}: its {SETTINGS} must be a JSON object")
    return settings


def head_of(model: ModelConfig, family: Family, config: PretrainedConfig) -> tuple[Output, tuple[str, ...]]:
    """The kind of the head's output, and the labels of a classifier in the order of its outputs.

    `classes` of the model replace its own names of labels. Labels with equal names get their number added. Raises
    UserError for several scores, for `classes` of a model that predicts words, and for fewer or more `classes` than
    outputs.
    """
    labels = tuple(str(name) for _, name in sorted((config.id2label or {}).items()))
    if not family.kind.labels:
        if model.classes is not None:
            raise UserError(f"model {model.name}: `classes` name labels, and this model predicts words: leave them out")
        return "token", ()
    if model.classes is not None and len(model.classes) != len(labels):
        raise UserError(
            f"model {model.name}: `classes` names {len(model.classes)} labels, and the model has {len(labels)}: "
            f"{', '.join(labels)}; name one for each, in this order"
        )
    if len(labels) == 1 or config.problem_type == "regression":
        if len(labels) > 1:
            raise UserError(f"model {model.name} predicts {len(labels)} scores at once: give a model with one")
        return "score", ()
    return "label", distinct(model.classes or labels)
