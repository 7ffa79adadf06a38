"""Models of the config pinned to exact weights, their tokenizers, and how a worker opens them."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import tempfile
import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from closelook.evaluation.benchmark.labels import index_of, sharing
from closelook.evaluation.tasks.record import Output
from closelook.jobs.config import ModelConfig
from closelook.jobs.geometries import geometry_of
from closelook.jobs.plan.checkpoints import (
    ModelUnavailable,
    adapter_key,
    commit_of,
    fetch,
    fetch_weights,
    head_of,
    hub_reachable,
    location_of,
    preprocessing_of,
    read_config,
    reserved,
    with_adapter,
)
from closelook.jobs.store.retry import HUB_PATIENCE_S, StillUnavailable, one_line, retried
from closelook.lrp_core.families import Family, family_of, register_model_classes
from closelook.lrp_core.families.generic import GENERIC, GenericFamily
from closelook.lrp_core.records.kinds import BLACK
from closelook.lrp_core.records.types import UserError, nearest
from closelook.weights import hash_files, numbers_of

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedTokenizerBase

    from closelook.evaluation.benchmark.pictures import Preprocessing
    from closelook.evaluation.scoring.faithfulness.flips import Flips
    from closelook.lrp_core import Capability, ModelView
    from closelook.lrp_core.records.kinds import Kind


@dataclass(frozen=True)
class ResolvedModel:
    """A model pinned to exact weights. `identity` is part of the keys of all artifacts that depend on the model."""

    config: ModelConfig
    location: str  # hub id, directory, or random/<geometry>
    revision: str | None  # commit on the hub
    identity: str
    family: Family
    max_length: int  # most tokens of a sample
    output: Output = "token"
    labels: tuple[str, ...] = ()  # of a classifier, in the order of its outputs
    preprocessing: Preprocessing | None = None  # of the images that the model reads; None for models of text

    @property
    def kind(self) -> Kind:
        """The kind of the model: causal, masked, classifier, of images, ..."""
        return self.family.kind

    @property
    def key_fields(self) -> dict[str, Any]:
        """The fields of a key that tell apart numbers of this model: its weights, and how attention is computed."""
        return {"model": self.identity, "attention": self.config.attn}

    @property
    def capabilities(self) -> frozenset[Capability]:
        """The properties of the model that methods may need."""
        return self.family.capabilities

    def taken(self, rows: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
        """View rows as the model takes them: of images, `pixels` become `pixel_values` [C, H, W]."""
        images = self.preprocessing
        if images is None:
            return rows
        from closelook.evaluation.benchmark.pictures import pixels_of

        return [{**row, "pixel_values": images.values(pixels_of(row, images)), "pixels": None} for row in rows]

    def filled(self, flips: Flips) -> Flips:
        """`flips` with the values by which removed pixels are replaced; unchanged for models of text."""
        if self.preprocessing is None:
            return flips
        black = self.preprocessing.black
        return replace(flips, fill=black if flips.way == BLACK else (0.0,) * len(black))

    def with_gold(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """A copy of a view row with the number of its gold label as `gold_id`, which is None without a label.

        Raises UserError for a label that the model does not have.
        """
        label = row["label"]
        return {**row, "gold_id": None if label is None else self.label_ids([label])[label]}

    def label_ids(self, names: Iterable[str]) -> dict[str, int]:
        """The number of each label, by name. Raises UserError for one that the model does not have."""
        numbers = {}
        for name in names:
            number = self.label_id(name)
            if number is None:
                raise UserError(
                    f"model {self.config.name}: samples are labelled {name!r}, and its labels are "
                    f"{', '.join(self.labels)}: set its `classes` to the names that samples use, in this order, or "
                    "leave the task out of its `tasks`"
                )
            numbers[name] = number
        return numbers

    def label_id(self, name: str) -> int | None:
        """The output of a classifier with this label, by name or number; None if there is none.

        Raises UserError if several outputs have this name.
        """
        if several := sharing(name, self.labels):
            names = " or ".join(map(repr, several))
            raise UserError(f"model {self.config.name} has the label {name!r} more than once: write {names}")
        return index_of(name, self.labels)


def resolve(model: ModelConfig, seed: int = 0) -> ResolvedModel:
    """Pin `model` to its weights. Reads configs and hashes files, but loads no weights.

    Raises UserError for a model that cannot exist, ModelUnavailable for one that cannot be reached now.
    """
    location, config = _config_of(model)
    if model.decoder_tokenizer and not config.is_encoder_decoder:
        raise UserError(f"model {model.name} is no encoder-decoder: leave out its decoder_tokenizer")
    is_random = model.id.startswith("random/")
    adapted = ""
    try:
        if not is_random:
            config, adapted = with_adapter(model, location, config)
        family = family_of(config, name=None if is_random else model.family)
    except UserError as error:
        raise type(error)(f"model {model.name}: {error}") from None
    output, labels = head_of(model, family, config)
    images = preprocessing_of(model, location, config) if family.kind.images else None
    commit = None
    if is_random:
        classes = "".join(f"+{label}" for label in model.classes or ())
        identity = f"{model.id}@seed{seed}{classes}"
    else:
        commit = None if Path(location).is_dir() else commit_of(model, location)
        identity = _identity(model, location, commit, adapted, family)
    return ResolvedModel(model, location, commit, identity, family, family.most_tokens(config), output, labels, images)


def _config_of(model: ModelConfig) -> tuple[str, PretrainedConfig]:
    """(location, transformers config) of a model. Raises as :func:`resolve` does."""
    if not model.id.startswith("random/"):
        return read_config(model)
    geometry = geometry_of(model.id)
    if geometry is None:
        raise UserError(f"model {model.name}: unknown id {model.id!r}{nearest(model.id, reserved('random'))}")
    return model.id, geometry.config(model.classes or ())


def architecture(model: ModelConfig) -> PretrainedConfig:
    """The transformers config of a model that resolves. Raises as :func:`resolve` does."""
    return _config_of(model)[1]


def _identity(model: ModelConfig, location: str, commit: str | None, adapted: str, family: Family) -> str:
    """A text that is equal only for the same weights that are run in the same way.

    Weights are identified by the commit on the hub, or by a hash of the files in a directory. A family that is not the
    model's own belongs to how they are run.
    """
    weights = f"sha256:{hash_files(numbers_of(Path(location)))}" if commit is None else f"{location}@{commit}"
    generic = f" as {GENERIC}" if isinstance(family, GenericFamily) else ""
    return f"{weights}{adapted}{generic}"


def _check_opened(resolved: ResolvedModel, location: str) -> None:
    """Raises ModelUnavailable if the files that were just opened are not those to which the model was pinned."""
    model = resolved.config
    opened = _identity(model, location, resolved.revision, adapter_key(model), resolved.family)
    if opened != resolved.identity:
        raise ModelUnavailable(
            f"model {model.name}: its weights changed during the run: opened are {opened}, planned were "
            f"{resolved.identity}: run again"
        )


def open_view(resolved: ResolvedModel, dtype: str, device: str, seed: int = 0) -> ModelView:
    """Load the model onto `device`. Weights that its memory limits do not hold are offloaded.

    Raises ModelUnavailable if its files are missing, broken or not those to which it was pinned, StillUnavailable if
    the hub does not serve this machine.
    """
    from transformers.utils.logging import disable_progress_bar

    from closelook.lrp_core import load_model, random_model

    disable_progress_bar()
    model = resolved.config
    read_tokenizer = partial(load_tokenizer, model)
    if model.id.startswith("random/"):
        view = random_model(_config_of(model)[1], seed, dtype, attn=model.attn, device=device)
        return replace(view, read_tokenizer=read_tokenizer)
    limits = {int(key) if key.isdigit() else key: limit for key, limit in (model.max_memory or {}).items()}
    folder = tempfile.mkdtemp(prefix="closelook-offload-") if model.offload else None
    try:
        location = location_of(model)  # where this machine keeps it
        if not Path(location).is_dir():
            retried(lambda: fetch_weights(location, resolved.revision), HUB_PATIENCE_S)
        view = load_model(
            location,
            dtype=dtype,
            device=device,
            revision=resolved.revision,
            attn=model.attn,
            family=model.family,
            adapter=model.adapter,
            merge=model.merge,
            max_memory=limits or None,
            offload_dir=folder,
        )
    except StillUnavailable:
        raise
    except Exception as error:  # safetensors, transformers and torch each have errors for broken files
        raise ModelUnavailable(f"model {model.name} cannot be loaded: {one_line(error)}") from error
    if folder is not None:
        weakref.finalize(view.model, shutil.rmtree, folder, ignore_errors=True)
    _check_opened(resolved, location)
    return replace(view, read_tokenizer=read_tokenizer)


def load_tokenizer(model: ModelConfig) -> PreTrainedTokenizerBase:
    """The first of the model's tokenizer candidates that loads. Raises as :func:`_first_of`."""
    if model.tokenizer:
        return _first_of(model.tokenizer, model)
    geometry = geometry_of(model.id)
    if model.id.startswith("random/") and geometry is not None:
        return _first_of([geometry.hub_id], model)
    return _first_of([location_of(model)], model)


