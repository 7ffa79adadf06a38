"""The files of a checkpoint before its weights are loaded: required files and the config. Imports no torch."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lrp_core.families import describing, introduce
from lrp_core.records.types import UserError

if TYPE_CHECKING:
    from transformers import PretrainedConfig

CONFIG = "config.json"
_PICKLED = ("*.bin", "*.pt", "*.pth", "*.ckpt")  # formats that may run code when they are read


def read_config(
    name: str, revision: str | None = None, local_files_only: bool = False, family: str | None = None
) -> PretrainedConfig:
    """The config of a hub id or a local directory.

    Raises UserError for a file of a directory that is no config, UnsupportedModel for a model that is quantised or that
    no family describes, and what transformers raises for one that it cannot reach.
    """
    from huggingface_hub.errors import StrictDataclassError
    from transformers import AutoConfig, PretrainedConfig

    from lrp_core.opening.quantised import check_config

    introduce()
    source = {"revision": revision, "local_files_only": local_files_only}
    if Path(name).is_dir():
        described = config_in(Path(name))
    else:
        described, _ = PretrainedConfig.get_config_dict(name, **source)
    if not described:
        raise UserError(f"{name} has no {CONFIG}: give the id of a model of transformers")
    check_config(described, name)
    if "model_type" not in described:
        raise UserError(f"the {CONFIG} of {name} names no model_type, as those of transformers do: get it again")
    if family is None:
        describing(described["model_type"])
    try:
        return AutoConfig.from_pretrained(name, trust_remote_code=False, **source)
    except (StrictDataclassError, TypeError) as error:  # fields of another type, or too few
        reason = str(error).strip().splitlines()[-1].strip().removeprefix("TypeError: ")
        raise UserError(f"the {CONFIG} of {name} is no config that transformers knows ({reason}): mend it") from error


def config_in(folder: Path) -> dict[str, Any]:
    """The fields of the config in a folder. Raises UserError for a file that is no object of JSON."""
    file = folder / CONFIG
    try:
        fields = json.loads(file.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{file} is not JSON ({error}): download it again, or repair it") from None
    if not isinstance(fields, dict):
        raise UserError(f"{file} holds no object of JSON: get it again")
    return fields


def check_folder(folder: Path) -> None:
    """Raises UserError for a folder without a config or without weights in safetensors; others can be converted."""
    if not (folder / CONFIG).is_file():
        raise UserError(f"{folder} has no {CONFIG}: give the folder that a model was saved to")
    if any(folder.glob("*.safetensors")):
        return
    others = sorted(path.name for kind in _PICKLED for path in folder.glob(kind))
    if not others:
        raise UserError(f"{folder} has no *.safetensors weights: give the folder that a model was saved to")
    command = conversion(str(folder), config_in(folder).get("architectures"), str(folder))
    raise UserError(
        f"{folder} has its weights in {others[0]}, which may run code when it is read, and no *.safetensors: "
        f"if you trust it, convert it by {command}"
    )


def conversion(name: str, architectures: Sequence[str] | None, to: str) -> str:
    """The command that saves the weights of a model, whatever their format is, as safetensors in the folder `to`."""
    (architecture, *_) = architectures or ("AutoModelForCausalLM",)
    made = f"Model.from_pretrained('{name}').save_pretrained('{to}')"
    return f'python -c "from transformers import {architecture} as Model; {made}"'
