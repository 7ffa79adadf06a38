"""How the images of a configured model are prepared: what its checkpoint, or the geometry, says of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evaluation.benchmark.pictures import SETTINGS, Preprocessing
from jobs.plan.hub import ModelUnavailable, fetch
from jobs.store.retry import HUB_PATIENCE_S, StillUnavailable, retried
from lrp_core.types import UserError

if TYPE_CHECKING:
    from transformers import PretrainedConfig

    from jobs.config import ModelConfig


def preprocessing_of(model: ModelConfig, location: str, config: PretrainedConfig) -> Preprocessing:
    """The preprocessing of a model at this `location`; random weights get that of the first vision transformers.

    Raises UserError for settings that are missing, unreadable or not known, ModelUnavailable where the hub does not
    answer.
    """
    settings: dict[str, Any] = {}
    if not location.startswith("random/"):
        settings = _settings(model, location)
    elif not isinstance(config.image_size, int):
        raise UserError(f"model {model.name}: images of random weights are square")
    else:
        settings = {"size": {"height": config.image_size, "width": config.image_size}}
    try:
        return Preprocessing.of(settings, config.to_dict())
    except UserError as error:
        raise UserError(f"model {model.name}: {error}") from None


def _settings(model: ModelConfig, location: str) -> dict[str, Any]:
    try:
        path: Path | str | None = Path(location) / SETTINGS
        if not Path(location).is_dir():
            path = retried(lambda: fetch(location, SETTINGS, model.revision), HUB_PATIENCE_S)
        if path is None or not Path(path).is_file():
            raise UserError(
                f"model {model.name}: {location} has no {SETTINGS}, which says how images are prepared: put it there"
            )
        settings = json.loads(Path(path).read_text(encoding="utf-8"))
    except UserError:
        raise
    except (StillUnavailable, OSError) as error:
        raise ModelUnavailable(f"model {model.name}: its {SETTINGS} cannot be read: {error}") from error
    except ValueError as error:
        raise UserError(f"model {model.name}: its {SETTINGS} is not JSON: {error}") from None
    if not isinstance(settings, dict):
        raise UserError(f"model {model.name}: its {SETTINGS} is not an object of JSON")
    return settings
