"""`closelook.explain` takes what transformers gives: models, pipelines, views, chats, token ids, and lists of them."""

from functools import partial

import numpy as np
import pytest
import torch
import transformers
from peft import LoraConfig, get_peft_model
from rich.console import Console
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import AutoModelForCausalLM, AutoTokenizer, pipeline

import closelook
from closelook.evaluation.benchmark.demo import model_dir
from closelook.explaining import front
from closelook.lrp_core.device.progress import watched_by
from closelook.lrp_core.rules import COMPOSITES
from tests.lrp_core.views.test_borrowed import told
from tests.tiny import tiny_model

TEXT, PAIR = "The keys to the cabinet", {"target": "are", "foil": "is"}
CHAT = (
    "{% for m in messages %}{{ '<|endoftext|>' + m['role'] + '\n' + m['content'] | trim + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|endoftext|>assistant\n' }}{% endif %}"
)


def opened(model, tokenizer):
    return closelook.open_model(model, tokenizer=tokenizer)


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(model_dir("gpt2"))


@pytest.fixture
def model():
    return AutoModelForCausalLM.from_pretrained(model_dir("gpt2")).train()


@pytest.fixture(scope="module")
def by_name():
    return closelook.explain(TEXT, **PAIR, model="demo/gpt2", method=["attnlrp", "lrp"])


def test_a_model_in_memory_is_explained_and_left_as_it_was(model, tokenizer, by_name):
    model.transformer.wte.requires_grad_(False)
    handle = model.lm_head.register_forward_hook(lambda *_: None)
    before = told(model)
    explanation = closelook.explain(TEXT, **PAIR, model=opened(model, tokenizer), method=["attnlrp", "lrp"])
    assert told(model) == before
    assert model.training
    handle.remove()
    for name in ("attnlrp", "lrp"):
        torch.testing.assert_close(explanation[name], by_name[name])
    assert explanation.tokens == by_name.tokens
    explanation.show()
    assert explanation.to_dict()["identity"] == "GPT2LMHeadModel in memory"


def test_a_training_step_goes_on_behind_an_explanation(model, tokenizer):
    ids = tokenizer(TEXT, return_tensors="pt")["input_ids"]
    loss = model(ids, labels=ids).loss
    closelook.explain(TEXT, **PAIR, model=opened(model, tokenizer))
    loss.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    model(ids, labels=ids).loss.backward()


def test_it_is_left_as_it_was_when_something_fails(model, tokenizer):
    before = told(model)
    with pytest.raises(closelook.UserError):
        closelook.explain(TEXT, target="are is", model=opened(model, tokenizer))
    with pytest.raises(closelook.UnsupportedMethod):
        closelook.explain(TEXT, model=opened(model, tokenizer), method="alti")
    assert told(model) == before


@pytest.mark.parametrize("form", ["pipeline", "view", "tokenizer by path", "tokenizer unsaid", "parallel", "half"])
def test_models_come_in_many_forms(form, model, tokenizer, by_name):
    arguments = {"model": model, "tokenizer": tokenizer}
    bound = 1e-6
    if form == "pipeline":
        arguments = {"model": pipeline("text-generation", model=model, tokenizer=tokenizer)}
    elif form == "view":
        arguments = {"model": closelook.load_model(model_dir("gpt2"))}
    elif form == "tokenizer by path":
        arguments["tokenizer"] = model_dir("gpt2")
    elif form == "tokenizer unsaid":
        arguments = {"model": model}
    elif form == "parallel":
        arguments["model"] = torch.nn.DataParallel(model)
    elif form == "half":
        arguments["model"], bound = model.to(torch.bfloat16), 0.2
    explanation = closelook.explain(TEXT, **PAIR, model=closelook.open_model(**arguments))
    assert (explanation["attnlrp"] - by_name["attnlrp"]).abs().max() < bound
    assert explanation.model.dtype == ("bfloat16" if form == "half" else "float32")


@pytest.mark.parametrize(
    ("task", "folder", "ask"),
    [
        ("text-classification", "bert-sentiment", {"text": "The food was good"}),
        ("fill-mask", "bert", {"text": "The keys to the cabinet ___ old .", "target": "are", "foil": "is"}),
    ],
)
def test_pipelines_of_encoders(task, folder, ask):
    made = pipeline(task, model=str(model_dir(folder)))
    for method in ("lrp", "occlusion"):
        ours = closelook.explain(**ask, model=made, method=method)
        expected = closelook.explain(**ask, model=f"demo/{folder}", method=method)
        torch.testing.assert_close(ours[method], expected[method])