def decoder_tokenizer_of(model: ModelConfig) -> PreTrainedTokenizerBase | None:
    """The tokenizer of the decoder's tokens, if the model names one, else None. Raises as :func:`_first_of`."""
    return _first_of(model.decoder_tokenizer, model) if model.decoder_tokenizer else None


def _first_of(candidates: Sequence[str], model: ModelConfig) -> PreTrainedTokenizerBase:
    """The first of `candidates` that loads as a tokenizer of the model.

    Raises UserError that names all if none loads, as when the hub is out of reach and its cache has none, and
    ModelUnavailable if the hub keeps failing with transient errors. From a folder without a tokenizer transformers
    makes one without words: that counts as none.
    """
    from transformers import AutoTokenizer

    register_model_classes()
    geometry = geometry_of(model.id)  # a bare vocabulary file does not name its tokenizer
    known = {} if geometry is None else {"config": geometry.config()}
    failures = []
    for candidate in candidates:
        try:
            on_hub = not Path(candidate).is_dir()
            offline = on_hub and not hub_reachable()
            if on_hub and not offline:
                for name in ("tokenizer_config.json", "tokenizer.json"):
                    retried(partial(fetch, candidate, name), HUB_PATIENCE_S)
            tokenizer = AutoTokenizer.from_pretrained(
                candidate, trust_remote_code=False, local_files_only=offline, **known
            )
            if len(tokenizer) > len(set(tokenizer.all_special_tokens)):
                return tokenizer
            failures.append(f"{candidate} (it holds no tokenizer's files)")
        except StillUnavailable as error:
            raise ModelUnavailable(f"model {model.name}: the tokenizer {candidate} cannot be read: {error}") from error
        except (OSError, ValueError) as error:
            failures.append(f"{candidate} ({one_line(error)[:80]})")
    raise UserError(
        f"model {model.name}: no tokenizer could be loaded; tried {'; '.join(failures)}: put tokenizer.json there, or "
        "name another place as the model's `tokenizer` in the config"
    )


