"""Configured models: pinned to their weights, opened as configured, out of reach without harm."""

import hashlib
import json
import socket
import threading
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from huggingface_hub import constants
from huggingface_hub.utils import close_session
from pydantic import ValidationError
from safetensors.torch import load_file
from transformers import AutoConfig, ViTConfig

from closelook import weights
from closelook.jobs.config import ModelConfig, RunConfig
from closelook.jobs.geometries import GEOMETRIES
from closelook.jobs.plan.checkpoints import ModelUnavailable, hub_reachable, preprocessing_of
from closelook.jobs.plan.models import load_tokenizer, open_view, resolve, tokenizer_key
from closelook.jobs.plan.units import WorkerOptions
from closelook.jobs.products.explaining import Explainer
from closelook.lrp_core import METHODS, Batch, Request, load_model
from closelook.lrp_core.records.types import UserError
from closelook.weights import hash_files
from tests.adapters import adapted
from tests.jobs.small import rows_of, save_model
from tests.tiny import tiny_classifier, tiny_model

#: Weights by table 9 of Close Look, in millions.
SIZES = {
    "bert-base": 110,
    "bert-large": 336,
    "gpt2": 124,
    "gpt2-medium": 355,
    "gpt2-large": 774,
    "gpt2-xl": 1558,
    "deberta-v3-base": 184,
    "Llama-3.2-1B": 1236,
    "Llama-3.2-3B": 3213,
    "Llama-3.1-8B": 8030,
}


@pytest.mark.parametrize("name", SIZES)
def test_a_geometry_has_the_size_of_its_model(name):
    geometry = GEOMETRIES[name]
    assert geometry.parameters / 1e6 == pytest.approx(SIZES[name], rel=0.02)
    config = geometry.config()
    assert (config.num_hidden_layers, config.hidden_size, config.vocab_size) == (
        geometry.layers,
        geometry.width,
        geometry.vocabulary,
    )


def test_an_identity_is_that_of_the_weights_wherever_they_lie(tmp_path):
    first, second = save_model(tmp_path / "a"), save_model(tmp_path / "b")
    other = save_model(tmp_path / "c", seed=1)
    identities = [resolve(ModelConfig(name="m", id=str(path))).identity for path in (first, second, other)]
    assert identities[0] == identities[1] != identities[2]


@pytest.mark.parametrize(("family", "decides"), [("t5", True), ("gpt2", False)])
def test_an_identity_covers_the_token_with_which_a_decoder_begins(tmp_path, family, decides):
    tiny_model(family).model.save_pretrained(tmp_path)
    settings = tmp_path / "generation_config.json"
    identities = []
    for token in (0, 1):
        settings.write_text(json.dumps({"decoder_start_token_id": token}))
        identities.append(resolve(ModelConfig(name="m", id=str(tmp_path))).identity)
    assert (identities[0] != identities[1]) == decides


def test_weights_are_read_once_until_they_change(tmp_path, monkeypatch):
    model = ModelConfig(name="m", id=str(save_model(tmp_path / "a")))
    reads, digest = [], hashlib.file_digest

    def counted(stream, algorithm):
        reads.append(Path(stream.name).name)
        return digest(stream, algorithm)

    monkeypatch.setattr(hashlib, "file_digest", counted)
    assert resolve(model).identity == resolve(model).identity
    assert sorted(reads) == ["config.json", "model.safetensors"]
    before = resolve(model).identity
    save_model(tmp_path / "a", seed=1)
    assert resolve(model).identity != before
    assert "model.safetensors" in reads[2:]


def test_weights_that_an_index_names_below_the_folder_are_part_of_the_identity(tmp_path):
    folder, other = save_model(tmp_path / "a"), save_model(tmp_path / "b", seed=1)
    model = ModelConfig(name="m", id=str(folder))
    (folder / "weights").mkdir()
    weights = (folder / "model.safetensors").rename(folder / "weights" / "w.safetensors")
    names = dict.fromkeys(load_file(weights), "weights/w.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": names}))
    before = resolve(model).identity
    weights.write_bytes((other / "model.safetensors").read_bytes())
    after = resolve(model).identity
    assert before != after


def test_weights_that_a_config_names_are_part_of_the_identity(tmp_path):
    folder, other = save_model(tmp_path / "a"), save_model(tmp_path / "b", seed=1)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"transformers_weights": "below/w.safetensors"}))
    (folder / "below").mkdir()
    identities = set()
    for source in (folder, other):
        (folder / "below" / "w.safetensors").write_bytes((source / "model.safetensors").read_bytes())
        identities.add(resolve(ModelConfig(name="m", id=str(folder))).identity)
    assert len(identities) == 2


