"""Opens models to explain, by name or in memory. Weights are loaded when the first question is answered."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from os import PathLike
from typing import Any

import torch
from accelerate.utils import extract_model_from_parallel
from torch import nn
from transformers import PreTrainedTokenizerBase

from closelook.evaluation.benchmark.encoding import Pieces
from closelook.evaluation.benchmark.pictures import Preprocessing
from closelook.jobs.config import ModelConfig
from closelook.jobs.plan.checkpoints import ModelUnavailable, head_of
from closelook.jobs.plan.models import ResolvedModel, load_tokenizer, open_view, resolve
from closelook.lrp_core.families.generic import GENERIC
from closelook.lrp_core.opening.loading import check_place
from closelook.lrp_core.opening.model import view_of
from closelook.lrp_core.records.types import UserError
from closelook.lrp_core.views.guard import left_as_it_was
from closelook.lrp_core.views.view import ModelView
from closelook.terminal import complain
from closelook.versions import versions

Location = str | PathLike[str]
AUTO = "auto"  # device: a GPU if there is one
_told: set[str] = set()  # devices chosen for "auto" that this process has announced


@dataclass(frozen=True, repr=False)
class Opened:
    """A model to explain. `view` loads its weights when it is first used, and keeps them."""

    id: str  # as the user wrote it; for a model in memory, its name
    resolved: ResolvedModel
    tokenizer: Any  # None for a model of images
    dtype: str
    device: str
    decoder_tokenizer: Any = None  # of an encoder-decoder's decoder, if it is not `tokenizer`
    seed: int = 0  # of random weights
    held: nn.Module | None = None  # the caller's model in memory; None if weights are loaded here
    has_other_tokenizer: bool = False  # the caller gave one in place of the model's own
    in_memory: bool = False  # the caller's model, which its id may not open

    def __repr__(self) -> str:
        return f"<{self.id}: {self.resolved.family.title}, {self.dtype} on {self.device}>"

    def __getstate__(self) -> dict[str, Any]:
        """The fields that are pickled: without the model, whose weights an explanation does not need."""
        return {**{name: value for name, value in vars(self).items() if name != "view"}, "held": None}

    @property
    def writer(self) -> Any:
        """The tokenizer of predictions."""
        return self.tokenizer if self.decoder_tokenizer is None else self.decoder_tokenizer

    @cached_property
    def texts(self) -> Pieces:
        """Turns tokens that the model reads into texts."""
        return Pieces(self.tokenizer)

    @cached_property
    def written(self) -> Pieces:
        """Turns predicted tokens into texts."""
        return self.texts if self.decoder_tokenizer is None else Pieces(self.decoder_tokenizer)

    @property
    def facts(self) -> dict[str, Any]:
        """Model, identity of its weights, precision and versions, as files of results record them."""
        return {"model": self.id, "identity": self.resolved.identity, "dtype": self.dtype, "versions": versions()}

    @cached_property
    def view(self) -> ModelView:
        """The view of the model with its weights, which the first use loads.

        A model that the caller holds is wrapped: use it within `in_use`. Raises ModelUnavailable, and UserError for a
        model in memory after pickling, which leaves it out.
        """
        if self.in_memory and self.held is None:
            raise UserError(
                f"{self.id} was a model in memory, which is not pickled with its explanations: open it again"
            )
        if self.held is None:
            return open_view(self.resolved, self.dtype, self.device, self.seed)
        return view_of(self.held, self.resolved.config.family)

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """A context in which the model is explained. Afterwards, a model that the caller holds is as it was before."""
        if self.held is None:
            yield
            return
        with left_as_it_was(self.held):
            try:
                yield
            finally:
                vars(self).pop("view", None)


def open_model(
    model: Any,
    dtype: str | None = None,
    device: str = AUTO,
    family: str | None = None,
    adapter: Location | None = None,
    decoder_tokenizer: Any = None,
    tokenizer: Any = None,
) -> Opened:
    """Open a model to explain: `demo/gpt2`, a hub id, a folder, or a model that the caller has in memory.

    A model in memory is one of transformers, a peft model around one, a `pipeline` or a `ModelView`. It keeps its
    precision and device, and is left as it was; weights of other models are not loaded yet. `tokenizer` replaces the
    model's own: a tokenizer of transformers, its hub id or folder; for a model of images in memory, its image
    processor. `dtype` None: float32. `device` "auto": a GPU if there is one. `family` "generic": treat the model as a
    black box, for a model that no family describes. `adapter`: a LoRA adapter. `decoder_tokenizer`: the tokenizer of an
    encoder-decoder's decoder, if it is another than that of its texts.

    Raises UserError for arguments that do not fit, ModelUnavailable for files that cannot be reached.
    """
    if isinstance(model, Opened):
        return model
    if family not in (None, GENERIC):
        raise UserError(f"`family` must be {GENERIC!r} or left out, not {family!r}")
    if not isinstance(model, str | PathLike):
        check_unchanged(dtype, device, adapter)
        return _in_memory(model, tokenizer, decoder_tokenizer, family)
    dtype, device = dtype or "float32", chosen_device(device)
    check_place(dtype, device)
    locations = {"model": model, "adapter": adapter}
    named = {name: _text(name, value) for name, value in locations.items() if value is not None}
    model_id = named.pop("model")
    config = ModelConfig.model_validate({"name": name_of(model_id), "id": model_id, "family": family, **named})
    resolved = resolve(config)
    read = None if resolved.kind.images else _tokenizer(tokenizer, config)
    of_decoder = _of_decoder(decoder_tokenizer, resolved)
    is_other = tokenizer is not None or of_decoder is not None
    return Opened(model_id, resolved, read, dtype, device, of_decoder, has_other_tokenizer=is_other)


def check_unchanged(dtype: str | None, device: str, adapter: Location | None) -> None:
    """Raise UserError if one of these arguments is given, which a model in memory cannot follow."""
    fixed = {"dtype": dtype, "adapter": adapter, "device": None if device == AUTO else device}
    for name, value in fixed.items():
        if value is not None:
            raise UserError(f"a model in memory keeps its weights, precision and device: leave `{name}` out")


def chosen_device(device: str) -> str:
    """`device`; for "auto", a GPU if torch sees one (which is announced once), else "cpu"."""
    if device != AUTO:
        return device
    if not torch.cuda.is_available():
        return "cpu"
    chosen = "cuda:0"
    if chosen not in _told:
        _told.add(chosen)
        complain(f"on {chosen} ({torch.cuda.get_device_name(0)}), as `device` is {AUTO!r}")
    return chosen


def _in_memory(model: Any, tokenizer: Any, decoder_tokenizer: Any, family: str | None) -> Opened:
    """Open a model in memory. Raises UserError if `model` is no model, or if no tokenizer can be found for it."""
    from transformers import Pipeline

    held, view, reader = model, None, tokenizer
    if isinstance(model, Pipeline):
        held = model.model
        reader = reader or model.tokenizer or model.image_processor
    if isinstance(held, ModelView):
        view, held = held, None
        reader = reader or (view.read_tokenizer and view.read_tokenizer())
    elif isinstance(held, nn.Module):
        held = extract_model_from_parallel(held, keep_torch_compile=False)
        with left_as_it_was(held):
            view = view_of(held, family)
    else:
        kinds = "a hub id, a folder, or a model, pipeline or ModelView in memory"
        raise UserError(f"`model` must be {kinds}, not {_short(model)}")
    name = name_in_memory(view)
    config = ModelConfig.model_validate({"name": name_of(name), "id": name, "family": family})
    output, labels = head_of(config, view.family, view.config)
    identity, most = f"{type(view.model).__name__} in memory", view.family.most_tokens(view.config)
    resolved = ResolvedModel(config, name, None, identity, view.family, most, output, labels)
    if view.kind.images:
        resolved, reader = replace(resolved, preprocessing=_preprocessing(reader, view)), None
    else:
        try:
            reader = _tokenizer(reader, config)
        except (UserError, ModelUnavailable):
            if reader is not None:
                raise
            kind = type(view.model).__name__
            raise UserError(f"no tokenizer was found for the {kind} in memory: give it as `tokenizer`") from None
    dtype, device = str(view.dtype).removeprefix("torch."), str(view.device)
    of_decoder = _of_decoder(decoder_tokenizer, resolved)
    is_other = tokenizer is not None or of_decoder is not None
    opened = Opened(
        name, resolved, reader, dtype, device, of_decoder, held=held, has_other_tokenizer=is_other, in_memory=True
    )
    if held is None:
        vars(opened)["view"] = view
    return opened


def _tokenizer(tokenizer: Any, config: ModelConfig, name: str = "tokenizer") -> Any:
    """`tokenizer` itself, or the tokenizer of that hub id or folder; None: the tokenizer of the model.

    `name` is the argument's, for errors. Raises UserError for anything that is no fast tokenizer.
    """
    if tokenizer is None:
        return load_tokenizer(config)
    if isinstance(tokenizer, str | PathLike):
        return load_tokenizer(config.model_copy(update={"tokenizer": (str(tokenizer),)}))
    if not isinstance(tokenizer, PreTrainedTokenizerBase):
        kinds = "a tokenizer of transformers, its hub id or a folder"
        raise UserError(f"`{name}` must be {kinds}, not {_short(tokenizer)}")
    if not tokenizer.is_fast:
        kind = type(tokenizer).__name__
        raise UserError(f"`{name}`: {kind} gives no character offsets of tokens: give a fast tokenizer")
    return tokenizer


def _of_decoder(tokenizer: Any, resolved: ResolvedModel) -> Any:
    """The separate tokenizer of an encoder-decoder's decoder; None if `tokenizer` is None, as for most models."""
    if tokenizer is None:
        return None
    if not resolved.kind.decoder:
        raise UserError(f"model {resolved.config.name} is no encoder-decoder: leave `decoder_tokenizer` out")
    return _tokenizer(tokenizer, resolved.config, "decoder_tokenizer")


