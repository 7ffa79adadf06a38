"""`closelook explain` of an encoder-decoder: the answer token by token, over the text that was read."""

import json

import pytest
from transformers import AutoTokenizer

from tests.tiny import tiny_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A tiny T5 of random weights with the tokenizer of the demo's GPT-2."""
    path = tmp_path_factory.mktemp("models") / "t5"
    tokenizer = AutoTokenizer.from_pretrained("evaluation/benchmark/demo/models/gpt2")
    tokenizer.save_pretrained(path)
    end = tokenizer.eos_token_id
    view = tiny_model("t5", dtype="float32", vocab_size=len(tokenizer), eos_token_id=end, decoder_start_token_id=3)
    view.model.save_pretrained(path)
    return str(path)


def predictions_of(closelook, tmp_path, *arguments):
    out = tmp_path / "out.json"
    code, _, err = closelook("explain", *arguments, "--json", str(out))
    assert code == 0, err
    return json.loads(out.read_text())["predictions"]


def test_each_generated_token_has_relevance_over_the_text_and_over_what_was_said(closelook, folder, tmp_path):
    text = "The keys to the cabinet"
    written = predictions_of(closelook, tmp_path, "--model", folder, "--method", "lrp,gradcam", text, "--generate", "3")
    assert len(written) == 3
    for step, prediction in enumerate(written):
        assert prediction["input_ids"] == written[0]["input_ids"]
        assert prediction["decoder_input_ids"] == [3, *(before["target_id"] for before in written[:step])]
        lrp, gradcam = prediction["methods"]
        assert len(lrp["relevance"]) == len(prediction["input_ids"])
        assert len(lrp["decoder_relevance"]) == step + 1
        assert sum(lrp["relevance"]) + sum(lrp["decoder_relevance"]) == pytest.approx(lrp["explained"], rel=1e-3)
        assert "decoder_relevance" not in gradcam


def test_prefix_is_what_the_decoder_has_said(closelook, folder, tmp_path):
    text = "The keys to the cabinet"
    first, second = predictions_of(closelook, tmp_path, "--model", folder, text, "--generate", "2")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    (after,) = predictions_of(
        closelook, tmp_path, "--model", folder, text, "--prefix", tokenizer.decode([first["target_id"]])
    )
    assert after["target_id"] == second["target_id"]
    assert after["methods"][0]["relevance"] == pytest.approx(second["methods"][0]["relevance"], rel=1e-4, abs=1e-6)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--prefix", "END"), "which ends the answer: leave that out"),
        (("--target", "are is", "--prefix", "The"), "'are is' is not one token after 'The'"),
    ],
)
def test_bad_prefixes_are_one_line(closelook, folder, arguments, message):
    end = AutoTokenizer.from_pretrained(folder).eos_token
    code, _, err = closelook("explain", "--model", folder, "The keys", *(end if a == "END" else a for a in arguments))
    assert code == 2
    assert message in err
    assert len(err.strip().splitlines()) == 1


def test_prefix_is_for_encoder_decoders(closelook):
    code, _, err = closelook("explain", "--model", "demo/gpt2", "The keys", "--prefix", "a")
    assert code == 2
    assert "leave --prefix out" in err
