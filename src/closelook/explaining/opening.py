"""Opens models to explain, by name or in memory."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import extract_model_from_parallel
from huggingface_hub import try_to_load_from_cache
from huggingface_hub.errors import HFValidationError
from torch import nn
from transformers import AutoTokenizer, BaseImageProcessor, Pipeline, PreTrainedTokenizerBase
from transformers.utils.hub import cached_file, extract_commit_hash
from transformers.utils.logging import disable_progress_bar

from closelook.evaluation.benchmark.demo import place_of
from closelook.evaluation.benchmark.encoding import Pieces, Segmenter
from closelook.evaluation.benchmark.labels import distinct, index_of, sharing
from closelook.evaluation.benchmark.pictures import SETTINGS, Preprocessing
from closelook.gguf import folder_of
from closelook.hub import hub_reachable
from closelook.lrp_core.families.generic import GENERIC
from closelook.lrp_core.opening.checkpoint import CONFIG
from closelook.lrp_core.opening.loading import load_model
from closelook.lrp_core.opening.model import view_of
from closelook.lrp_core.records.kinds import Kind
from closelook.lrp_core.records.types import UserError, nearest
from closelook.lrp_core.views.guard import left_as_it_was
from closelook.lrp_core.views.view import ModelView
from closelook.terminal import complain
from closelook.versions import versions
from closelook.weights import hash_files, numbers_of

AUTO = "auto"  # device: a GPU if there is one
_announced: set[str] = set()  # devices chosen for "auto" that this process has announced


@dataclass(frozen=True)
class Model:
    """The facts of a model that results keep."""

    id: str
    identity: str  # the commit or hash of its weights
    dtype: str

    @property
    def facts(self) -> dict[str, Any]:
        """Model, weights, precision and versions as plain data."""
        return {"model": self.id, "identity": self.identity, "dtype": self.dtype, "versions": versions()}


@dataclass(frozen=True, repr=False)
class Opened:
    """A model to explain, with its tokenizer or its preparation of images."""

    id: str  # as the user wrote it; for a model in memory, its name
    view: ModelView
    identity: str  # the commit or hash of its weights
    tokenizer: Any = None  # None for a model of images
    decoder_tokenizer: Any = None  # of an encoder-decoder's decoder, if it is not `tokenizer`
    images: Preprocessing | None = None
    segmenter: Segmenter | None = None  # splits text of scripts without spaces into words; None: the tokenizer's pieces
    family: str | None = None
    held: nn.Module | None = None  # the caller's model in memory

    def __repr__(self) -> str:
        return f"<{self.id}: {self.view.family.title}, {self.dtype} on {self.device}>"

    @property
    def model(self) -> Model:
        """The model's name, weights and precision."""
        return Model(self.id, self.identity, self.dtype)

    @property
    def dtype(self) -> str:
        """The precision of the weights, as `float32`."""
        return str(self.view.dtype).removeprefix("torch.")

    @property
    def device(self) -> str:
        """The device of the weights."""
        return str(self.view.device)

    @property
    def kind(self) -> Kind:
        """The kind of the model: causal, masked, classifier, of images, ..."""
        return self.view.kind

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

    @cached_property
    def labels(self) -> tuple[str, ...]:
        """The labels of a classifier in the order of its outputs; () of other models."""
        if not self.kind.labels or self.view.predicts_score:
            return ()
        names = sorted((self.view.config.id2label or {}).items())
        return distinct([str(name) for _, name in names])

    @property
    def output(self) -> str:
        """The word for what the model predicts: token, label or score."""
        if not self.kind.labels:
            return "token"
        return "score" if self.view.predicts_score else "label"

    def label_id(self, name: str) -> int:
        """The output with this label, by name or number. Raises UserError for no such label, and for several."""
        if several := sharing(name, self.labels):
            names = " or ".join(map(repr, several))
            raise UserError(f"{self.id} has the label {name!r} more than once: write {names}")
        number = index_of(name, self.labels)
        if number is None:
            raise UserError(f"{self.id} has no label {name!r}{nearest(name, self.labels)}")
        return number

    @contextmanager
    def in_use(self) -> Iterator[Opened]:
        """Yield the model ready to be explained. Afterwards, a model that the caller holds is as it was before."""
        if self.held is None:
            yield self
            return
        with left_as_it_was(self.held):
            yield replace(self, view=view_of(self.held, self.family))


def open_model(
    model: Any,
    dtype: str | None = None,
    device: str = AUTO,
    *,
    family: str | None = None,
    adapter: str | Path | None = None,
    tokenizer: Any = None,
    decoder_tokenizer: Any = None,
    segmenter: Segmenter | None = None,
) -> Opened:
    """Open a model to explain: `demo/gpt2`, a hub id, a folder, or a model that the caller has in memory.

    A model in memory is one of transformers, a peft model around one, a `pipeline` or a `ModelView`. It keeps its
    precision and device, and is left as it was. `tokenizer` replaces the model's own: a tokenizer of transformers, its
    hub id or folder; for a model of images in memory, its image processor. `dtype` None: float32. `device` "auto": a
    GPU if there is one. `family` "generic": treat the model as a black box, for a model that no family describes.
    `adapter`: a LoRA adapter. `decoder_tokenizer`: the tokenizer of an encoder-decoder's decoder, if it is another than
    that of its texts. `segmenter`: a function from a text without spaces, such as Chinese, to the list of its words.

    Raises UserError for a model that cannot be opened, and for arguments that do not fit.
    """
    if isinstance(model, Opened):
        return model
    if family not in (None, GENERIC):
        raise UserError(f"`family` must be {GENERIC!r} or left out, not {family!r}")
    if isinstance(model, str | PathLike):
        disable_progress_bar()  # of transformers, which is drawn even where nobody looks
        name = str(model)
        location = _location(name)
        revision = _revision(location)
        view = load_model(
            location,
            dtype=dtype or "float32",
            device=chosen_device(device),
            revision=revision,
            family=family,
            adapter=adapter,
        )
        opened = Opened(name, view, _identity(location, revision, adapter))
        reader = location if tokenizer is None else tokenizer
    else:
        check_unchanged(dtype, device, adapter)
        opened, reader = _in_memory(model, tokenizer, family)
        location = opened.id
    opened = replace(opened, family=family, segmenter=segmenter)
    if opened.kind.images:
        return replace(opened, images=_preprocessing(opened, location, reader))
    if decoder_tokenizer is not None and not opened.kind.decoder:
        raise UserError(f"model {opened.id} is no encoder-decoder: leave `decoder_tokenizer` out")
    of_decoder = None if decoder_tokenizer is None else _tokenizer(decoder_tokenizer, "decoder_tokenizer")
    return replace(opened, tokenizer=_tokenizer(reader, "tokenizer"), decoder_tokenizer=of_decoder)