def test_an_encoder_decoder_and_an_image_model_in_memory():
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(model_dir("t5"))
    question = "where did the clerk go ?"
    ours = closelook.explain(question, generate=2, model=model)
    torch.testing.assert_close(ours["attnlrp"], closelook.explain(question, generate=2, model="demo/t5")["attnlrp"])


def test_a_pipeline_of_images_brings_its_processor(tmp_path):
    from PIL import Image

    drawn = np.random.default_rng(0).integers(0, 255, (40, 40, 3), dtype=np.uint8)
    Image.fromarray(drawn).save(tmp_path / "picture.png")
    made = pipeline("image-classification", model=str(model_dir("vit")))
    ours = closelook.explain(str(tmp_path / "picture.png"), model=made)
    expected = closelook.explain(str(tmp_path / "picture.png"), model="demo/vit")
    torch.testing.assert_close(ours["attnlrp"], expected["attnlrp"])
    with pytest.raises(closelook.UserError, match="give its image processor as `tokenizer`"):
        closelook.explain("picture.png", model=made.model)


@pytest.mark.filterwarnings("ignore")  # of what peft asks of transformers
def test_a_model_with_adapters_is_explained_as_its_merged_twin(model, tokenizer):
    torch.manual_seed(3)
    settings = {"target_modules": ["c_attn", "c_fc"], "fan_in_fan_out": True, "init_lora_weights": False}
    adapted = get_peft_model(model.eval(), LoraConfig(r=2, **settings))
    before = told(adapted)
    ours = closelook.explain(TEXT, **PAIR, model=opened(adapted, tokenizer))["attnlrp"]
    assert told(adapted) == before
    adapted.disable_adapter_layers()
    plain = closelook.explain(TEXT, **PAIR, model=opened(adapted, tokenizer))["attnlrp"]
    adapted.enable_adapter_layers()
    merged = adapted.merge_and_unload()
    expected = closelook.explain(TEXT, **PAIR, model=opened(merged, tokenizer))["attnlrp"]
    torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-5)
    assert (ours - plain).abs().max() > 1e-2


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"dtype": "float64"}, "a model in memory keeps its weights, precision and device: leave `dtype` out"),
        ({"device": "cpu"}, "leave `device` out"),
        ({"adapter": "somewhere"}, "leave `adapter` out"),
        ({"tokenizer": 3}, "`tokenizer` must be a tokenizer of transformers, its hub id or a folder, not 3"),
        ({"model": torch.nn.Linear(1, 1)}, "Linear is no model of transformers"),
        ({"model": 3}, "or a model, pipeline or ModelView in memory, not 3"),
        ({"text": None}, "`text` must be a string, a list of messages, a list of token ids or a picture, or a list"),
        ({"text": [{"role": "user"}]}, "message 1 needs a role and a content, both strings"),
        ({"text": [{"role": "user", "content": "hi"}]}, "the tokenizer has no chat template: give the prompt as text"),
        ({"text": [10**6]}, "`text` contains token 1000000, but the tokenizer has"),
        ({"text": [1.5]}, "token ids must be integers, not 1.5"),
        ({"text": "The keys " * 200}, "`truncate` reads a part of it"),
    ],
)
def test_what_does_not_fit_is_one_line(model, tokenizer, settings, message):
    def explain(model=model, text=TEXT, **opening):
        return closelook.explain(text, model=closelook.open_model(model, **{"tokenizer": tokenizer} | opening))

    before = told(model)
    with pytest.raises(closelook.UserError) as caught:
        explain(**settings)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert told(model) == before


@pytest.mark.parametrize("asked", [{}, {"target": 60}, {"answer": [5, 60]}, {"generate": 2, "spans": "token"}])
def test_tokens_that_the_model_lacks_are_one_line(tokenizer, asked):
    smaller = tiny_model("gpt2", "float32").model  # of 50 tokens
    asked = {"text": [5, 6] if "target" in asked or "answer" in asked else [5, 60], **asked}
    with pytest.raises(closelook.UserError, match="has 50 tokens, numbered from 0, and none with the number"):
        closelook.explain(model=opened(smaller, tokenizer), **asked)


def test_a_word_that_the_tokenizer_does_not_know_is_refused_behind_tokens_by_number():
    words = Tokenizer(WordLevel({"<unk>": 0, "the": 1, "keys": 2, "are": 3}, unk_token="<unk>"))
    words.pre_tokenizer = Whitespace()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>")
    model = closelook.open_model(tiny_model("gpt2", "float32").model, tokenizer=tokenizer)
    asked = {"text": [1, 2], "model": model}
    assert closelook.explain(target="are", **asked).answers[0].view.target_id == 3
    with pytest.raises(closelook.UserError, match="'were' is unknown to the tokenizer"):
        closelook.explain(target="were", **asked)


