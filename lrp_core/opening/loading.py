"""Loads models from the hub or a folder, or makes them with random weights. Safetensors only, no remote code."""

from __future__ import annotations

import copy
import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from os.path import expanduser
from pathlib import Path
from typing import Any

import torch
import transformers
from huggingface_hub import try_to_load_from_cache
from safetensors import SafetensorError
from transformers import PretrainedConfig

from closelook.lrp_core.families import family_of
from closelook.lrp_core.opening import adapters
from closelook.lrp_core.opening.checkpoint import CONFIG, check_folder, check_size, conversion, read_config
from closelook.lrp_core.opening.model import view_of
from closelook.lrp_core.records.capabilities import ATTENTION
from closelook.lrp_core.records.types import UserError, did_you_mean, nearest
from closelook.lrp_core.views.view import ModelView

DTYPES = {name: getattr(torch, name) for name in ("float64", "float32", "bfloat16", "float16")}


@torch.inference_mode(False)
def load_model(
    id_or_dir: str | Path,
    *,
    dtype: str = "float32",
    device: str = "cpu",
    revision: str | None = None,
    attn: str = "sdpa",
    family: str | None = None,
    adapter: str | Path | None = None,
    merge: bool = True,
    max_memory: dict[int | str, Any] | None = None,
    offload_dir: str | Path | None = None,
) -> ModelView:
    """Load a model from a hub id or a local folder, and return its view.

    `attn` is "sdpa" or "eager"; models with an attention of their own use it unless `attn` is "eager". `family`
    "generic" runs the model as a whole, for methods that need no description of it. `adapter` is the folder or hub id
    of a LoRA adapter, which is merged into the weights unless `merge` is False. `max_memory` (accelerate's mapping of
    devices to bytes or "2GiB") spreads the model over devices, main memory and `offload_dir`; `device` is then ignored.
    Methods can take gradients even if the caller is in inference mode.

    Raises UserError for a model or adapter that cannot be found or read, a model that lacks weights, an adapter of
    another base model, and an unknown dtype or device; UnsupportedModel for a quantised model and one that no family
    describes.

    >>> view = load_model("evaluation/benchmark/demo/models/gpt2")
    >>> view.family.name, view.n_layers, view.n_heads
    ('gpt2', 4, 4)
    """
    check_place(dtype, device if max_memory is None else "cpu")
    if adapter is not None and max_memory is not None:
        raise UserError(
            "an adapter cannot be combined with max_memory: leave out max_memory, or merge the adapter with peft's "
            "merge_and_unload and save the model"
        )
    name = expanduser(str(id_or_dir))
    _check_directory(name)
    placement = {"device_map": device} if max_memory is None else {"device_map": "auto", "max_memory": max_memory}
    if offload_dir is not None:
        placement["offload_folder"] = str(offload_dir)
    try:
        config = read_config(name, revision, family=family)
        folder = None if adapter is None else _adapter_folder(adapter)
        if folder is not None:
            adapters.check_base(folder, name)
            config = adapters.with_head_of(config, folder, family)
        folder_of_weights = _folder_of(name, revision)
        if folder_of_weights is not None:
            check_size(config, folder_of_weights, family)
        with without_report():
            model, report = _auto(config, family).from_pretrained(
                name,
                config=config,
                revision=revision,
                dtype=_dtype(dtype),
                attn_implementation=_attention(config, attn, family),
                use_safetensors=True,
                trust_remote_code=False,
                ignore_mismatched_sizes=True,  # `check_weights` reports them by name
                output_loading_info=True,
                **placement,
            )
    except OSError as error:
        reason = str(error).strip().splitlines()[0]
        if "thus cannot be loaded with `safetensors`" in reason:
            command = conversion(name, config.architectures, "FOLDER")
            raise UserError(
                f"{name} has no *.safetensors weights on the hub; other formats may run code when they are read: if "
                f"you trust it, convert it by {command} and give that FOLDER"
            ) from None
        raise UserError(f"cannot load {name}: not a local directory, and the hub says: {reason}") from error
    except SafetensorError as error:
        raise UserError(f"the weights of {name} are cut off or damaged ({error}): download them again") from error
    check_weights(name, type(model).__name__, config, report, brought=adapters.brought(folder) if folder else set())
    view = view_of(model if folder is None else adapters.attached(model, folder, merge), family)
    return replace(view, read_tokenizer=partial(_tokenizer, name, revision))


def _adapter_folder(adapter: str | Path) -> Path:
    """The folder with an adapter's files. Raises UserError if it cannot be found or the hub does not answer."""
    try:
        return adapters.folder_of(adapter)
    except OSError as error:
        reason = str(error).strip().splitlines()[0]
        raise UserError(f"cannot load adapter {adapter}: not a local directory, and the hub says: {reason}") from error


def _folder_of(name: str, revision: str | None) -> Path | None:
    """The folder of a model's files: `name`, or for an id of the hub the folder in its cache; None if it has none."""
    if Path(name).is_dir():
        return Path(name)
    kept = try_to_load_from_cache(name, CONFIG, revision=revision)
    return Path(kept).parent if isinstance(kept, str) else None


