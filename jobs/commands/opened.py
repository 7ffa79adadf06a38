"""Models that questions are put to: named, checked and opened, and loaded when the first question is answered."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from os import PathLike
from typing import Any

from jobs.config import ModelConfig
from jobs.plan.models import ResolvedModel, decoder_tokenizer_of, load_tokenizer, open_view, resolve
from jobs.versions import versions
from lrp_core.families.generic import GENERIC
from lrp_core.loading import check_place
from lrp_core.types import UserError
from lrp_core.view import ModelView

Location = str | PathLike[str]


@dataclass(frozen=True)
class Opened:
    """A model that questions are put to; its weights are loaded when the first is answered, and stay."""

    id: str  # as the user wrote it
    resolved: ResolvedModel
    tokenizer: Any  # None of a model of images
    dtype: str
    device: str
    decoder_tokenizer: Any = None  # of an encoder-decoder whose answer another tokenizer writes
    seed: int = 0  # of random weights

    @property
    def writer(self) -> Any:
        """The tokenizer of predictions."""
        return self.tokenizer if self.decoder_tokenizer is None else self.decoder_tokenizer

    @property
    def facts(self) -> dict[str, Any]:
        """The facts about the model that files of results hold."""
        return {"model": self.id, "identity": self.resolved.identity, "dtype": self.dtype, "versions": versions()}

    @cached_property
    def view(self) -> ModelView:
        """The model with its weights. Raises ModelUnavailable."""
        return open_view(self.resolved, self.dtype, self.device, self.seed)


def open_model(
    model: Location,
    dtype: str = "float32",
    device: str = "cpu",
    family: str | None = None,
    adapter: Location | None = None,
    decoder_tokenizer: Location | None = None,
) -> Opened:
    """Open `demo/gpt2`, a hub id or a folder, without its weights.

    `family` "generic" takes a model that no family describes, `adapter` is a LoRA adapter of it, `decoder_tokenizer`
    writes an encoder-decoder's answer where another tokenizer reads its text. Raises UserError for arguments that do
    not fit, ModelUnavailable for files that cannot be reached.
    """
    if family not in (None, GENERIC):
        raise UserError(f"--family is {GENERIC!r} or left out, not {family!r}")
    check_place(dtype, device)
    locations = {"model": model, "adapter": adapter, "decoder_tokenizer": decoder_tokenizer}
    named = {name: _text(name, value) for name, value in locations.items() if value is not None}
    model_id = named.pop("model")
    config = ModelConfig.model_validate({"name": name_of(model_id), "id": model_id, "family": family, **named})
    resolved = resolve(config)
    tokenizer = None if resolved.kind.images else load_tokenizer(config)
    return Opened(model_id, resolved, tokenizer, dtype, device, decoder_tokenizer_of(config))


def _text(name: str, value: Any) -> str:
    """The hub id or path of a model, an adapter or a tokenizer."""
    if not isinstance(value, str | PathLike):
        raise UserError(f"{name} is a hub id or a folder, not {value!r}")
    return str(value)


def name_of(model_id: str) -> str:
    """The last part of an id or path, as far as a configured model may be named so."""
    last = model_id.rstrip("/").rpartition("/")[2]
    return re.sub(r"^[^A-Za-z0-9]+|[^A-Za-z0-9._-]+", "", last) or "model"