def test_a_model_without_a_name_needs_its_tokenizer(model):
    model.config._name_or_path = model.name_or_path = ""
    with pytest.raises(closelook.UserError, match="no tokenizer was found for the GPT2LMHeadModel in memory: give"):
        closelook.explain(TEXT, model=model)


def test_tokens_by_number_are_read_as_they_are(model, tokenizer, by_name):
    ids = tokenizer(TEXT)["input_ids"]
    for input_ids in (ids, np.array(ids), torch.tensor(ids)):
        explanation = closelook.explain(input_ids, **PAIR, model=opened(model, tokenizer))
        torch.testing.assert_close(explanation["attnlrp"], by_name["attnlrp"])
    both = closelook.explain([ids, ids], **PAIR, model=opened(model, tokenizer))
    assert len(both) == 2
    assert both[0].text == TEXT
    odd = closelook.explain([*ids[:2], *ids[:1], *ids[:2]], target=ids[3], model=opened(model, tokenizer))
    assert odd.answers[0].view.input_ids == [*ids[:2], *ids[:1], *ids[:2]]


def test_a_classifiers_tokens_by_number():
    tokenizer = AutoTokenizer.from_pretrained(model_dir("bert-sentiment"))
    ids = tokenizer("The food was good")["input_ids"]
    by_text = closelook.explain("The food was good", model="demo/bert-sentiment", method="lrp")
    ours = closelook.explain(ids, model="demo/bert-sentiment", method="lrp")
    torch.testing.assert_close(ours["lrp"], by_text["lrp"])
    assert ours.answers[0].view.special_mask == by_text.answers[0].view.special_mask
    mixed = closelook.explain([ids, [*ids, tokenizer.pad_token_id]], model="demo/bert-sentiment")
    assert "padding: give the tokens of each text alone" in str(mixed.errors[1])


def test_messages_go_through_the_template_and_no_further(model, tokenizer):
    chat = AutoTokenizer.from_pretrained(model_dir("gpt2"), chat_template=CHAT)
    messages = [{"role": "system", "content": "girl"}, {"role": "user", "content": " user "}]
    explanation = closelook.explain(messages, target=" are", model=opened(model, chat))
    expected = chat.apply_chat_template(messages, add_generation_prompt=True)["input_ids"]
    [answer] = explanation.answers
    assert answer.view.input_ids == expected
    text = chat.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    parts = [(part.name, text[part.start : part.end]) for part in explanation.answers[0].item.parts]
    assert parts == [("system", "girl"), ("user", "user")]
    assert explanation.answers[0].item.parts[1].start == text.rindex("user"), "the role has the same letters"
    several = closelook.explain([messages, messages[:1]], model=opened(model, chat))
    assert len(several[0].tokens) == len(expected) > len(several[1].tokens)


def test_roles_that_come_again_are_numbered_and_templates_may_refuse(model):
    chat = AutoTokenizer.from_pretrained(model_dir("gpt2"), chat_template=CHAT)
    turns = [{"role": role, "content": "the keys"} for role in ("user", "assistant", "user")]
    explanation = closelook.explain(turns, model=opened(model, chat))
    assert [part.name for part in explanation.answers[0].item.parts] == ["user 1", "assistant", "user 2"]
    strict = AutoTokenizer.from_pretrained(
        model_dir("gpt2"), chat_template="{{ raise_exception('roles must alternate') }}"
    )
    with pytest.raises(closelook.UserError, match="the chat template refuses these messages: roles must alternate"):
        closelook.explain(turns, model=opened(model, strict))
    shouting = AutoTokenizer.from_pretrained(
        model_dir("gpt2"), chat_template="{% for m in messages %}{{ m['content'] | upper }}{% endfor %}"
    )
    with pytest.raises(closelook.UserError, match="changes the content of message 1"):
        closelook.explain(turns, model=opened(model, shouting))


def test_a_bad_entry_of_a_list_is_its_own_error(model, tokenizer):
    texts = [TEXT, None, "", "The keys " * 200, "The girl"]
    before = told(model)
    explained = closelook.explain(texts, **PAIR, model=opened(model, tokenizer), method="lrp")
    assert told(model) == before
    assert sorted(explained.errors) == [1, 2, 3]
    assert "a text must be a string, not None" in str(explained.errors[1])
    alone = closelook.explain("The girl", **PAIR, model=opened(model, tokenizer), method="lrp")
    torch.testing.assert_close(explained[4]["lrp"], alone["lrp"], rtol=1e-4, atol=1e-5)
    assert explained[4].text == "The girl"
    with pytest.raises(closelook.UserError, match="a text must be a string"):
        explained[1]["lrp"]
    assert set(explained.to_frame()["text"]) == {0, 4}
    assert explained.to_dict()[2]["error"] == str(explained.errors[2])
    assert repr(explained).startswith("<Explanations of 2 texts, 3 not: text 1: a text must be a string, not None")
    assert "NotExplained" in explained._repr_html_()
    with pytest.raises(closelook.UserError, match="a text must be a string, not None"):
        closelook.explain([None, 3], model=opened(model, tokenizer))
    with pytest.raises(closelook.UnsupportedMethod, match="alti needs"):
        closelook.explain([TEXT, ""], model=opened(model, tokenizer), method="alti")


