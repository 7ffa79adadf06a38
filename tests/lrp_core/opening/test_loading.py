"""A model is what its files say: weights that they lack or that do not fit are refused, tied ones are found."""

import json
import re
import shlex

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModel, AutoModelForTokenClassification

from closelook.lrp_core import UnsupportedModel, UserError, load_model, random_model
from closelook.lrp_core.families import FAMILIES
from closelook.lrp_core.opening import loading
from closelook.lrp_core.opening.loading import _tokenizer
from tests.tiny import FEWER, MORE, TINY, tiny_config

EVERY = sorted(TINY | MORE | FEWER)


@pytest.fixture(params=[True, False], ids=["tied", "untied"])
def tied(request):
    return request.param


def saved(folder, family, change=lambda weights: weights, **config):
    """A model of the family whose stored weights went through `change`; returns it as it was in memory."""
    model = random_model(tiny_config(family, **config)).model
    model.save_pretrained(folder)
    rewrite(folder, change)
    return model


def rewrite(folder, change):
    weights = change(load_file(folder / "model.safetensors"))
    contiguous = {name: weight.clone().contiguous() for name, weight in weights.items()}
    save_file(contiguous, folder / "model.safetensors", metadata={"format": "pt"})


def without(*endings):
    return lambda weights: {name: weight for name, weight in weights.items() if not name.endswith(endings)}


def renamed(old, new):
    return lambda weights: {name.replace(old, new): weight for name, weight in weights.items()}


def refusal(folder, **options):
    with pytest.raises(UserError) as error:
        load_model(folder, **options)
    assert "\n" not in str(error.value)
    return str(error.value)


def assert_loads_as(folder, model):
    outputs = load_model(folder).model
    for (name, loaded), (_, saved) in zip(outputs.named_parameters(), model.named_parameters(), strict=True):
        assert torch.equal(loaded, saved), name


@pytest.mark.thinned(5)
@pytest.mark.parametrize("family", EVERY)
def test_saved_model_loads_tied_or_not(family, tied, tmp_path):
    assert_loads_as(tmp_path, saved(tmp_path, family, tie_word_embeddings=tied))


@pytest.mark.thinned(5)
@pytest.mark.parametrize("family", EVERY)
def test_base_model_loads_only_where_its_head_is_the_embedding(family, tied, tmp_path):
    model = random_model(tiny_config(family, tie_word_embeddings=tied)).model
    model.base_model.save_pretrained(tmp_path)
    if tied and FAMILIES[family].head_dense is None and model.get_output_embeddings().bias is None:
        assert_loads_as(tmp_path, model)
        return
    base, with_head = type(model.base_model).__name__, type(model).__name__
    message = refusal(tmp_path)
    assert " lack " in message
    assert message.endswith(f"they were saved as {base}; give a model saved as {with_head}")


LACKING = {
    "transformer.h.1.mlp.c_fc.weight": ("gpt2", {}),
    "lm_head.weight": ("llama", {"tie_word_embeddings": False}),
    "cls.predictions.transform.dense.bias": ("bert", {}),
    "gpt_neox.embed_in.weight": ("gpt_neox", {}),
}


@pytest.mark.parametrize("missing", LACKING)
def test_missing_weight_is_named(missing, tmp_path, caplog):
    family, config = LACKING[missing]
    model = saved(tmp_path, family, without(missing), **config)
    message = refusal(tmp_path)
    assert f"lack {missing}: saved as {type(model).__name__}, they are damaged" in message
    assert not caplog.records


def test_missing_weight_of_an_offloaded_model_is_named(tmp_path):
    model = saved(tmp_path / "model", "gpt2", without("h.1.mlp.c_fc.weight"))
    size = sum(parameter.numel() * 4 for parameter in model.parameters())
    message = refusal(tmp_path / "model", max_memory={"cpu": size // 2}, offload_dir=tmp_path / "disk")
    assert "lack transformer.h.1.mlp.c_fc.weight" in message


def test_embedding_missing_on_both_sides_of_a_tie_is_named(tmp_path):
    saved(tmp_path, "gpt2", without("wte.weight"))
    assert "lack lm_head.weight, transformer.wte.weight" in refusal(tmp_path)


def test_weight_of_another_shape_is_named(tmp_path):
    saved(tmp_path, "gpt2")
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"n_inner": 20}))
    message = refusal(tmp_path)
    assert "misfit transformer.h.0.mlp.c_fc.bias [24] for [20], " in message
    assert "and 2 more" in message


def test_many_missing_weights_are_counted(tmp_path):
    model = random_model(tiny_config("bert")).model
    model.bert.save_pretrained(tmp_path)
    assert "cls.predictions.transform.LayerNorm.weight and 2 more: " in refusal(tmp_path)


def test_a_folder_may_be_given_from_home(tmp_path, monkeypatch):
    model = saved(tmp_path / "mine", "gpt2")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert_loads_as("~/mine", model)


def test_random_weights_do_not_depend_on_the_dtype_that_a_config_names():
    config, in_half = tiny_config("gpt2"), tiny_config("gpt2", dtype="bfloat16")
    for weight, other in zip(*(random_model(of).model.parameters() for of in (config, in_half)), strict=True):
        assert torch.equal(weight, other)
    assert in_half.dtype == torch.bfloat16, "the config is the caller's"


