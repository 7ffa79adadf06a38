"""The explained prediction and a given answer begin as in the model's own `generate`; what is not followed is told."""

import pytest
import torch
from transformers import AutoTokenizer

import closelook
from closelook.evaluation.benchmark.demo import model_dir
from closelook.evaluation.benchmark.encoding import START
from closelook.lrp_core.readers.predictions import with_predictions
from tests.tiny import tiny_model

TEXT = "The keys to the cabinet"
NEW = 4  # generated tokens


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(model_dir("gpt2"))


def model_of(family, tokenizer, **settings):
    """A model in memory with random weights and these settings of `generate`."""
    special = {"bos_token_id": 1, "pad_token_id": 1, "eos_token_id": 2, "max_position_embeddings": 64}
    model = tiny_model(family, "float32", vocab_size=len(tokenizer), **(special if family == "bart" else {})).model
    model.generation_config.update(forced_eos_token_id=None, **settings)  # an answer that is cut off has no end
    return model


def generated(model, tokenizer, text=TEXT):
    """The tokens that the model itself generates greedily, from the decoder's first or the text's on."""
    ids = tokenizer(text, return_tensors="pt")["input_ids"]
    is_forced = model.config.is_encoder_decoder and model.generation_config.forced_bos_token_id is not None
    settings = {"do_sample": False, "num_beams": 1, "max_new_tokens": NEW + is_forced}
    return model.generate(ids, attention_mask=torch.ones_like(ids), **settings)[0].tolist()


def most_probable(family, tokenizer):
    """The first and second token that the model generates without settings."""
    return generated(model_of(family, tokenizer), tokenizer)[-NEW:][:2]


@pytest.mark.parametrize("way", ["start", "forced", "never", "never first", "never first, and forced"])
@pytest.mark.parametrize("family", ["bart", "gpt2"])
def test_predictions_and_answers_are_those_of_the_models_own_generate(family, way, tokenizer):
    first, second = most_probable(family, tokenizer)
    settings = {
        "start": {"decoder_start_token_id": 9},
        "forced": {"forced_bos_token_id": 11},
        "never": {"suppress_tokens": [first, second]},
        "never first": {"begin_suppress_tokens": [first]},
        "never first, and forced": {"begin_suppress_tokens": [first], "forced_bos_token_id": 11},
    }[way]
    model = model_of(family, tokenizer, **settings)
    expected = generated(model, tokenizer)
    asked = {"model": closelook.open_model(model, tokenizer=tokenizer), "method": "random"}
    in_turn = closelook.explain(TEXT, generate=NEW, **asked).answers[-1].view
    whole = closelook.explain(TEXT, generate=NEW, spans="token", **asked).answers
    read = "decoder_input_ids" if family == "bart" else "input_ids"
    assert [*getattr(in_turn, read), in_turn.target_id] == expected
    assert whole[0].answer.ids == expected[-NEW:]
    given = closelook.explain(TEXT, answer=whole[0].answer.ids, **asked).answers[0].view
    assert getattr(given, read) == expected[:-1]
    [listed] = closelook.explain([TEXT], **asked)
    assert listed.answers[0].view.target_id == expected[-NEW]


def test_every_token_that_a_decoder_begins_with_is_its_start(tokenizer):
    model = model_of("bart", tokenizer, forced_bos_token_id=11)
    explanation = closelook.explain(
        TEXT, generate=2, model=closelook.open_model(model, tokenizer=tokenizer), method="lrp"
    )
    assert [answer.decoder.tokens[:2] for answer in explanation.answers] == [[START, START]] * 2
    rows = explanation.to_frame().query("side == 'decoder' and answer == 1")
    assert rows["special"].tolist() == [True, True, False]
    by_word = explanation.to_frame(by="word").query("side == 'decoder' and answer == 1")
    assert by_word["special"].tolist() == [True, True, False], "a start token is a word of its own"
    relevance = explanation.relevance("lrp")[1]
    assert float(relevance.tokens.sum() + relevance.decoder_tokens.sum() - relevance.residual) == pytest.approx(
        float(relevance.explained), rel=1e-3
    )


def test_a_run_explains_the_token_that_generate_gives(tokenizer):
    view = closelook.load_model(model_dir("gpt2"))
    row = {"input_ids": tokenizer(TEXT)["input_ids"], "target_id": None, "foil_id": None}
    row["position"] = len(row["input_ids"]) - 1
    [usual] = with_predictions(view, [row])
    view.model.generation_config.suppress_tokens = [usual["target_id"]]
    [other] = with_predictions(view, [row])
    assert other["target_id"] != usual["target_id"]


def test_settings_of_generate_that_are_not_followed_are_told_once(tokenizer, capsys):
    model = model_of("gpt2", tokenizer, num_beams=3, do_sample=True, suppress_tokens=[5], temperature=0.7)
    model.name_or_path = "told"
    for _ in range(2):
        closelook.explain(TEXT, model=closelook.open_model(model, tokenizer=tokenizer), method="random")
    told = " ".join(capsys.readouterr().err.split())
    assert told == "told: the most probable token is explained; `generate` also follows do_sample True, num_beams 3"
    closelook.explain(
        TEXT, target="are", model=closelook.open_model(model_of("gpt2", tokenizer, num_beams=4), tokenizer=tokenizer)
    )
    assert capsys.readouterr().err == "", "a given target does not depend on them"
