"""Models in GGUF files: the numbers of the model that was written, one conversion, and one line about what is wrong."""

import huggingface_hub
import pytest
import torch
from huggingface_hub import constants
from transformers import AutoModelForCausalLM

import closelook
from closelook import UserError, gguf
from closelook.jobs.config import ModelConfig
from closelook.jobs.plan.models import load_tokenizer, open_view, resolve
from tests.tiny import tiny_config

LETTERS = "abcdefghijklmnopqrstuvwxyz"
TOKENS = ["<unk>", "<s>", "</s>", *LETTERS, "Ġ", "th"]
TEXT = "the cat"
PARTS = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down", "attn_norm", "ffn_norm")
NAMES = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}


@pytest.fixture(autouse=True)
def kept(tmp_path, monkeypatch):
    """The folder of what is kept of files, which each test begins empty."""
    monkeypatch.setattr(constants, "HF_HOME", str(tmp_path / "kept"))


@pytest.fixture
def llama():
    torch.manual_seed(0)
    config = tiny_config("llama")
    config.vocab_size = len(TOKENS)
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()


@pytest.fixture
def file(llama, tmp_path):
    return write(llama, tmp_path / "folder" / "tiny.gguf")


def write(model, path, architecture="llama", more=(), lacking=(), scaling=None):
    """Write a Llama as llama.cpp does, which turns the rows of queries and keys for its own rotary positions."""
    from gguf import GGUFWriter, TokenType

    path.parent.mkdir(exist_ok=True)
    config, writer = model.config, GGUFWriter(path, architecture)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_rope_dimension_count(config.hidden_size // config.num_attention_heads)
    writer.add_vocab_size(len(TOKENS))
    if scaling is not None:
        writer.add_rope_scaling_factor(scaling)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(TOKENS)
    writer.add_token_types([TokenType.CONTROL] * 3 + [TokenType.NORMAL] * (len(TOKENS) - 3))
    writer.add_token_merges(["t h"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    weights = model.state_dict()
    tensors = {"token_embd": weights["model.embed_tokens.weight"], "output_norm": weights["model.norm.weight"]}
    tensors["output"] = weights["lm_head.weight"]
    for layer in range(config.num_hidden_layers):
        for part in PARTS:
            weight = weights[f"model.layers.{layer}.{NAMES[part]}.weight"]
            if part in heads:
                rows = weight.unflatten(0, (heads[part], 2, -1))
                weight = rows.transpose(1, 2).flatten(0, 2)
            tensors[f"blk.{layer}.{part}"] = weight
    tensors |= dict(more)
    for name, weight in tensors.items():
        if name not in lacking:
            writer.add_tensor(f"{name}.weight", weight.contiguous().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_a_file_is_explained_as_the_model_that_was_written(llama, file):
    asked = {"target": "s", "foil": "r", "method": "attnlrp"}
    read = closelook.explain(TEXT, model=file, **asked)
    tokenizer = load_tokenizer(ModelConfig(name="m", id=str(file)))
    expected = closelook.explain(TEXT, model=closelook.open_model(llama, tokenizer=tokenizer), **asked)
    assert [part.replace("Ġ", " ") for part in tokenizer.tokenize(TEXT)] == ["th", "e", " ", "c", "a", "t"]
    assert read["attnlrp"].any()
    torch.testing.assert_close(read["attnlrp"], expected["attnlrp"])


def test_verification_and_runs_open_a_file_by_its_folder_and_know_it_by_its_content(llama, file, monkeypatch):
    assert closelook.verify(file, method="gradient_x_input").passed
    monkeypatch.setattr(gguf, "_convert", None)  # it was converted by now
    folder = resolve(ModelConfig(name="folder", id=str(file.parent)))
    assert folder.identity == resolve(ModelConfig(name="file", id=str(file))).identity
    view = open_view(folder, "float64", "cpu")
    torch.testing.assert_close(view.model.lm_head.weight, llama.lm_head.weight.double(), check_stride=False)


def test_other_weights_are_another_model(llama, file):
    before = resolve(ModelConfig(name="m", id=str(file))).identity
    llama.lm_head.weight.data[0, 0] += 1
    write(llama, file)
    assert resolve(ModelConfig(name="m", id=str(file))).identity != before


def test_a_file_on_the_hub_is_named_behind_the_model(file, monkeypatch):
    asked = []

    def download(*where, revision, **_):
        asked.append((*where, revision))
        return str(file)

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    model = ModelConfig(name="m", id="owner/name/below/tiny.gguf", revision="a1")
    assert resolve(model).identity == resolve(ModelConfig(name="m", id=str(file))).identity
    assert set(asked) == {("owner/name", "below/tiny.gguf", "a1")}


def refused(model, match):
    with pytest.raises(UserError, match=match) as error:
        closelook.open_model(model)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("damage", "match"),
    [
        (lambda content: content[:-400], "download it again"),
        (lambda content: content[:200], "download it again"),
        (lambda content: b"no model", "download it again"),
        (lambda content: content[:4] + b"\x63" + content[5:], "newer than transformers"),
    ],
    ids=["end cut off", "beginning alone", "other file", "version 99"],
)
def test_a_file_that_cannot_be_read_is_refused_in_one_line(file, damage, match):
    file.write_bytes(damage(file.read_bytes()))
    refused(file, match)


def test_a_file_of_which_transformers_reads_a_part_is_refused(llama, tmp_path):
    refused(write(llama, tmp_path / "f" / "architecture.gguf", architecture="starcoder9"), "starcoder9.*safetensors")
    refused(write(llama, tmp_path / "f" / "scaled.gguf", scaling=8.0), r"rope\.scaling.*safetensors")
    bias = {"blk.0.attn_q_extra": torch.ones(16)}
    refused(write(llama, tmp_path / "f" / "more.gguf", more=bias), "transformers reads .*safetensors")
    refused(write(llama, tmp_path / "f" / "fewer.gguf", lacking=["output_norm"]), r"lack model\.norm\.weight")


def test_a_file_that_is_not_there_and_several_in_a_folder_are_refused(llama, file):
    refused(file.parent / "tyny.gguf", r"no file .*did you mean 'tiny\.gguf'")
    refused("tiny.gguf", "no file tiny.gguf")
    write(llama, file.parent / "second.gguf")
    refused(file.parent, "holds 2 GGUF files")


def test_a_missing_package_is_named_with_its_extra(file, monkeypatch):
    monkeypatch.setattr(gguf, "find_spec", lambda package: None)
    refused(file, r"pip install 'closelook\[gguf\]'")