@pytest.mark.parametrize("options", [{"dtype": "flot32"}, {"device": "gpu"}])
def test_an_unknown_dtype_or_device_is_refused_before_weights_are_drawn(options, monkeypatch):
    monkeypatch.setattr(loading, "_auto", lambda config, family: pytest.fail("weights are drawn"))
    with pytest.raises(UserError, match=r"unknown (dtype 'flot32'|device 'gpu')"):
        random_model(tiny_config("bert"), **options)


#: What well-known checkpoints of earlier years look like.
OLDER_NAMES = {
    "bert with gamma and beta": ("bert", renamed("LayerNorm.weight", "LayerNorm.gamma")),
    "bert with its other heads": (
        "bert",
        lambda weights: {
            **weights,
            "cls.predictions.decoder.weight": weights["bert.embeddings.word_embeddings.weight"],
            "cls.seq_relationship.weight": torch.zeros(2, 16),
            "bert.pooler.dense.weight": torch.zeros(16, 16),
            "bert.embeddings.position_ids": torch.arange(32)[None],
        },
    ),
    "bert with the bias of its decoder alone": (
        "bert",
        renamed("cls.predictions.bias", "cls.predictions.decoder.bias"),
    ),
    "gpt2 without prefix": ("gpt2", renamed("transformer.", "")),
    "gpt2 with masks": ("gpt2", lambda weights: {**weights, "transformer.h.0.attn.bias": torch.ones(1, 1, 32, 32)}),
    "gpt2 with its head alone": ("gpt2", renamed("transformer.wte", "lm_head")),
    "llama with frequencies": (
        "llama",
        lambda weights: {**weights, "model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(2)},
    ),
    "gpt_neox with embed_out": ("gpt_neox", renamed("lm_head", "embed_out")),
    "opt without prefix": ("opt", renamed("model.decoder", "decoder")),
}


@pytest.mark.parametrize("layout", OLDER_NAMES)
def test_older_layouts_of_complete_weights_load(layout, tmp_path):
    family, change = OLDER_NAMES[layout]
    assert_loads_as(tmp_path, saved(tmp_path, family, change))


@pytest.mark.parametrize("family", ["bert", "gpt2", "llama"])
def test_a_head_that_is_not_explained_is_refused_by_name(family, tmp_path):
    """Also those whose tied head would load without a missing weight."""
    model = AutoModelForTokenClassification.from_config(tiny_config(family, tie_word_embeddings=True))
    model.save_pretrained(tmp_path)
    with pytest.raises(UnsupportedModel, match=f"{type(model).__name__} has no language-modelling head: give a "):
        load_model(tmp_path)


def test_relative_positions_that_transformers_drops_are_refused(tmp_path):
    saved(tmp_path, "bert")
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"position_embedding_type": "relative_key"}))
    assert "position_embedding_type=absolute only, not relative_key" in refusal(tmp_path)


def test_model_without_recorded_class_is_told_which_one_is_needed(tmp_path):
    AutoModel.from_config(tiny_config("bert")).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    del config["architectures"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert refusal(tmp_path).endswith("2 more: give a model saved as BertForMaskedLM")


BROKEN = {
    '{"model_type": "gpt2", ': r"config.json is not JSON \(.*\): download it again, or repair it",
    "": r"config.json is not JSON \(.*\): download it again",
    "[1]": "config.json holds no JSON object: download it again",
    '{"a": 1}': "has no model_type, which transformers needs: download the model again",
    '{"model_type": "gpt2", "n_embd": "x"}': r"cannot read the config.json .* \(Field 'n_embd' .*\): correct the file",
}


@pytest.mark.parametrize("config", BROKEN)
def test_a_broken_config_is_one_line_that_says_what_to_do(config, tmp_path):
    saved(tmp_path, "gpt2")
    (tmp_path / "config.json").write_text(config)
    assert re.search(BROKEN[config], refusal(tmp_path))


def test_a_tokenizer_that_is_not_reached_is_not_said_to_be_missing():
    with pytest.raises(UserError, match=r"tokenizer of nobody/nothing cannot be read \(.*\): check the connection to"):
        _tokenizer("nobody/nothing", None)


@pytest.mark.parametrize("kept_bytes", [1000, -8])
def test_weights_that_are_cut_off_are_to_be_got_again(kept_bytes, tmp_path):
    saved(tmp_path, "gpt2")
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:kept_bytes])
    assert re.search(r"the weights of .* are cut off or damaged \(.*\): download them again", refusal(tmp_path))


def test_weights_in_another_format_load_after_the_command_that_the_refusal_gives(tmp_path):
    model = saved(tmp_path, "llama")
    (tmp_path / "model.safetensors").unlink()
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    message = refusal(tmp_path)
    assert "has its weights in pytorch_model.bin, which may run code when it is read" in message
    *python, code = shlex.split(message.partition("convert it by ")[2])
    assert python == ["python", "-c"]
    exec(compile(code, "command", "exec"), {})
    assert_loads_as(tmp_path, model)
