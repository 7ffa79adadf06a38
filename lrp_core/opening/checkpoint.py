"""Checks a checkpoint before any weights are loaded: its files, its config, and that it is not quantised.

Quantised models compute with other weights than rules and readers see; they are refused, also in memory, by the name of
their quantiser. Imports no torch.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from math import prod
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from closelook.lrp_core.families import check_type, family_of, register_model_classes
from closelook.lrp_core.records.types import UnsupportedModel, UserError

if TYPE_CHECKING:
    from torch import nn
    from transformers import PretrainedConfig, PreTrainedModel

CONFIG = "config.json"
_PICKLED = ("*.bin", "*.pt", "*.pth", "*.ckpt")  # formats that may run code when they are read
#: Packages that define quantised modules and tensors, with the names of their quantisers.
_PACKAGES = {
    "torch.ao.nn": "torch.ao.quantization",
    "auto_gptq": "gptq",
    "gptqmodel": "gptq",
    "optimum.quanto": "quanto",
    "compressed_tensors": "compressed-tensors",
    **{name: name for name in ("aqlm", "awq", "bitsandbytes", "eetq", "hqq", "torchao", "vptq")},
}
_INDEX = ".safetensors.index.json"  # end of the names of files that list other files of weights
_ADAPTER = "adapter_config.json"  # transformers applies an adapter that lies beside its base
#: Names of numbers of modules in a config, and the most of them: even modules without numbers take memory.
_MODULES, _MOST_MODULES = re.compile(r"(n|num)_(.*_)?(layers?|experts)|(en|de)coder_layers"), 10_000
_MOST_LABELS = 1_000_000
_MOST_TIMES, _MOST_BEYOND = 2, 2**28  # a model has at most so many times the numbers of its files, and some more
_INTEGRATIONS = "transformers.integrations."  # transformers defines its own quantised modules here


def read_config(
    name: str, revision: str | None = None, local_files_only: bool = False, family: str | None = None
) -> PretrainedConfig:
    """The config of a model, given by its id on the hub or a local folder.

    Raises UserError for a file that is no config, UnsupportedModel for a quantised model and, unless `family` is given,
    for a type that no family describes, and whatever transformers raises for a model that it cannot reach.
    """
    from huggingface_hub.errors import StrictDataclassError
    from transformers import AutoConfig, PretrainedConfig

    register_model_classes()
    source = {"revision": revision, "local_files_only": local_files_only}
    if Path(name).is_dir():
        described = config_in(Path(name))
    else:
        described, _ = PretrainedConfig.get_config_dict(name, **source)
    if not described:
        raise UserError(f"{name} has no {CONFIG}: give the id of a model of transformers")
    check_config(described, name)
    if "model_type" not in described:
        raise UserError(f"the {CONFIG} of {name} has no model_type, which transformers needs: download the model again")
    _check_counts(described, name)
    if family is None:
        check_type(described["model_type"])
    try:
        return AutoConfig.from_pretrained(name, trust_remote_code=False, **source)
    except (StrictDataclassError, TypeError) as error:  # fields of another type, or too few
        reason = str(error).strip().splitlines()[-1].strip().removeprefix("TypeError: ")
        raise UserError(f"transformers cannot read the {CONFIG} of {name} ({reason}): correct the file") from error


def config_in(folder: Path) -> dict[str, Any]:
    """The fields of the config in a folder. Raises UserError for a file that holds no JSON object."""
    file = folder / CONFIG
    try:
        fields = json.loads(file.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{file} is not JSON ({error}): download it again, or repair it") from None
    if not isinstance(fields, dict):
        raise UserError(f"{file} holds no JSON object: download it again, or repair it")
    return fields


def without_numbers(config: PretrainedConfig, family: str | None = None) -> PreTrainedModel:
    """A model of `config` on the meta device: its weights have shapes and no numbers. Raises as `family_of`."""
    import torch
    import transformers

    maker = getattr(transformers, family_of(config, name=family).kind.auto)
    try:
        with torch.device("meta"):
            model: PreTrainedModel = maker.from_config(config)
    except Exception as error:  # the constructors of models raise what their arithmetic raises
        reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise UserError(f"transformers cannot make a model of this {CONFIG} ({reason}): correct the file") from error
    return model


def _check_counts(config: Mapping[str, Any], name: str) -> None:
    """Raise UserError for a config whose numbers of layers, experts or labels no model has."""
    for field, count in config.items():
        most = _MOST_MODULES if _MODULES.fullmatch(field) else _MOST_LABELS if field == "num_labels" else None
        if most is not None and isinstance(count, int) and not 0 <= count <= most:
            raise UserError(f"the {CONFIG} of {name} has {field} = {count:,}: correct the file (at most {most:,})")


def check_size(config: PretrainedConfig, folder: Path, family: str | None = None) -> None:
    """Raise UserError if a model of `config` would have many times the numbers that the weights in `folder` have.

    Shapes are compared, those of the model on the meta device: nothing is allocated. A folder without weights, such as
    one of the hub's cache that lacks them yet, is not checked.
    """
    from safetensors import safe_open

    stored = 0
    for file in weight_files(folder):
        if file.suffix != ".safetensors":
            continue
        with safe_open(file, "np") as weights:
            for key in weights.keys():  # noqa: SIM118 (no mapping)
                stored += prod(weights.get_slice(key).get_shape())
    if not stored:
        return
    model = without_numbers(config, family)
    needed = sum(tensor.numel() for tensor in (*model.parameters(), *model.buffers()))
    if needed > _MOST_TIMES * stored + _MOST_BEYOND:
        raise UserError(
            f"the {CONFIG} of {folder} describes a model of {needed:,} numbers, and the weights hold {stored:,}: "
            "they do not go together; get the folder again"
        )


def weight_files(folder: Path) -> list[Path]:
    """The files that decide the weights which transformers loads from a folder, sorted.

    Those are *.safetensors in it, indices with the files that these name, which may lie in folders below, and an
    adapter's settings. Raises UserError for an index that is none, and for names of files outside of the folder.
    """
    files = {*folder.glob("*.safetensors"), *folder.glob(f"*{_INDEX}")}
    files |= {path for path in (folder / _ADAPTER,) if path.is_file()}
    if (folder / CONFIG).is_file():
        explicit = config_in(folder).get("transformers_weights")
        files |= {folder / _inside(explicit, folder / CONFIG)} if explicit else set()
    for index in [path for path in files if path.name.endswith(_INDEX)]:
        files |= {folder / name for name in files_of_index(index)}
    return sorted(files)


def files_of_index(index: Path) -> list[str]:
    """The files that an index lists, relative to the model's folder. Raises UserError as :func:`weight_files`."""
    try:
        names = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{index} is no index of weights ({type(error).__name__}): download it again") from None
    return sorted(_inside(name, index) for name in names)


