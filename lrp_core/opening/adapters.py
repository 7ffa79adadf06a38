"""LoRA adapters, applied by peft: merged into the weights of the base model, or kept beside them. Safetensors only."""

from __future__ import annotations

import json
import sys
import warnings
from collections import Counter
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from safetensors import safe_open
from safetensors.torch import load_file
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel

from closelook.lrp_core.families import class_in, family_of
from closelook.lrp_core.records.types import UnsupportedModel, UserError

SETTINGS, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_PREFIX = "base_model.model."  # in an adapter's file, precedes every name of a weight of the base model
_PLAIN_STARTS = (True, False, "gaussian")  # values of init_lora_weights with which training keeps the base's weights
#: Settings by which an adapter does more than add the product B A to weights or replace whole modules.
_MORE_THAN_SUMS = (
    *("alora_invocation_tokens", "arrow_config", "kasa_config", "layer_replication", "monteclora_config"),
    *("trainable_token_indices", "use_bdlora", "use_qalora"),
)
_UNMERGED = ("alora_invocation_tokens", "arrow_config", "use_qalora")  # settings of adapters that peft does not merge
_MERGED = "with peft's merge_and_unload, save the model, and give it without an adapter"


def folder_of(adapter: str | Path, local_files_only: bool = False) -> Path:
    """The folder with an adapter's files: `adapter` itself, or the cache of the hub for the id `adapter`.

    Raises UserError if it is neither a folder nor an id, or lacks safetensors weights, and whatever the hub raises if
    it does not answer.
    """
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import (
        EntryNotFoundError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
    )

    directory = Path(adapter).expanduser()
    if directory.is_dir():
        lacking = [name for name in (SETTINGS, WEIGHTS) if not (directory / name).is_file()]
    elif directory.is_absolute() or str(adapter).startswith((".", "~")):
        raise UserError(f"there is no adapter directory {directory}: give an existing folder or an id of the hub")
    else:
        lacking = []
        try:
            paths = [hf_hub_download(str(adapter), n, local_files_only=local_files_only) for n in (SETTINGS, WEIGHTS)]
            directory = Path(paths[0]).parent
        except (RepositoryNotFoundError, HFValidationError):
            raise UserError(
                f"{adapter} is neither a directory nor an adapter on the hub: give an existing folder or an id"
            ) from None
        except LocalEntryNotFoundError:  # the hub was not asked, or does not answer
            raise
        except EntryNotFoundError as error:
            lacking = [name for name in (SETTINGS, WEIGHTS) if name in str(error)] or [WEIGHTS]
    if lacking:
        raise UserError(
            f"the adapter {adapter} has no {' and no '.join(lacking)}: save it with peft's save_pretrained, which "
            "writes both (other formats are not loaded)"
        )
    return directory


def read_settings(folder: Path) -> dict[str, Any]:
    """The settings of an adapter, from its file. Raises UserError for one that is not supported, and without peft."""
    try:
        settings = json.loads((folder / SETTINGS).read_text(encoding="utf-8"))
        kind, start = settings["peft_type"], settings.get("init_lora_weights", True)
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{folder / SETTINGS} does not describe an adapter ({type(error).__name__}: {error}): give a folder that "
            "peft's save_pretrained wrote"
        ) from None
    if kind != "LORA":
        raise UserError(f"the adapter {folder} is of the kind {kind}, and only LORA is supported: merge it, {_MERGED}")
    if start not in _PLAIN_STARTS:
        raise UserError(
            f"the adapter {folder} was initialised as {start!r}, which changes the base model: merge it, {_MERGED}"
        )
    for name in _MORE_THAN_SUMS:
        if settings.get(name):
            way_out = "use another adapter, since peft cannot merge it" if name in _UNMERGED else f"merge it, {_MERGED}"
            raise UserError(f"the adapter {folder} sets {name}, which is not supported: {way_out}")
    if find_spec("peft") is None:
        raise UserError("an adapter needs peft: pip install 'closelook[lora]'")
    return settings


def check_base(folder: Path, base: str) -> None:
    """Raise UserError if the adapter names another base model than `base`, and both names are ids of the hub."""
    named = read_settings(folder).get("base_model_name_or_path")
    if isinstance(named, str) and all(_on_hub(name) for name in (named, base)) and named.lower() != base.lower():
        copies = f"if one is a copy of the other, set base_model_name_or_path in its {SETTINGS}"
        raise UserError(f"the adapter {folder} is for another base: {named}, not {base}; {copies}")


def _on_hub(name: str) -> bool:
    """True if a model's name looks like an id of the hub and is no existing folder."""
    return name.count("/") == 1 and name[0] not in "./~" and not Path(name).exists()


