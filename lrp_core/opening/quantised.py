"""Refuses quantised models, naming their quantiser: they compute with other weights than rules and readers see."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from lrp_core.records.types import UnsupportedModel

if TYPE_CHECKING:
    from torch import nn
    from transformers import PreTrainedModel

#: Packages that define quantised modules and tensors, with the names of their quantisers.
_PACKAGES = {
    "torch.ao.nn": "torch.ao.quantization",
    "auto_gptq": "gptq",
    "gptqmodel": "gptq",
    "optimum.quanto": "quanto",
    "compressed_tensors": "compressed-tensors",
    **{name: name for name in ("aqlm", "awq", "bitsandbytes", "eetq", "hqq", "torchao", "vptq")},
}
_INTEGRATIONS = "transformers.integrations."  # transformers defines its own quantised modules here


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