def test_an_error_in_the_constructor_of_a_config_is_that_of_its_model(tmp_path, monkeypatch):
    def broken(*arguments, **options):
        raise ZeroDivisionError("integer division or modulo by zero")

    monkeypatch.setattr(AutoConfig, "from_pretrained", broken)
    with pytest.raises(
        ModelUnavailable, match=r"model m: transformers cannot read its config.json \(ZeroDivisionError"
    ):
        resolve(ModelConfig(name="m", id=str(save_model(tmp_path / "a"))))


def test_tokenizers_that_split_alike_have_one_key(tmp_path):
    keys = {tokenizer_key(load_tokenizer(ModelConfig(name="m", id=str(save_model(tmp_path / n))))) for n in "ab"}
    assert len(keys) == 1


def test_the_first_tokenizer_that_loads_is_used(tmp_path):
    model = save_model(tmp_path / "a")
    config = ModelConfig(name="m", id=str(model), tokenizer=[str(tmp_path / "none"), str(model)])
    assert tokenizer_key(load_tokenizer(config))
    with pytest.raises(UserError, match="no tokenizer could be loaded; tried"):
        load_tokenizer(ModelConfig(name="m", id=str(model), tokenizer=[str(tmp_path / "none")]))


def test_a_model_on_a_hub_that_does_not_answer_is_unavailable_not_wrong():
    with pytest.raises(ModelUnavailable, match="hub does not answer, and it is not in the local cache"):
        resolve(ModelConfig(name="m", id="openai-community/gpt2-of-nobody"))