def with_head_of(config: PretrainedConfig, folder: Path, family: str | None = None) -> PretrainedConfig:
    """The base model's config, changed to a classifier's if the adapter contains a classifier's head for it.

    Raises UserError for a classifier's adapter without the head, if the base model has none either.
    """
    described = family_of(config, name=family)
    if read_settings(folder).get("task_type") != "SEQ_CLS" or described.kind.labels:
        return config
    labelled = described.with_labels
    shape = None if labelled is None else _shapes(folder).get(f"{labelled.unembedding}.weight")
    if labelled is None or shape is None:
        reason = "closelook knows no classifier of this base's family: use a base that is a classifier"
        if labelled is not None:
            reason = f"its file has no {labelled.unembedding}.weight: use a base that has this head"
        raise UserError(f"the adapter {folder} is for a classifier, but {reason}")
    named = class_in(labelled.kind.classes, labelled)
    if named is None:
        raise UserError(
            f"the adapter {folder} is for a classifier, but transformers knows no class of {labelled.title}: the "
            "module that the family names as `classes` must register one"
        )
    config.architectures = [named]
    config.num_labels = shape[0]
    return config


def brought(folder: Path) -> set[str]:
    """The names, in the base model, of weights that the adapter replaces as a whole, such as a classifier's head."""
    return {name for name in _shapes(folder) if ".lora_" not in name}


def attached(model: PreTrainedModel, folder: Path, merge: bool = True) -> PreTrainedModel:
    """The model with an adapter, merged into its weights or, with `merge` False, as peft's layers beside them.

    Raises UserError for an adapter of another base, for one that can only be merged, and for a merge into a weight that
    another module shares.
    """
    settings = read_settings(folder)
    if not merge and any(settings.get(name) for name in ("use_dora", "target_parameters", "lora_bias")):
        raise UserError(f"the adapter {folder} scales or replaces weights, or adds biases: it can be merged only")
    from peft import PeftConfig, get_peft_model, get_peft_model_state_dict, set_peft_model_state_dict

    weights = load_file(folder / WEIGHTS)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # peft uses names that transformers has deprecated
        warnings.simplefilter("ignore", UserWarning)  # about tied weights, which are checked below
        known = PeftConfig.from_pretrained(str(folder))
        known.inference_mode, known.base_model_name_or_path = True, None  # `check_base` has compared the name
        try:
            wrapped: Any = get_peft_model(model, known, autocast_adapter_dtype=False)
            expected = get_peft_model_state_dict(wrapped, save_embedding_layers=False)
            loaded: Any = set_peft_model_state_dict(wrapped, weights)
        except (ValueError, RuntimeError) as error:  # without the layers, or of other shapes
            reason = " ".join(str(error).split())
            raise UserError(f"the adapter {folder} is for another base than {type(model).__name__}: {reason}") from None
        apart = sorted({*(expected.keys() - weights.keys()), *loaded.unexpected_keys})
        if apart:
            raise UserError(f"the adapter {folder} is for another base than {type(model).__name__}: see {apart[0]}")
        if not merge:
            return wrapped.get_base_model()
        _check_mergeable(wrapped, folder)
        return wrapped.merge_and_unload()


def _check_mergeable(wrapped: nn.Module, folder: Path) -> None:
    """Raise UserError if a weight that the adapter changes is shared by another module, which would change as well."""
    from peft.tuners.lora import LoraLayer

    modules = [module for _, module in wrapped.named_modules(remove_duplicate=False)]
    owners = Counter(id(weight) for module in modules for weight in vars(module)["_parameters"].values())
    for path, module in wrapped.named_modules():
        if not isinstance(module, LoraLayer):
            continue
        weights = vars(module.get_base_layer())["_parameters"]  # those of experts have other names than `weight`
        if any(owners[id(weight)] > 1 for name, weight in weights.items() if name != "bias"):
            changed = path.removeprefix(_PREFIX)
            shared = f"changes the weights of {changed}, which another module shares, and merging would change both"
            raise UserError(f"the adapter {folder} {shared}: keep it beside its base with `merge: false`")


def without_peft(model: nn.Module) -> nn.Module:
    """The model inside a peft model in memory, adapters included. Raises UnsupportedModel for learned prompts."""
    if "peft" not in sys.modules:
        return model
    from peft import PeftModel

    if not isinstance(model, PeftModel):
        return model
    if model.active_peft_config.is_prompt_learning:
        raise UnsupportedModel(
            f"{type(model).__name__} puts learned tokens before every text (prompt learning), which no method "
            "supports: use the base model or another adapter"
        )
    return model.get_base_model()


def _shapes(folder: Path) -> Mapping[str, tuple[int, ...]]:
    """The shapes of the adapter's tensors, by their names in the base model. Raises UserError for a damaged file."""
    try:
        with safe_open(folder / WEIGHTS, framework="pt") as file:
            shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    except Exception as error:  # safetensors has an error of its own, without a public name
        reason = " ".join(str(error).split())
        raise UserError(f"{folder / WEIGHTS} cannot be read ({reason}): save or download it again") from None
    return {name.removeprefix(_PREFIX).replace(".base_layer.", "."): shape for name, shape in shapes.items()}
