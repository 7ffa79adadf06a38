"""The prompt is explained as it was typed: with the tokens and the prediction of the stock model."""

import json

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.decoders import Metaspace as MetaspaceDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import Metaspace
from transformers import (
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    PreTrainedTokenizerFast,
)

from closelook.evaluation.benchmark.demo import model_dir
from closelook.explaining.front import explain
from closelook.explaining.opening import open_model
from tests.tiny import tiny_model

PROMPTS = [
    "The keys to the cabinet",
    "The keys to the cabinet\n",
    "The keys to the cabinet\n\n",
    "The keys to the cabinet\t",
    " The keys\n to  the cabinet",
    "Once upon a time\n",
]
DEMO = {"gpt2": AutoModelForCausalLM, "llama": AutoModelForCausalLM, "t5": AutoModelForSeq2SeqLM}


def explained(closelook, tmp_path, model, *arguments):
    """The JSON that a call writes, with what it prints."""
    path = tmp_path / "out.json"
    code, out, err = closelook("explain", "--model", str(model), *arguments, "--method", "random", "--json", str(path))
    assert code == 0, err
    return json.loads(path.read_text()), out


def check_own_prediction(written, logits):
    """Checks what is shown of the model's own prediction against the stock model's `logits` [V]."""
    [prediction] = written["predictions"]
    assert prediction["logit_target"] == pytest.approx(float(logits.max()), rel=1e-4, abs=1e-4)
    assert float(logits[prediction["target_id"]]) == pytest.approx(float(logits.max()), rel=1e-4, abs=1e-4)


def stock_logits(folder, auto, ids, position=-1):
    """The logits of the stock model [V] behind tokens, of an encoder-decoder behind its start token."""
    model = auto.from_pretrained(folder).eval()
    more = {}
    if model.config.is_encoder_decoder:
        more["decoder_input_ids"] = torch.tensor([[model.config.decoder_start_token_id]])
    with torch.no_grad():
        return model(torch.tensor([ids]), **more).logits[0, position]


def check_read_as_stock(closelook, tmp_path, folder, auto, prompt):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    ids = tokenizer(prompt)["input_ids"]
    written, out = explained(closelook, tmp_path, folder, prompt)
    assert written["prompt"] == written["text"] == prompt
    assert written["predictions"][0]["input_ids"] == ids
    assert "space" not in out.splitlines()[0]
    check_own_prediction(written, stock_logits(folder, auto, ids))


@pytest.mark.thinned(3)
@pytest.mark.parametrize("prompt", PROMPTS)
@pytest.mark.parametrize("name", DEMO)
def test_the_prediction_for_an_unchanged_prompt_is_the_stock_models(closelook, tmp_path, name, prompt):
    check_read_as_stock(closelook, tmp_path, model_dir(name), DEMO[name], prompt)


def published(shared, tmp_path, family, vocabulary, **reader):
    """The folder of a tiny model of random weights that reads with a published vocabulary."""
    tokenizer = AutoTokenizer.from_pretrained(shared / "models" / vocabulary, **reader)
    folder = tmp_path / family
    tokenizer.save_pretrained(folder)
    tiny_model(family, dtype="float32", vocab_size=len(tokenizer)).model.save_pretrained(folder)
    return folder


@pytest.mark.thinned(3)
@pytest.mark.parametrize("prompt", PROMPTS)
def test_the_prediction_is_the_stock_models_with_gpt2s_published_vocabulary(closelook, shared, tmp_path, prompt):
    folder = published(shared, tmp_path, "gpt2", "gpt2-bpe", tokenizer_type="gpt2")
    check_read_as_stock(closelook, tmp_path, folder, AutoModelForCausalLM, prompt)


@pytest.mark.parametrize("prompt", ["Answer:\n___", "Some teachers  admired ___ .", "\tThe keys ___\nare old"])
def test_a_masked_model_reads_the_mask_in_the_unchanged_text(closelook, shared, tmp_path, prompt):
    folder = published(shared, tmp_path, "bert", "bert-wordpiece")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    ids = tokenizer(prompt.replace("___", tokenizer.mask_token))["input_ids"]
    written, _ = explained(closelook, tmp_path, folder, prompt)
    assert written["prompt"] == prompt.replace("___", tokenizer.mask_token)
    assert written["predictions"][0]["input_ids"] == ids
    logits = stock_logits(folder, AutoModelForMaskedLM, ids, ids.index(tokenizer.mask_token_id))
    check_own_prediction(written, logits)


@pytest.mark.parametrize("prompt", ["Once upon a time\n", "Lily  had a dog"])
def test_the_prediction_is_the_stock_models_for_trained_weights(closelook, shared, tmp_path, prompt):
    check_read_as_stock(closelook, tmp_path, shared / "models" / "babyllama-char", AutoModelForCausalLM, prompt)