@pytest.fixture
def refusing_proxy(monkeypatch):
    """A proxy on loopback that hangs up on everybody; the list of who came."""
    came, server = [], socket.create_server(("127.0.0.1", 0))

    def answer():
        with suppress(OSError):  # closed
            while True:
                connection, address = server.accept()
                came.append(address)
                connection.close()

    threading.Thread(target=answer, daemon=True).start()
    for name in ("HTTPS_PROXY", "https_proxy"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{server.getsockname()[1]}")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    close_session()  # the client reads the environment when it is made
    hub_reachable.cache_clear()
    yield came
    server.shutdown(socket.SHUT_RDWR)
    server.close()
    close_session()
    hub_reachable.cache_clear()


def test_a_hub_behind_a_proxy_that_refuses_is_asked_once_for_all_models(refusing_proxy):
    for name in ("one", "two", "three"):
        with pytest.raises(ModelUnavailable, match="hub does not answer, and it is not in the local cache"):
            resolve(ModelConfig(name=name, id=f"nobody/{name}"))
    assert len(refusing_proxy) == 1


def test_what_a_head_puts_out_is_read_from_the_checkpoint(tmp_path):
    for name, labels in (("classes", 3), ("score", 1)):
        tiny_classifier("bert", labels, dtype="float32").model.save_pretrained(tmp_path / name)
    resolved = resolve(ModelConfig(name="m", id=str(tmp_path / "classes")))
    assert (resolved.output, resolved.labels) == ("label", ("LABEL_0", "LABEL_1", "LABEL_2"))
    renamed = resolve(ModelConfig(name="m", id=str(tmp_path / "classes"), classes=("Entailment", "neutral", "No-Way")))
    assert [renamed.label_id(name) for name in ("entailment", "no way", "LABEL_0", "LABEL_9")] == [0, 2, 0, None]
    assert resolve(ModelConfig(name="m", id=str(tmp_path / "score"))).output == "score"
    assert resolve(ModelConfig(name="m", id=str(save_model(tmp_path / "words")))).output == "token"
    random = resolve(ModelConfig(name="m", id="random/gpt2", classes=("a", "b")))
    assert (random.kind.name, random.output, random.labels) == ("causal_classifier", "label", ("a", "b"))
    with pytest.raises(UserError, match="`classes` name labels, and this model predicts words: leave them out"):
        resolve(ModelConfig(name="m", id=str(tmp_path / "words"), classes=("a", "b")))
    with pytest.raises(UserError, match="`classes` names 2 labels, and the model has 1: LABEL_0"):
        resolve(ModelConfig(name="m", id=str(tmp_path / "score"), classes=("a", "b")))


def test_weights_that_cannot_be_read_make_a_model_unavailable(tmp_path):
    directory = save_model(tmp_path / "a")
    (directory / "model.safetensors").write_bytes(b"not weights")
    resolved = resolve(ModelConfig(name="m", id=str(directory)))
    with pytest.raises(ModelUnavailable, match="model m cannot be loaded"):
        open_view(resolved, "float32", "cpu")


def test_an_offloaded_model_gives_the_numbers_of_one_in_memory(tmp_path):
    directory = save_model(tmp_path / "a")
    whole = ModelConfig(name="m", id=str(directory))
    limited = ModelConfig(name="m", id=str(directory), max_memory={"cpu": "3KB"}, offload=True)
    options = WorkerOptions.of(RunConfig.load("smoke"), limited)
    assert options.checkpoint, "offloaded weights are freed in the backward pass"
    requests = (Request("attnlrp", "contrastive", "full"), Request("alti_logit", "contrastive", "none"))
    rows = [
        Explainer(open_view(resolve(config), "float32", "cpu"), requests, settings=vars(options)).batch(rows_of(4))
        for config in (whole, limited)
    ]
    for request in requests:
        assert rows[0].relevance[request].tokens.equal(rows[1].relevance[request].tokens)


def test_an_adapter_is_part_of_what_a_model_is(tmp_path, closelook):
    base, other = save_model(tmp_path / "a"), save_model(tmp_path / "bert", "bert")
    adapters = []
    for seed in (0, 1):
        view = load_model(base)
        adapted(tmp_path / f"adapter-{seed}", view, seed=seed)
        adapters.append(ModelConfig(name="m", id=str(base), adapter=str(tmp_path / f"adapter-{seed}")))
    plain = ModelConfig(name="m", id=str(base))
    beside = adapters[0].model_copy(update={"merge": False})
    assert len({resolve(model).identity for model in (plain, *adapters, beside)}) == 4
    batch = Batch.collate(rows_of(3), 0)
    shown = [open_view(resolve(model), "float32", "cpu") for model in (plain, adapters[0], beside)]
    bare, merged, apart = (METHODS["attnlrp"](view, batch).tokens for view in shown)
    torch.testing.assert_close(merged, apart, rtol=1e-4, atol=1e-6)
    assert not torch.allclose(bare, merged, rtol=1e-2)
    wrong = adapters[0].model_copy(update={"id": str(other)})
    with pytest.raises(ModelUnavailable, match=r"the adapter .* is for another base than BertForMaskedLM"):
        open_view(resolve(wrong), "float32", "cpu")
    asked = ("explain", "-m", str(other), "w5 ___ w7", "--target", "w8", "--adapter", str(tmp_path / "adapter-0"))
    code, _, err = closelook(*asked)
    assert (code, err.count("\n")) == (2, 1)
    assert "is for another base" in err
    nowhere = "model m: cannot read its adapter 'some/adapter': there is no directory some/adapter"
    with pytest.raises(ModelUnavailable, match=nowhere):
        resolve(plain.model_copy(update={"adapter": "some/adapter"}))
    with pytest.raises(ValidationError, match="an adapter needs trained weights, all in memory"):
        ModelConfig(name="m", id="random/gpt2", adapter="a/b")


def test_random_models_of_images_that_are_not_square_are_refused():
    with pytest.raises(UserError, match="model m: random weights are supported for square images only: give its geom"):
        preprocessing_of(ModelConfig(name="m", id="random/vit"), "random/vit", ViTConfig(image_size=[8, 16]))


@pytest.mark.parametrize(("name", "most"), [("bert-base", 512), ("roberta-base", 512), ("gpt2", 1024)])
def test_a_geometry_takes_as_many_tokens_as_the_model_it_stands_for(name, most):
    assert resolve(ModelConfig(name="m", id=f"random/{name}")).max_length == most


def test_a_large_file_is_hashed_once_on_a_machine_and_again_once_it_changed(tmp_path, monkeypatch):
    monkeypatch.setattr(constants, "HF_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(weights, "LARGE_BYTES", 3)
    path = tmp_path / "model.safetensors"

    def hashed() -> str:
        weights._hash_file.cache_clear()  # as in another process
        return hash_files([path])

    path.write_bytes(b"first")
    first = hashed()
    assert not (tmp_path / "cache").exists(), "it changed a moment ago"
    monkeypatch.setattr(weights, "SETTLED_S", -1.0)
    assert hashed() == first
    (kept,) = (tmp_path / "cache/closelook/hashes").iterdir()
    kept.write_text("0" * 64)
    assert hashed() != first, "read from there"
    path.write_bytes(b"other")
    hashed()
    assert len(list(kept.parent.iterdir())) == 2
    path.write_bytes(b"s")
    hashed()
    assert len(list(kept.parent.iterdir())) == 2, "a small one is not kept"
