"""Quantised models compute with other weights than those that are read of them: they are refused by their quantiser."""

import json
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

from closelook.lrp_core import UnsupportedModel, load_model
from closelook.lrp_core.opening.model import view_of
from tests.tiny import tiny_model

#: What quantisers write into a checkpoint's config.json.
SETTINGS = {
    "bitsandbytes": {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"},
    "gptq": {"quant_method": "gptq", "bits": 4},
    "awq": {"quant_method": "awq", "bits": 4, "zero_point": True},
    "torchao": {"quant_method": "torchao", "quant_type": {"default": {"_type": "Int8WeightOnlyConfig"}}},
    "fp8": {"quant_method": "fp8", "weight_block_size": [128, 128]},
    "compressed-tensors": {"quant_method": "compressed-tensors", "format": "pack-quantized"},
}


@pytest.fixture
def model():
    return tiny_model("llama", dtype="float32").model


def refusal(model, family=None) -> str:
    with pytest.raises(UnsupportedModel, match=r"^LlamaForCausalLM is quantised by .*: give the model") as error:
        view_of(model, family)
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("family", [None, "generic"])
@pytest.mark.parametrize("quantiser", [*SETTINGS, "no name"])
def test_a_quantised_checkpoint_is_refused_by_name_before_its_weights_are_read(quantiser, family, model, tmp_path):
    model.save_pretrained(tmp_path)
    settings = SETTINGS.get(quantiser, {"load_in_8bit": True})  # as the first of them wrote it
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"quantization_config": settings}))
    (tmp_path / "model.safetensors").write_bytes(b"not read")
    named = "bitsandbytes" if quantiser == "no name" else quantiser
    with pytest.raises(UnsupportedModel, match=f"{tmp_path} is quantised by {named}, .*dequantize") as error:
        load_model(tmp_path, family=family)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("family", [None, "generic"])
def test_a_model_in_memory_is_refused_by_what_says_that_it_is_quantised(model, family):
    of_transformers = BitsAndBytesConfig(load_in_8bit=True)
    model.config.quantization_config = of_transformers
    assert "by bitsandbytes" in refusal(model, family)
    del model.config.quantization_config
    model.hf_quantizer = SimpleNamespace(quantization_config=of_transformers)
    assert "by bitsandbytes" in refusal(model, family)
    del model.hf_quantizer
    view_of(model, family)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:torch.quantize_per_tensor")
def test_a_model_with_quantised_modules_is_refused(model, tmp_path):
    model.save_pretrained(tmp_path)
    stock = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert "by torch.ao.quantization" in refusal(torch.ao.quantization.quantize_dynamic(stock, {nn.Linear}))


@pytest.mark.parametrize(
    ("package", "named"),
    [
        ("bitsandbytes.nn.modules", "bitsandbytes"),
        ("gptqmodel.nn_modules.qlinear.torch", "gptq"),
        ("awq.modules.linear.gemm", "awq"),
        ("transformers.integrations.finegrained_fp8", "finegrained_fp8"),
    ],
)
def test_modules_of_quantisers_are_known_by_their_packages(package, named, model):
    quantised = type("QuantLinear", (nn.Linear,), {"__module__": package})(16, 16, bias=False)
    model.model.layers[1].self_attn.q_proj = quantised
    assert f"by {named}," in refusal(model)


def test_tensors_of_quantisers_are_known_by_their_packages_or_their_numbers(model):
    layer = model.model.layers[0].self_attn.q_proj
    weight = type("Int8Tensor", (torch.Tensor,), {"__module__": "torchao.quantization"})(torch.zeros(16, 16))
    layer.weight = nn.Parameter(weight, requires_grad=False)
    assert "by torchao," in refusal(model)
    layer.weight = nn.Parameter(torch.zeros(16, 16, dtype=torch.int8), requires_grad=False)
    assert "by an unknown quantiser (model.layers.0.self_attn.q_proj.weight is torch.int8)" in refusal(model)
    layer.weight = nn.Parameter(torch.zeros(16, 16, dtype=torch.float8_e4m3fn), requires_grad=False)
    assert "is torch.float8_e4m3fn" in refusal(model)