@pytest.mark.parametrize(
    ("text", "prompt", "target", "with_space"),
    [
        ("The keys to the cabinet", "The keys to the cabinet", " are", True),
        ("The keys to the cabinet ", "The keys to the cabinet", " are", True),
        ("The keys to the cabinet ___ old", "The keys to the cabinet", " are", True),
        ("The keys to the cabinet  ___", "The keys to the cabinet ", " are", True),
        ("The keys to the cabinet\n ___", "The keys to the cabinet\n", " are", True),
    ],
)
def test_the_space_before_a_target_belongs_to_it_and_is_told(closelook, tmp_path, text, prompt, target, with_space):
    tokenizer = AutoTokenizer.from_pretrained(model_dir("gpt2"))
    written, out = explained(closelook, tmp_path, "demo/gpt2", text, "--target", "are")
    [prediction] = written["predictions"]
    assert (written["text"], written["prompt"]) == (text, prompt)
    assert (prediction["target"], prediction["target_token"]) == ("are", target)
    assert prediction["input_ids"] == tokenizer(prompt)["input_ids"]
    assert [prediction["target_id"]] == tokenizer(target)["input_ids"]
    assert ("with the space before it" in out.splitlines()[0]) == with_space


def test_a_target_behind_a_line_end_has_no_space(closelook, tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(model_dir("gpt2"))
    for text in ("The keys to the\n___", "The keys to the\n\n___"):
        written, out = explained(closelook, tmp_path, "demo/gpt2", text, "--target", "e")
        [prediction] = written["predictions"]
        assert prediction["input_ids"] == tokenizer(text.removesuffix("___"))["input_ids"]
        assert [prediction["target_id"]] == tokenizer("e")["input_ids"]
        assert "space" not in out.splitlines()[0]


def test_every_token_of_a_target_follows_the_unchanged_prompt():
    tokenizer = AutoTokenizer.from_pretrained(model_dir("gpt2"))
    for text, target in (("The keys\n\n", "are is"), ("The keys ", " are is"), ("The keys", " are is")):
        record = explain(text, target.strip(), words="each", model="demo/gpt2", method="random").to_dict()
        ids = [prediction["target_id"] for prediction in record["predictions"]]
        assert ids == tokenizer(target)["input_ids"]
        assert record["predictions"][0]["input_ids"] == tokenizer(text.removesuffix(" "))["input_ids"]


def test_the_space_that_is_left_to_the_models_own_prediction_is_told(closelook, tmp_path):
    written, out = explained(closelook, tmp_path, "demo/gpt2", "The keys to the cabinet ")
    assert written["prompt"] == "The keys to the cabinet"
    assert out.splitlines()[0].endswith(", with the space before it")
    explanation = explain("The keys to the cabinet ", model="demo/gpt2", method="random")
    assert "with the space before it" in explanation._repr_html_()
    assert explanation.to_dict()["prompt"] == "The keys to the cabinet"


def test_a_text_that_begins_with_bos_is_read_with_one(closelook, tmp_path):
    for arguments in ((), ("--target", "are")):
        once, twice = (
            explained(closelook, tmp_path, "demo/llama", f"{opening}The keys to the cabinet", *arguments)[0]
            for opening in ("", "<s>")
        )
        assert twice["predictions"][0]["input_ids"] == once["predictions"][0]["input_ids"]
        assert twice["predictions"][0]["target_id"] == once["predictions"][0]["target_id"]
        assert twice["text"] == "<s>The keys to the cabinet"


def test_the_space_behind_an_answer_so_far_is_told(closelook, tmp_path):
    asked = ("demo/t5", "where did the clerk go ?", "--prefix")
    _, out = explained(closelook, tmp_path, *asked, "the ")
    assert out.splitlines()[0].endswith(", with the space before it")
    assert "space" not in explained(closelook, tmp_path, *asked, "the")[1].splitlines()[0]
    _, out = explained(closelook, tmp_path, "demo/t5", "where did the clerk go ? ")
    assert out.splitlines()[0].endswith(", the text without its last space")


@pytest.mark.parametrize(
    ("text", "target", "token", "note"),
    [
        ("The keys are old", ".", ".", ", without a space before it"),
        ("The keys are old ", ".", ".", ", with the space before it"),
        ("The keys are old", "are", " are", ", with the space before it"),
        ("The keys are old\n", "The", "The", ""),
    ],
)
def test_a_target_follows_as_the_text_has_it_and_the_title_says_which(text, target, token, note):
    [answer] = explain(text, target, model="demo/gpt2", method="random").answers
    assert (answer.token, answer.note) == (token, note)


def test_a_target_gets_a_space_where_it_would_change_the_texts_own_tokens():
    words = {"<unk>": 0, "一": 1, "人": 2, "一人": 3, "▁人": 4, "▁": 5, "the": 6}
    merges = [("一", "人"), ("▁", "人")]
    made = Tokenizer(BPE(words | {"t": 7, "h": 8, "e": 9}, merges, unk_token="<unk>"))
    made.pre_tokenizer, made.decoder = Metaspace(prepend_scheme="never", split=False), MetaspaceDecoder()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=made, unk_token="<unk>")
    model = tiny_model("gpt2", "float32").model
    [answer] = explain("一", "人", model=open_model(model, tokenizer=tokenizer), method="random").answers
    assert (answer.view.input_ids, answer.view.target_id) == ([1], 4)
    assert answer.note == ", with the space before it"
