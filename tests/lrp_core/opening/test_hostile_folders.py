"""Folders of models by strangers: weights elsewhere, and configs of models that no memory holds."""

import json

import pytest
from safetensors.torch import load_file, save_file

from closelook.jobs.config import ModelConfig
from closelook.jobs.stages.report.results import _size
from closelook.lrp_core import UserError, load_model, random_model
from closelook.lrp_core.opening.checkpoint import without_numbers
from tests.tiny import tiny_config

INDEX = "model.safetensors.index.json"


@pytest.fixture
def folder(tmp_path):
    """The folder of a small model."""
    random_model(tiny_config("gpt2")).model.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def change(folder, **fields):
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | fields))


def move_weights(folder, to):
    """Move the weights to the file `to`, relative to the folder, and name it in an index."""
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    (folder / to).parent.mkdir(exist_ok=True)
    save_file(weights, folder / to, metadata={"format": "pt"})
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": dict.fromkeys(weights, str(to))}))


def test_weights_may_lie_in_a_folder_below(folder):
    move_weights(folder, "weights/a.safetensors")
    assert load_model(folder).n_layers == tiny_config("gpt2").n_layer


@pytest.mark.parametrize("where", ["../outside.safetensors", "weights/../../outside.safetensors", "absolute"])
def test_an_index_names_no_files_outside_of_its_folder(folder, where):
    name = str(folder.parent / "outside.safetensors") if where == "absolute" else where
    (folder / "weights").mkdir()
    move_weights(folder, name)
    with pytest.raises(UserError, match=r"names '.*outside.safetensors', which is outside of its folder"):
        load_model(folder)


def test_a_file_that_the_index_names_and_nobody_has_is_said(folder):
    move_weights(folder, "a.safetensors")
    (folder / "a.safetensors").rename(folder / "b.safetensors")
    with pytest.raises(UserError, match=r"lacks a\.safetensors, which its index names"):
        load_model(folder)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"vocab_size": 1 << 34}, "the weights hold .* do not go together"),
        ({"n_positions": 1 << 33}, "do not go together"),
        ({"n_embd": 1 << 20}, "do not go together"),
        ({"n_layer": 10**7}, "n_layer = 10,000,000: correct the file"),
        ({"n_layer": -1}, "n_layer = -1: correct the file"),
        ({"num_labels": 10**9}, "num_labels = 1,000,000,000: correct the file"),
        ({"n_head": 0}, "transformers cannot make a model of this config.json"),
    ],
)
def test_a_config_of_another_size_than_its_weights_is_refused_before_memory_is_taken(folder, fields, message):
    change(folder, **fields)
    with pytest.raises(UserError, match=message):
        load_model(folder)


def test_an_error_in_the_constructor_of_a_model_is_one_line():
    config = tiny_config("gpt2")
    config.num_attention_heads = 0
    with pytest.raises(UserError, match=r"cannot make a model of this config.json \(ZeroDivisionError: .*\): correct"):
        without_numbers(config)


def test_a_report_leaves_out_the_size_of_a_model_that_cannot_be_made(folder):
    change(folder, n_head=0)
    assert _size(ModelConfig(name="m", id=str(folder))) is None