def _check_directory(name: str) -> None:
    """Raise UserError for a folder that holds no model, and for a name that can only be of a folder that is absent."""
    directory = Path(name)
    if directory.is_dir():
        check_folder(directory)
    elif directory.is_absolute() or name.startswith((".", "~")):
        folders = [path.name for path in directory.parent.glob("*/")]
        raise UserError(f"there is no model directory {name}{did_you_mean(directory.name, folders)}")


def _tokenizer(name: str, revision: str | None) -> Any:
    """The tokenizer of a model. Raises UserError if there is none that can be read."""
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(name, revision=revision, trust_remote_code=False)
    except (OSError, ValueError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise UserError(
            f"the tokenizer of {name} cannot be read ({reason}): check the connection to the hub or, for a folder, "
            "save the tokenizer into it with `save_pretrained`"
        ) from error


@torch.inference_mode(False)
def random_model(
    config: PretrainedConfig,
    seed: int = 0,
    dtype: str = "float32",
    attn: str = "sdpa",
    device: str = "cpu",
    family: str | None = None,
) -> ModelView:
    """A view of a model with random weights, drawn from `seed` in float32 on `device`, then rounded to `dtype`.

    The global random state does not change. Raises UserError for an unknown dtype or device, UnsupportedModel as
    `view_of`.
    """
    check_place(dtype, device)
    auto, attention = _auto(config, family), _attention(config, attn, family)
    with torch.random.fork_rng(), torch.device(device):
        torch.manual_seed(seed)
        model = auto.from_config(copy.deepcopy(config), dtype=torch.float32, attn_implementation=attention)
    return view_of(model.to(_dtype(dtype)), family)


def _auto(config: PretrainedConfig, family: str | None) -> Any:
    """The class of transformers that makes models of `config`. Raises UnsupportedModel as `family_of`."""
    return getattr(transformers, family_of(config, name=family).kind.auto)


def _attention(config: PretrainedConfig, attn: str, family: str | None) -> str | None:
    """The attention implementation to request from transformers; None lets it choose, if attention is not described."""
    known = family_of(config, name=family)
    if known.eager_only:
        return "eager"
    return attn if attn == "eager" or ATTENTION in known.capabilities else None


def _dtype(name: str) -> torch.dtype:
    """The dtype of that name. Raises UserError for an unknown name."""
    if name not in DTYPES:
        raise UserError(f"unknown dtype {name!r}{nearest(str(name), DTYPES)}")
    return DTYPES[name]


def check_place(dtype: str, device: str) -> None:
    """Raise UserError for an unknown dtype, and for a device that torch does not know or does not see."""
    _dtype(dtype)
    try:
        parsed = torch.device(device)
    except (RuntimeError, TypeError):
        raise UserError(f"unknown device {device!r}: devices are cpu, cuda and, of several GPUs, cuda:N") from None
    seen = torch.cuda.device_count()
    if parsed.type == "cuda" and (parsed.index or 0) >= seen:
        there_are = "no GPU" if seen == 0 else f"GPUs up to cuda:{seen - 1} only"
        raise UserError(f"there is no device {device!r}: torch {torch.__version__} sees {there_are} here")


def check_weights(
    name: str, architecture: str, config: PretrainedConfig, report: Mapping[str, Any], brought: Collection[str]
) -> None:
    """Raise UserError if weights are missing in the model's files or have other shapes, and would so be random.

    `report` is transformers' loading report; weights in `brought` come with an adapter and may be missing.
    """
    missing = sorted(set(report["missing_keys"]).difference(brought))
    mismatched = [
        f"{key} {list(stored)} for {list(needed)}" for key, stored, needed in sorted(report["mismatched_keys"])
    ]
    if not missing and not mismatched:
        return
    faults = [f"lack {_some(missing)}"] if missing else []
    faults += [f"misfit {_some(mismatched)}"] if mismatched else []
    saved_as = " or ".join(config.architectures or ())
    advice = f"give a model saved as {architecture}"
    if saved_as == architecture:
        advice = f"saved as {architecture}, they are damaged or go with another config.json: get them again"
    elif saved_as:
        advice = f"they were saved as {saved_as}; {advice}"
    raise UserError(f"the weights of {name} {' and '.join(faults)}: {advice}")


def _some(keys: Sequence[str], shown: int = 4) -> str:
    """The first few of `keys` in words, and how many more there are."""
    more = f" and {len(keys) - shown} more" if len(keys) > shown else ""
    return ", ".join(keys[:shown]) + more


@contextmanager
def without_report() -> Iterator[None]:
    """Inside, transformers does not log its report on weights; `check_weights` reports problems in one line."""

    def is_news(record: logging.LogRecord) -> bool:
        return not any(known in record.getMessage() for known in ("LOAD REPORT", "checkpoint seem corrupted"))

    logger = logging.getLogger("transformers.modeling_utils")
    logger.addFilter(is_news)
    try:
        yield
    finally:
        logger.removeFilter(is_news)
