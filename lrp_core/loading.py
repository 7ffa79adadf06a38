"""Models from the hub, a directory, or a configuration with random weights. Safetensors only, no remote code."""

from __future__ import annotations

import difflib
import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoConfig, PretrainedConfig

from lrp_core import adapters
from lrp_core.capabilities import ATTENTION
from lrp_core.families import describing, family_of, introduce
from lrp_core.opening import view_of
from lrp_core.quantised import check_config
from lrp_core.types import UserError, nearest
from lrp_core.view import ModelView

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
    """Loads a hub id or a local directory.

    `attn` is "sdpa" or "eager"; where a model's attention is its own, transformers chooses unless it is "eager".
    With `family` "generic" it is run as a whole, by methods that need no description of it.
    Its weights can have gradients behind them, also where the caller is in inference mode.
    `adapter` is the folder or hub id of a LoRA adapter, merged into the weights unless `merge` is False.
    With `max_memory` (accelerate's device to bytes or "2GiB") the model is spread over devices, main memory and
    `offload_dir`, and `device` is ignored. Raises UserError for a model that cannot be found or read or whose files
    lack weights, for an adapter of another base, for a precision or device that there is not, UnsupportedModel for one
    that is quantised or that no family describes.
    """
    check_place(dtype, device if max_memory is None else "cpu")
    if adapter is not None and max_memory is not None:
        raise UserError("an adapter goes on a model in memory: merge it with peft and save, or leave out max_memory")
    directory = Path(id_or_dir)
    name = str(id_or_dir)
    if directory.is_dir():
        _check_directory(directory)
    elif directory.is_absolute() or name.startswith((".", "~")):
        raise UserError(f"there is no model directory {name}{_nearest(directory)}")
    placement = {"device_map": device} if max_memory is None else {"device_map": "auto", "max_memory": max_memory}
    if offload_dir is not None:
        placement["offload_folder"] = str(offload_dir)
    try:
        config = read_config(name, revision, family=family)
        folder = None if adapter is None else adapters.folder_of(adapter)
        if folder is not None:
            adapters.check_base(folder, name)
            config = adapters.with_head_of(config, folder, family)
            adapters.check_fit(config, folder, family, merge)
        with _without_report():
            model, report = _auto(config, family).from_pretrained(
                name,
                config=config,
                revision=revision,
                dtype=_dtype(dtype),
                attn_implementation=_attention(config, attn, family),
                use_safetensors=True,
                trust_remote_code=False,
                ignore_mismatched_sizes=True,  # to tell them by name below
                output_loading_info=True,
                **placement,
            )
    except OSError as error:
        reason = str(error).strip().splitlines()[0]
        raise UserError(f"cannot load {name}: not a local directory, and the hub says: {reason}") from error
    _check_weights(name, type(model).__name__, config, report, brought=adapters.brought(folder) if folder else set())
    view = view_of(model if folder is None else adapters.attached(model, folder, merge), family)
    return replace(view, read_tokenizer=partial(_tokenizer, name, revision))


def _tokenizer(name: str, revision: str | None) -> Any:
    """Raises UserError where there is none."""
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(name, revision=revision, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise UserError(f"{name} has no tokenizer that can be read: {str(error).strip().splitlines()[0]}") from error


def read_config(
    name: str, revision: str | None = None, local_files_only: bool = False, family: str | None = None
) -> PretrainedConfig:
    """The config of a hub id or a local directory.

    Raises UnsupportedModel for one that is quantised or that no family describes, and what transformers raises for one
    that it cannot read.
    """
    introduce()
    source = {"revision": revision, "local_files_only": local_files_only}
    described, _ = PretrainedConfig.get_config_dict(name, **source)
    check_config(described, name)
    if "model_type" in described and family is None:
        describing(described["model_type"])
    return AutoConfig.from_pretrained(name, trust_remote_code=False, **source)


@torch.inference_mode(False)
def random_model(
    config: PretrainedConfig,
    seed: int = 0,
    dtype: str = "float32",
    attn: str = "sdpa",
    device: str = "cpu",
    family: str | None = None,
) -> ModelView:
    """A model of `config` with weights drawn from `seed`, in float32 and on `device`; then rounded to `dtype`.

    The global random state is left as it was.
    """
    with torch.random.fork_rng(), torch.device(device):
        torch.manual_seed(seed)
        model = _auto(config, family).from_config(config, attn_implementation=_attention(config, attn, family))
    return view_of(model.to(_dtype(dtype)), family)


def _auto(config: PretrainedConfig, family: str | None) -> Any:
    """The class that makes models of `config`. Raises UnsupportedModel."""
    return getattr(transformers, family_of(config, name=family).kind.auto)


def _attention(config: PretrainedConfig, attn: str, family: str | None) -> str | None:
    """The attention implementation that transformers is asked for; None where it must choose among the model's own."""
    known = family_of(config, name=family)
    if known.eager_only:
        return "eager"
    return attn if attn == "eager" or ATTENTION in known.capabilities else None


def _dtype(name: str) -> torch.dtype:
    if name not in DTYPES:
        raise UserError(f"unknown dtype {name!r}{nearest(str(name), DTYPES)}")
    return DTYPES[name]


def check_place(dtype: str, device: str) -> None:
    """Raises UserError for a precision that there is not, and for a device that torch does not know or see."""
    _dtype(dtype)
    try:
        place = torch.device(device)
    except (RuntimeError, TypeError):
        raise UserError(f"unknown device {device!r}: devices are cpu, cuda and, of several GPUs, cuda:N") from None
    seen = torch.cuda.device_count()
    if place.type == "cuda" and (place.index or 0) >= seen:
        there_are = "no GPU" if seen == 0 else f"GPUs up to cuda:{seen - 1} only"
        raise UserError(f"there is no device {device!r}: torch {torch.__version__} sees {there_are} here")


def _check_directory(directory: Path) -> None:
    if not (directory / "config.json").is_file():
        raise UserError(f"{directory} has no config.json: it is not a model directory")
    if not any(directory.glob("*.safetensors")):
        raise UserError(f"{directory} has no *.safetensors weights (other formats are not loaded)")


def _check_weights(
    name: str, architecture: str, config: PretrainedConfig, report: Mapping[str, Any], brought: Collection[str]
) -> None:
    """Raises UserError where the files leave weights of the model to chance; tied weights count as one.

    Those in `brought` come with an adapter.
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
    more = f" and {len(keys) - shown} more" if len(keys) > shown else ""
    return ", ".join(keys[:shown]) + more


@contextmanager
def _without_report() -> Iterator[None]:
    """Inside, transformers does not log what `_check_weights` says in one line."""

    def is_news(record: logging.LogRecord) -> bool:
        return not any(known in record.getMessage() for known in ("LOAD REPORT", "checkpoint seem corrupted"))

    logger = logging.getLogger("transformers.modeling_utils")
    logger.addFilter(is_news)
    try:
        yield
    finally:
        logger.removeFilter(is_news)


def _nearest(directory: Path) -> str:
    siblings = [path.name for path in directory.parent.iterdir() if path.is_dir()] if directory.parent.is_dir() else []
    match = difflib.get_close_matches(directory.name, siblings, n=1)
    return f"; did you mean {directory.parent / match[0]}?" if match else ""
