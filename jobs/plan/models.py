"""Configured models made definite: which weights exactly, which tokenizer, and how a worker opens them."""

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

from evaluation.benchmark.labels import plain, sharing
from evaluation.tasks.record import Output
from jobs.config import ModelConfig
from jobs.plan.checkpoints import adapter_key, location_of, numbers_of, read_config, reserved, with_adapter
from jobs.plan.geometries import geometry_of
from jobs.plan.heads import head_of
from jobs.plan.hub import ModelUnavailable, commit_of, fetch, fetch_weights, hash_files, hub_reachable, one_line
from jobs.store.retry import HUB_PATIENCE_S, StillUnavailable, retried
from jobs.store.spent import LOAD, spending
from lrp_core.families import Family, family_of, introduce
from lrp_core.kinds import BLACK
from lrp_core.types import UserError, nearest

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedTokenizerBase

    from evaluation.benchmark.pictures import Preprocessing
    from evaluation.scoring.flips import Flips
    from lrp_core import Capability, ModelView
    from lrp_core.kinds import Kind


@dataclass(frozen=True)
class ResolvedModel:
    """A model pinned to exact weights. `identity` enters the cell key."""

    config: ModelConfig
    location: str  # hub id, directory, or random/<geometry>
    revision: str | None  # commit on the hub
    identity: str
    family: Family
    max_length: int  # most tokens of a sample
    output: Output = "token"
    labels: tuple[str, ...] = ()  # of a classifier, in the order of its outputs
    preprocessing: Preprocessing | None = None  # of a model of images

    @property
    def kind(self) -> Kind:
        return self.family.kind

    @property
    def capabilities(self) -> frozenset[Capability]:
        """What methods may need of a model and this one has."""
        return self.family.capabilities

    def taken(self, rows: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
        """View rows as the model takes them: of pictures, `pixel_values` [C, H, W] in place of `pixels`."""
        if self.preprocessing is None:
            return rows
        from evaluation.benchmark.pictures import pixels_of

        own = self.preprocessing
        return [{**row, "pixel_values": own.values(pixels_of(row, own)), "pixels": None} for row in rows]

    def filled(self, flips: Flips) -> Flips:
        """`flips` with what stands, of images, in the place of pixels that are gone."""
        if self.preprocessing is None:
            return flips
        black = self.preprocessing.black
        return replace(flips, fill=black if flips.way == BLACK else (0.0,) * len(black))

    def with_gold(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """A view row with the number of its gold label as `gold_id`, null where it has none.

        Raises UserError for a label that the model does not have.
        """
        return {**row, "gold_id": None if row["label"] is None else self.label_ids([row["label"]])[row["label"]]}

    def label_ids(self, names: Iterable[str]) -> dict[str, int]:
        """The number of each label. Raises UserError for one that the model does not have."""
        numbers = {name: self.label_id(name) for name in names}
        for name, number in numbers.items():
            if number is None:
                raise UserError(
                    f"model {self.config.name}: samples are labelled {name!r}, "
                    f"and its labels are {', '.join(self.labels)}: say as its `classes` what they mean, or leave the "
                    "task out of its `tasks`"
                )
        return {name: number for name, number in numbers.items() if number is not None}

    def label_id(self, name: str) -> int | None:
        """Which output of a classifier means this label, whatever its case; None where none does.

        Raises UserError for a name that several outputs have.
        """
        if several := sharing(name, self.labels):
            names = " or ".join(map(repr, several))
            raise UserError(f"model {self.config.name} has the label {name!r} more than once: say {names}")
        return next((at for at, own in enumerate(self.labels) if plain(own) == plain(name)), None)


def resolve(model: ModelConfig, seed: int = 0) -> ResolvedModel:
    """Pin `model` to its weights. Reads configs and hashes, loads no weights.

    Raises UserError for a model that cannot exist, ModelUnavailable for one that cannot be reached.
    """
    if model.id.startswith("random/"):
        geometry = geometry_of(model.id)
        if geometry is None:
            raise UserError(f"model {model.name}: unknown id {model.id!r}{nearest(model.id, reserved('random'))}")
        identity = f"{model.id}@seed{seed}{''.join(f'+{label}' for label in model.classes or ())}"
        config = geometry.config(model.classes or ())
        _check_decoder(model, config)
        family = family_of(config)
        identity += family.marks_of(config)
        head = head_of(model, family, config)
        images = _preprocessing(model, model.id, family, config)
        return ResolvedModel(model, model.id, None, identity, family, family.most_tokens(config), *head, images)
    location, config = read_config(model)
    _check_decoder(model, config)
    try:
        config, adapted = with_adapter(model, location, config)
        family = family_of(config, name=model.family)
    except UserError as error:
        raise type(error)(f"model {model.name}: {error}") from None
    head, most = head_of(model, family, config), family.most_tokens(config)
    images = _preprocessing(model, location, family, config)
    commit = None if Path(location).is_dir() else commit_of(model, location)
    identity = _identity(model, location, commit, f"{adapted}{_run_as(model, family, config)}")
    return ResolvedModel(model, location, commit, identity, family, most, *head, images)


def _check_decoder(model: ModelConfig, config: PretrainedConfig) -> None:
    """Raises UserError where a model without a decoder names a tokenizer for it."""
    if model.decoder_tokenizer and not config.is_encoder_decoder:
        raise UserError(f"model {model.name} is no encoder-decoder: leave out its decoder_tokenizer")


def _run_as(model: ModelConfig, family: Family, config: PretrainedConfig) -> str:
    """What a family that is not the model's own, and corrections of its family, add to the model's identity."""
    generic = "" if model.family is None else f" as {model.family}"
    return f"{generic}{family.marks_of(config)}"


def _identity(model: ModelConfig, location: str, commit: str | None, run_as: str) -> str:
    """Which weights exactly: the commit on the hub, or the files of a directory as they are, and how they are run."""
    own = f"sha256:{hash_files(numbers_of(Path(location)))}" if commit is None else f"{location}@{commit}"
    return f"{own}{run_as}"


def _check_opened(resolved: ResolvedModel, config: PretrainedConfig) -> None:
    """Raises ModelUnavailable where the files, just opened, are not those that the model was pinned to."""
    model = resolved.config
    run_as = f"{adapter_key(model)}{_run_as(model, resolved.family, config)}"
    opened = _identity(model, resolved.location, resolved.revision, run_as)
    if opened != resolved.identity:
        raise ModelUnavailable(
            f"model {model.name}: its weights changed during the run: opened are {opened}, planned were "
            f"{resolved.identity}: run again"
        )


def _preprocessing(model: ModelConfig, location: str, family: Family, config: PretrainedConfig) -> Preprocessing | None:
    """The preprocessing of a model of images, None of others. Raises UserError, ModelUnavailable."""
    if not family.kind.images:
        return None
    from jobs.plan.images import preprocessing_of

    return preprocessing_of(model, location, config)


def architecture(model: ModelConfig) -> PretrainedConfig:
    """The transformers config of a model that resolves. Raises as :func:`resolve` does."""
    geometry = geometry_of(model.id) if model.id.startswith("random/") else None
    return read_config(model)[1] if geometry is None else geometry.config(model.classes or ())


@spending(LOAD)
def open_view(resolved: ResolvedModel, dtype: str, device: str, seed: int = 0) -> ModelView:
    """Load the model onto `device`, offloading what its memory limits do not hold.

    Raises ModelUnavailable when its files are missing, broken or not those that it was pinned to, StillUnavailable when
    the hub turns this node away.
    """
    from transformers.utils.logging import disable_progress_bar

    from lrp_core import load_model, random_model

    disable_progress_bar()
    model = resolved.config
    geometry = geometry_of(resolved.location)
    if resolved.location.startswith("random/") and geometry is not None:
        view = random_model(geometry.config(model.classes or ()), seed, dtype, attn=model.attn, device=device)
        return replace(view, read_tokenizer=partial(load_tokenizer, model))
    limits = {int(key) if key.isdigit() else key: limit for key, limit in (model.max_memory or {}).items()}
    folder = tempfile.mkdtemp(prefix="closelook-offload-") if model.offload else None
    try:
        if not Path(resolved.location).is_dir():
            retried(lambda: fetch_weights(resolved.location, resolved.revision), HUB_PATIENCE_S)
        view = load_model(
            resolved.location,
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
    except (
        Exception
    ) as error:  # whatever a broken checkpoint raises: safetensors, transformers and torch have their own
        raise ModelUnavailable(f"model {model.name} cannot be loaded: {one_line(error)}") from error
    if folder is not None:
        weakref.finalize(view.model, shutil.rmtree, folder, ignore_errors=True)
    _check_opened(resolved, view.config)
    return replace(view, read_tokenizer=partial(load_tokenizer, model))


def load_tokenizer(model: ModelConfig) -> PreTrainedTokenizerBase:
    """The first of the model's tokenizer candidates that loads. Raises as :func:`_first_of`."""
    return _first_of(_tokenizer_candidates(model), model)


def decoder_tokenizer_of(model: ModelConfig) -> PreTrainedTokenizerBase | None:
    """The tokenizer of what the decoder says, where the model names its own; else None. Raises as :func:`_first_of`."""
    return _first_of(model.decoder_tokenizer, model) if model.decoder_tokenizer else None


def _first_of(candidates: Sequence[str], model: ModelConfig) -> PreTrainedTokenizerBase:
    """The first of `candidates` for a tokenizer of the model that loads.

    Raises UserError naming all when none does, ModelUnavailable when the hub does not give one now. Where a folder
    holds no tokenizer, transformers makes one without words, which is as good as none.
    """
    from transformers import AutoTokenizer

    introduce()
    geometry = geometry_of(model.id)  # a bare vocabulary does not say which tokenizer it belongs to
    known = {} if geometry is None else {"config": geometry.config()}
    failures = []
    for candidate in candidates:
        try:
            offline = not Path(candidate).is_dir() and not hub_reachable()
            if not Path(candidate).is_dir() and not offline:
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


def reading_of(resolved: ResolvedModel) -> tuple[str, int | None]:
    """The key of what reads the model's samples, a tokenizer or the settings of images, and the mask token's id.

    Raises as :func:`load_tokenizer` does.
    """
    if resolved.preprocessing is not None:
        return resolved.preprocessing.key, None
    tokenizer = load_tokenizer(resolved.config)
    return tokenizers_key(tokenizer, decoder_tokenizer_of(resolved.config)), tokenizer.mask_token_id


def tokenizers_key(tokenizer: PreTrainedTokenizerBase, decoder_tokenizer: PreTrainedTokenizerBase | None) -> str:
    """The key of what reads a model's samples and, where another one does, writes their answers."""
    own = tokenizer_key(tokenizer)
    return own if decoder_tokenizer is None else f"{own}-{tokenizer_key(decoder_tokenizer)}"


def tokenizer_key(tokenizer: PreTrainedTokenizerBase) -> str:
    """``<kind>-<hash8>``: equal exactly when two tokenizers split every text alike and use the same special tokens."""
    state = json.loads(tokenizer.backend_tokenizer.to_str())
    state.update(truncation=None, padding=None, special=sorted(map(str, tokenizer.all_special_tokens)))
    digest = hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()
    named = re.sub(r"tokenizer(s?backend|fast)?$|fast$", "", type(tokenizer).__name__.lower())
    kind = named or state["model"]["type"].lower()
    return f"{kind}-{digest[:8]}"


def _tokenizer_candidates(model: ModelConfig) -> tuple[str, ...]:
    if model.tokenizer:
        return model.tokenizer
    geometry = geometry_of(model.id)
    if model.id.startswith("random/") and geometry is not None:
        return (geometry.hub_id,)
    return (location_of(model),)