def _location(model: str) -> str:
    """The folder or hub id of a model. Raises UserError if there is no such folder or demo, or the hub is silent."""
    try:
        place = folder_of(place_of(model))
    except OSError as error:
        raise UserError(f"cannot get {model} from the hub: {str(error).strip().splitlines()[0]}") from error
    if Path(place).is_dir():
        return place
    try:
        is_known = isinstance(try_to_load_from_cache(model, CONFIG), str)
    except HFValidationError:
        raise UserError(f"{model!r} is neither a directory nor a model on the hub: check its name") from None
    if not is_known and not hub_reachable():
        raise UserError(f"there is no directory {model}, and the hub does not answer: give a folder, or a cached id")
    return model


def check_unchanged(dtype: str | None, device: str, adapter: str | PathLike[str] | None) -> None:
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
    if chosen not in _announced:
        _announced.add(chosen)
        complain(f"on {chosen} ({torch.cuda.get_device_name(0)}), as `device` is {AUTO!r}")
    return chosen


def _revision(location: str) -> str | None:
    """The hub's commit of a model, so that all its files are of one commit; None for a folder."""
    if Path(location).is_dir():
        return None
    silent = {"_raise_exceptions_for_missing_entries": False, "_raise_exceptions_for_connection_errors": False}
    return extract_commit_hash(cached_file(location, CONFIG, **silent), None)


def _identity(location: str, revision: str | None, adapter: str | PathLike[str] | None) -> str:
    """The commit of a model on the hub, or a hash of its files in a folder."""
    beside = "" if adapter is None else f" with adapter {adapter}"
    folder = Path(location)
    if not folder.is_dir():
        return f"{location}@{revision}{beside}"
    return f"sha256:{hash_files(numbers_of(folder))}{beside}"


def _in_memory(model: Any, reader: Any, family: str | None) -> tuple[Opened, Any]:
    """(a model in memory, its tokenizer or image processor). Raises UserError if `model` is no model."""
    held, view = model, None
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
    kind, name = type(view.model).__name__, name_in_memory(view)
    if reader is None and not view.kind.images:
        try:
            reader = _tokenizer(_location(name), "tokenizer")
        except UserError:
            raise UserError(f"no tokenizer was found for the {kind} in memory: give it as `tokenizer`") from None
    return Opened(name, view, f"{kind} in memory", held=held), reader


def _tokenizer(tokenizer: Any, name: str) -> Any:
    """`tokenizer` itself, or the tokenizer of that hub id or folder. Raises UserError for anything else."""
    if isinstance(tokenizer, str | PathLike):
        location = _location(str(tokenizer))
        try:
            tokenizer = AutoTokenizer.from_pretrained(location, trust_remote_code=False)
        except (OSError, ValueError) as error:
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise UserError(f"the tokenizer {location} cannot be read: {reason}") from None
        if len(tokenizer) <= len(set(tokenizer.all_special_tokens)):
            raise UserError(
                f"no tokenizer could be loaded; tried {location} (it holds no tokenizer's files): put tokenizer.json "
                f"there, or give another place as `{name}`"
            )
    if not isinstance(tokenizer, PreTrainedTokenizerBase):
        kinds = "a tokenizer of transformers, its hub id or a folder"
        raise UserError(f"`{name}` must be {kinds}, not {_short(tokenizer)}")
    if not tokenizer.is_fast:
        kind = type(tokenizer).__name__
        raise UserError(f"`{name}`: {kind} gives no character offsets of tokens: give a fast tokenizer")
    return tokenizer


def _preprocessing(opened: Opened, location: str, processor: Any) -> Preprocessing:
    """The preparation of a model's images, by its files or its image processor. Raises UserError if there is none."""
    if isinstance(processor, BaseImageProcessor):
        settings = processor.to_dict()
    elif opened.identity.endswith(" in memory"):
        name = type(opened.view.model).__name__
        raise UserError(f"{name} in memory reads images: give its image processor as `tokenizer`, or its pipeline")
    else:
        file = cached_file(location, SETTINGS, _raise_exceptions_for_missing_entries=False)
        if file is None:
            raise UserError(f"{location} has no {SETTINGS}, which says how images are prepared: put it there")
        settings = json.loads(Path(file).read_text(encoding="utf-8"))
    return Preprocessing.of(settings, opened.view.config.to_dict())


def _short(value: Any) -> str:
    """A value for an error message, in one line; only its type if it is longer than 60 characters."""
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else f"a {type(value).__name__}"


def name_in_memory(view: ModelView) -> str:
    """The hub id or folder from which a model in memory was loaded; the name of its class if there is none."""
    return str(view.model.name_or_path) or type(view.model).__name__