def test_a_row_that_fails_in_its_batch_fails_alone(model, tokenizer):
    bad = tokenizer(" girl")["input_ids"][0]
    real = closelook.METHODS["lrp"]

    def explain(view, batch, requests):
        if (batch.input_ids == bad).any():
            raise closelook.UserError("this row cannot be")
        return real.function(view, batch, requests, composite=COMPOSITES["lrp"])

    method = closelook.Method("breaking", version=1, label="B", explain=explain, embeddings=("full",))
    texts = ["The keys", "The girl", "The cabinet", "The keys to"]
    explained = closelook.explain(texts, **PAIR, model=opened(model, tokenizer), method=method)
    assert {at: str(error) for at, error in explained.errors.items()} == {1: "this row cannot be"}


@pytest.mark.parametrize(
    ("model", "ask", "end"),
    [("demo/gpt2", {"target": "are"}, -1), ("demo/bert-sentiment", {}, 0), ("demo/t5", {"generate": 2}, 0)],
)
def test_long_texts_lose_what_the_models_own_pipeline_cuts(model, ask, end, capsys):
    long = "The keys to the cabinet " * 40
    explanation = closelook.explain(long, **ask, model=model, method="lrp", truncate=True)
    row, named = explanation.answers[0].view, closelook.open_model(model)
    tokenizer = named.tokenizer
    most = tokenizer.model_max_length
    whole = tokenizer(long.strip(), verbose=False)["input_ids"]
    assert len(row.input_ids) == most
    assert row.cut == len(whole) - most
    if end:
        assert row.input_ids == whole[-most:], "a model that goes on with a text reads its end"
    else:
        cut = tokenizer(long.strip(), truncation=True, max_length=most)["input_ids"]
        assert row.input_ids == cut
    if most == named.view.max_length:
        with pytest.raises(closelook.UserError, match=r"the most|the model takes"):
            closelook.explain(long, **ask, model=model, method="lrp")
    explanation.show()
    assert f"{row.cut} tokens are not read" in capsys.readouterr().out


@pytest.mark.parametrize("method", ["occlusion", "kernel_shap", "atman", "value_zeroing", "integrated_gradients"])
@pytest.mark.parametrize("asked", [{"target": "are"}, {"answer": "are old", "spans": "token"}])
def test_methods_of_many_forwards_tell_how_far_they_are(model, tokenizer, method, asked, monkeypatch):
    from closelook import progress

    heard = []

    def watched(watch):
        return watched_by(lambda done, total: heard.append((done, total)) or watch(done, total))

    monkeypatch.setattr(progress, "watched_by", watched)
    closelook.explain(TEXT, **asked, model=opened(model, tokenizer), method=method)
    assert heard
    done = [part / total for part, total in heard]
    assert done == sorted(done), "of all predictions, not of each anew"
    assert done[-1] == 1.0


@pytest.mark.parametrize("asked", [None, True])
def test_a_notebook_without_ipywidgets_shows_no_warning_in_place_of_a_bar(asked, monkeypatch):
    """Rich draws by ipywidgets in a notebook; a warning of its own would be an error of this test."""
    from closelook import progress

    monkeypatch.setattr(progress, "_QUIET_S", 0.0)
    monkeypatch.setattr(progress, "find_spec", lambda name: None)
    monkeypatch.setattr(progress.terminal, "errors", Console(stderr=True, force_jupyter=True))
    with progress.shown(asked) as tell:
        tell("texts", 1, 2)


def test_the_number_of_bars_and_of_lines_on_stderr(model, tokenizer, capsys, monkeypatch):
    from closelook import progress

    texts = [TEXT] * 5
    asked = {**PAIR, "model": opened(model, tokenizer), "method": "occlusion"}
    closelook.explain(texts, **asked)
    assert capsys.readouterr().err == "", "no bar where there is no screen"
    monkeypatch.setattr(progress, "_QUIET_S", 0.0)
    monkeypatch.setattr(front, "shown", partial(progress.shown, True))
    closelook.explain(texts, **asked)
    shown = capsys.readouterr().err
    assert "texts" in shown
    assert "forwards" in shown
