import struct
from functools import cache, partial
from itertools import product

import numpy as np
import pytest
from transformers import AutoTokenizer

from closelook.evaluation.benchmark.demo import (
    ANSWERING,
    EVERY,
    MODELS,
    READING,
    SEEDS,
    TASKS,
    VISION,
    generate,
    lexicon,
    model_dir,
)
from closelook.evaluation.benchmark.demo.passages import SOURCES
from closelook.evaluation.benchmark.views import tokenise
from closelook.lrp_core import load_model
from tests.evaluation.benchmark.demo.right import UNSEEN_SEED, accuracy, trained
from tools import demo_models


@cache
def opened(name):
    folder = model_dir(name)
    return load_model(str(folder)), AutoTokenizer.from_pretrained(folder)


@pytest.fixture(params=[*MODELS, *SEEDS])
def shipped(request):
    return opened(request.param)


#: Of language models, the encoder-decoder, and the model that says every token of an answer.
TRAINED_FOR = [*product([*MODELS, *SEEDS], TASKS), *ANSWERING.items(), *((name, SOURCES) for name in READING)]


@pytest.mark.thinned(4)
@pytest.mark.parametrize(("name", "task"), TRAINED_FOR)
def test_shipped_models_reach_95_percent_on_unseen_draws(name, task):
    assert accuracy(*opened(name), task, n=400) >= 0.95


@pytest.mark.thinned(3)
@pytest.mark.parametrize("task", TASKS)
def test_every_sample_has_a_view_whose_evidence_tokens_spell_the_evidence(shipped, task):
    view, tokenizer = shipped
    rows = list(generate(task, 200, seed=UNSEEN_SEED))
    views, rejects = tokenise(rows, tokenizer, kind=view.kind, max_length=view.max_length)
    assert not rejects
    for row, tokens in zip(rows, views, strict=True):
        [(start, end)] = row["evidence"]
        pieces = [token for token, chosen in zip(tokens["input_ids"], tokens["evidence_mask"], strict=True) if chosen]
        word = row["text"][start:end]
        assert tokenizer.decode(pieces).strip() in (word, word.lower())


def test_some_evidence_words_are_several_tokens_and_no_target_is(shipped):
    _, tokenizer = shipped
    assert all(len(tokenizer.tokenize(f" {word}")) == 1 for word in lexicon.targets())
    nouns = [form for pair in [*lexicon.ANIMATE, *lexicon.THINGS] for form in pair]
    assert sum(len(tokenizer.tokenize(f" {noun}")) > 1 for noun in nouns) >= 10


@pytest.mark.parametrize("name", SEEDS)
def test_other_seeds_have_the_tokenizer_and_the_shape_of_gpt2_and_other_weights(name):
    first, other = model_dir("gpt2"), model_dir(name)
    assert (first / "tokenizer.json").read_bytes() == (other / "tokenizer.json").read_bytes()
    states = [load_model(str(folder)).model.state_dict() for folder in (first, other)]
    assert {key: weight.shape for key, weight in states[0].items()} == {
        key: weight.shape for key, weight in states[1].items()
    }
    matrices = [key for key, weight in states[0].items() if weight.ndim == 2]
    assert not any(states[0][key].equal(states[1][key]) for key in matrices)


def test_any_english_text_can_be_read(shipped):
    _, tokenizer = shipped
    ids = tokenizer("Quixotic zebras, unheard of!", add_special_tokens=False)["input_ids"]
    assert tokenizer.unk_token_id is None or tokenizer.unk_token_id not in ids


def test_llama_has_fewer_key_value_heads_than_query_heads():
    view = load_model(str(model_dir("llama")))
    assert view.n_kv_heads < view.n_heads


def test_shipped_models_are_a_few_megabytes_and_each_has_its_card():
    folders = [model_dir(name) for name in EVERY]
    assert sum(file.stat().st_size for folder in folders for file in folder.iterdir()) < 12e6
    assert all((model_dir(name) / "README.md").read_text().startswith("---\n") for name in {*EVERY} - {*VISION})
    assert not [file for folder in folders for file in folder.glob("*.bin")]


@pytest.mark.thinned(8)
@pytest.mark.parametrize("name", EVERY)
def test_training_twice_gives_the_same_weights_and_a_model_that_loads(name, tmp_path, capsys):
    first, second = (trained(name, tmp_path / folder) for folder in "ab")
    assert first == second != (model_dir(name) / "model.safetensors").read_bytes()
    load_model(str(tmp_path / "a"))
    assert f"{name} step     2" in capsys.readouterr().out


def test_the_script_trains_the_models_that_it_is_told_into_a_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(demo_models, "Recipe", partial(demo_models.Recipe, batch=4, pool=50))
    demo_models.main(["--models", "bert-sentiment", "--steps", "1", "--seed", "5", "--out", str(tmp_path)])
    assert load_model(str(tmp_path / "bert-sentiment")).kind.labels
    assert AutoTokenizer.from_pretrained(tmp_path / "bert-sentiment")("fine")


def test_the_script_trains_a_model_of_digits(tmp_path, monkeypatch):
    files = {"images-idx3": np.random.default_rng(0).integers(0, 256, (10, 28, 28), np.uint8)}
    files["labels-idx1"] = np.arange(10, dtype=np.uint8)
    for name, values in files.items():
        head = struct.pack(f">{1 + values.ndim}I", 0x800 + values.ndim, *values.shape)
        (tmp_path / f"t10k-{name}-ubyte").write_bytes(head + values.tobytes())
    monkeypatch.setattr(demo_models, "Recipe", partial(demo_models.Recipe, batch=4, pool=8))
    demo_models.main(["--mnist", str(tmp_path), "--out", str(tmp_path / "out"), "--steps", "1"])
    assert load_model(str(tmp_path / "out" / "mnist")).kind.images


def test_an_unknown_demo_model_is_refused_with_the_known_ones():
    known = "bert, gpt2, llama, gpt2-seed1, gpt2-seed2, bert-sentiment"
    with pytest.raises(ValueError, match=f"there is no demo model 'gpt3'; the demo models are {known}"):
        model_dir("gpt3")