@dataclass(frozen=True)
class Reading:
    """The preparation of a model's samples: the key of its tokenizers or image settings, and the special tokens."""

    key: str  # of the tokenizers, or of the settings
    mask_id: int | None = None
    special_ids: tuple[int, ...] = ()


def reading_of(resolved: ResolvedModel) -> Reading:
    """The preparation of the model's samples. Raises as :func:`load_tokenizer` does."""
    if resolved.preprocessing is not None:
        return Reading(resolved.preprocessing.key)
    tokenizer = load_tokenizer(resolved.config)
    key = tokenizers_key(tokenizer, decoder_tokenizer_of(resolved.config))
    return Reading(key, tokenizer.mask_token_id, tuple(sorted(set(tokenizer.all_special_ids))))


def tokenizers_key(tokenizer: PreTrainedTokenizerBase, decoder_tokenizer: PreTrainedTokenizerBase | None) -> str:
    """The key of the tokenizer of a model's samples, joined with that of the decoder's if it has its own."""
    keys = [tokenizer_key(each) for each in (tokenizer, decoder_tokenizer) if each is not None]
    return "-".join(keys)


def tokenizer_key(tokenizer: PreTrainedTokenizerBase) -> str:
    """`<kind>-<hash8>`, equal exactly for tokenizers that split every text alike and have the same special tokens."""
    state = json.loads(tokenizer.backend_tokenizer.to_str())
    state.update(truncation=None, padding=None, special=sorted(map(str, tokenizer.all_special_tokens)))
    digest = hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()
    named = re.sub(r"tokenizer(s?backend|fast)?$|fast$", "", type(tokenizer).__name__.lower())
    return f"{named or state['model']['type'].lower()}-{digest[:8]}"