def _inside(name: Any, source: Path) -> str:
    """The `name` of a file that `source` mentions. Raises UserError unless it lies in the same folder, or below it."""
    path = PurePosixPath(name.replace("\\", "/")) if isinstance(name, str) else None
    if path is None or path.is_absolute() or ".." in path.parts:
        raise UserError(
            f"{source} names {name!r}, which is outside of its folder: give a folder that holds all weights"
        )
    return str(name)


def check_folder(folder: Path) -> None:
    """Raise UserError for a folder without a config or safetensors weights, with a command that converts others."""
    if not (folder / CONFIG).is_file():
        raise UserError(f"{folder} has no {CONFIG}: give the folder that a model was saved to")
    files = weight_files(folder)
    lacking = [path for path in files if not path.is_file()]
    if lacking:
        raise UserError(f"{folder} lacks {lacking[0].relative_to(folder)}, which its index names: download it again")
    if any(path.suffix == ".safetensors" for path in files):
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
    """A shell command that saves a model's weights, whatever their format, as safetensors in the folder `to`."""
    (architecture, *_) = architectures or ("AutoModelForCausalLM",)
    made = f"Model.from_pretrained('{name}').save_pretrained('{to}')"
    return f'python -c "from transformers import {architecture} as Model; {made}"'


def check_config(config: Mapping[str, Any], name: str) -> None:
    """Raise UnsupportedModel if the config of the model `name` says that it is quantised."""
    settings = config.get("quantization_config") or config.get("compression_config")
    if settings:
        _refuse(name, _method_of(settings))


def check_model(model: PreTrainedModel) -> None:
    """Raise UnsupportedModel for a model in memory if its config, quantiser or modules show that it is quantised."""
    name, quantiser = type(model).__name__, getattr(model, "hf_quantizer", None)
    check_config(vars(model.config), name)
    if quantiser is not None:
        _refuse(name, _method_of(quantiser.quantization_config))
    for by in _quantisers_of(model):
        _refuse(name, by)


def _refuse(name: str, by: str) -> None:
    """Raise UnsupportedModel for the model `name`, which the quantiser `by` quantised."""
    way_out = "give the model that was quantised, or dequantize() this one and save it"
    raise UnsupportedModel(f"{name} is quantised by {by}, which no method supports: {way_out}")


def _method_of(settings: Any) -> str:
    """The name of the quantiser with these settings, from a config file or an object of transformers."""
    fields = settings if isinstance(settings, Mapping) else vars(settings)
    method = fields.get("quant_method", "bitsandbytes")  # old files of bitsandbytes have no such field
    return str(getattr(method, "value", method))


def _quantisers_of(model: nn.Module) -> Iterator[str]:
    """Yield the names of quantisers to which modules or weights of a model belong."""
    for path, module in model.named_modules():
        yield from _maker_of(type(module))
        for name, weight in module.named_parameters(recurse=False):
            yield from _maker_of(type(weight))
            yield from _maker_of(type(weight.data))
            if not weight.is_floating_point() or weight.element_size() < 2:
                yield f"an unknown quantiser ({path}.{name} is {weight.dtype})"


def _maker_of(kind: type) -> Iterator[str]:
    """Yield the name of the quantiser to which a class of modules or tensors belongs, if any."""
    module = f"{kind.__module__}."
    if module.startswith(_INTEGRATIONS):
        yield module.split(".")[2]
    yield from (quantiser for package, quantiser in _PACKAGES.items() if module.startswith(f"{package}."))