def _preprocessing(processor: Any, view: ModelView) -> Preprocessing:
    """The preparation of images for a model in memory. Raises UserError if `processor` is no image processor."""
    from transformers import BaseImageProcessor

    if not isinstance(processor, BaseImageProcessor):
        name = type(view.model).__name__
        raise UserError(f"{name} in memory reads images: give its image processor as `tokenizer`, or its pipeline")
    return Preprocessing.of(processor.to_dict(), view.config.to_dict())


def _short(value: Any, most: int = 60) -> str:
    """A value for an error message, in one line; only its type if it is longer than `most` characters."""
    text = " ".join(repr(value).split())
    return text if len(text) <= most else f"a {type(value).__name__}"


def _text(name: str, value: Any) -> str:
    """The hub id or path `value` of the argument `name` as a string. Raises UserError for any other value."""
    if not isinstance(value, str | PathLike):
        raise UserError(f"`{name}` must be a hub id or a folder, not {_short(value)}")
    return str(value)


def name_in_memory(view: ModelView) -> str:
    """The hub id or folder from which a model in memory was loaded; the name of its class if there is none."""
    return str(view.model.name_or_path) or type(view.model).__name__


def name_of(model_id: str) -> str:
    """The last part of an id or path, without characters that the name of a configured model may not have."""
    last = model_id.rstrip("/").rpartition("/")[2]
    return re.sub(r"^[^A-Za-z0-9]+|[^A-Za-z0-9._-]+", "", last) or "model"
