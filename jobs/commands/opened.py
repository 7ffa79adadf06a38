"""Models that questions are put to: named, checked and opened, and loaded when the first question is answered."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from os import PathLike
from typing import Any

from jobs.config import ModelConfig
from jobs.plan.models import ResolvedModel, decoder_tokenizer_of, load_tokenizer, open_view, resolve
from lrp_core.families.generic import GENERIC
from lrp_core.loading import check_place
from lrp_core.types import UserError
from lrp_core.view import ModelView


@dataclass(frozen=True)
class Opened:
    """A model that questions are put to; its weights are loaded when the first is answered, and stay."""

    id: str  # as it was asked for
    resolved: ResolvedModel
    tokenizer: Any  # None of a model of images
    dtype: str
    device: str
    decoder_tokenizer: Any = None  # of an encoder-decoder whose answer another tokenizer writes

    @property
    def writer(self) -> Any:
        """The tokenizer of what is predicted."""
        return self.tokenizer if self.decoder_tokenizer is None else self.decoder_tokenizer

    @cached_property
    def view(self) -> ModelView:
        """Raises ModelUnavailable."""
        return open_view(self.resolved, self.dtype, self.device)


def open_model(
    model: str | PathLike[str],
    dtype: str = "float32",
    device: str = "cpu",
    family: str | None = None,
    adapter: str | PathLike[str] | None = None,
    decoder_tokenizer: str | PathLike[str] | None = None,
) -> Opened:
    """`model` is `demo/gpt2`, a hub id or a folder; `family` "generic" takes one that no family describes, `adapter` is
    a LoRA adapter of it, `decoder_tokenizer` writes an encoder-decoder's answer where another reads its text. Raises
    UserError for what cannot be, ModelUnavailable for what cannot be reached."""
    if family not in (None, GENERIC):
        raise UserError(f"--family is {GENERIC!r} or left out, not {family!r}")
    check_place(dtype, device)
    model, adapter = _text("model", model), None if adapter is None else _text("adapter", adapter)
    settings = {"name": name_of(model), "id": model, "family": family, "adapter": adapter}
    if decoder_tokenizer is not None:
        settings["decoder_tokenizer"] = _text("decoder_tokenizer", decoder_tokenizer)
    resolved = resolve(ModelConfig.model_validate(settings))
    tokenizer = None if resolved.kind.images else load_tokenizer(resolved.config)
    return Opened(model, resolved, tokenizer, dtype, device, decoder_tokenizer_of(resolved.config))


def _text(name: str, value: Any) -> str:
    """What names a model, an adapter or a tokenizer: a string, or the path of a folder."""
    if not isinstance(value, str | PathLike):
        raise UserError(f"{name} is a hub id or a folder, not {value!r}")
    return str(value)


def name_of(model_id: str) -> str:
    """The last part of an id or path, as far as a configured model may be named so."""
    last = model_id.rstrip("/").rpartition("/")[2]
    return re.sub(r"^[^A-Za-z0-9]+|[^A-Za-z0-9._-]+", "", last) or "model"
