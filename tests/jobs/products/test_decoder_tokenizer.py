"""An encoder-decoder that reads letters and writes sounds: what it says is decoded by the tokenizer of the answer."""

import json

import pytest
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from closelook.evaluation.schema import VIEW
from closelook.explaining.front import explain
from closelook.explaining.opening import open_model
from closelook.jobs.config import RunConfig
from closelook.jobs.plan.cells import make_plan
from closelook.jobs.plan.node import Run
from closelook.jobs.stages.prepare import prepare
from closelook.jobs.stages.report.results import results_of
from closelook.jobs.stages.report.samples import entries as shown_entries
from closelook.jobs.store import Ledger, Store
from closelook.lrp_core.records.types import UserError
from tests.stages import attribute, evaluate
from tests.tiny import tiny_model

LETTERS, SOUNDS = "abcdefgh", "æβκðəɸɣʜ"  # character by character, the same tokens


def save_tokenizer(folder, characters):
    """A tokenizer of single characters, between the tokens that begin and end a text; it knows no space."""
    vocabulary = {token: at for at, token in enumerate(["<pad>", "<s>", "</s>", "<unk>", *characters])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    tokenizer.decoder = decoders.Fuse()
    ends = [("<s>", 1), ("</s>", 2)]
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=ends)
    specials = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **specials).save_pretrained(folder)


@pytest.fixture(scope="module")
def speller(tmp_path_factory):
    """The folder of a tiny BART that reads LETTERS; the tokenizer of SOUNDS lies in it."""
    folder = tmp_path_factory.mktemp("models") / "speller"
    special = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
    tiny_model("bart", dtype="float32", vocab_size=12, **special).model.save_pretrained(folder)
    save_tokenizer(folder, LETTERS)
    save_tokenizer(folder / "sounds", SOUNDS)
    return folder


def sounds_of(ids):
    """The sounds of tokens by SOUNDS; special tokens by their names."""
    return [{0: "<pad>", 1: "<s>", 2: "</s>", 3: "<unk>"}.get(token) or SOUNDS[token - 4] for token in ids]


def test_an_answer_is_decoded_by_its_own_tokenizer_in_terminal_page_and_json(closelook, speller, tmp_path):
    out, page = tmp_path / "out.json", tmp_path / "page.html"
    command = ("explain", "cab", "--model", str(speller), "--decoder-tokenizer", str(speller / "sounds"))
    written = ("--json", str(out), "--html", str(page))
    code, printed, err = closelook(*command, "--method", "lrp", *written)
    assert code == 0, err
    predictions = json.loads(out.read_text())["predictions"]
    sounds = sounds_of([prediction["target_id"] for prediction in predictions])
    assert (
        [prediction["target"] for prediction in predictions]
        == [prediction["target_token"] for prediction in predictions]
        == sounds
    )
    assert all(prediction["tokens"] == ["<s>", "c", "a", "b", "</s>"] for prediction in predictions)
    for word, line in zip(sounds, [line for line in printed.splitlines() if "why" in line], strict=True):
        assert f": why {word} (logit" in line
    shown = page.read_text()
    assert all(word in shown or json.dumps(word)[1:-1] in shown for word in sounds if word in SOUNDS)


def test_targets_foils_and_what_was_said_are_sounds(speller):
    options = {"model": open_model(speller, decoder_tokenizer=speller / "sounds"), "method": "lrp"}
    [prediction] = explain("cab", "β", "κ", **options).to_dict()["predictions"]
    assert (sounds_of([prediction["target_id"], prediction["foil_id"]]), prediction["tokens"][1]) == (["β", "κ"], "c")
    each = explain("cab", "κæβ", words="each", **options)
    assert [answer.target for answer in each.answers] == ["κ", "æ", "β"]
    assert each.answers[-1].decoder.tokens == ["‹start›", "κ", "æ"]
    frame = each.to_frame()
    assert set(frame[frame["side"] == "decoder"]["token"]) == {"‹start›", "κ", "æ"}
    assert "κ" in each._repr_html_()
    with pytest.raises(UserError, match="unknown to the tokenizer: 'b'"):
        explain("cab", "b", **options)


def test_a_prefix_is_written_in_sounds_without_a_space(closelook, speller, tmp_path):
    out = tmp_path / "out.json"
    command = ("explain", "cab", "--model", str(speller), "--decoder-tokenizer", str(speller / "sounds"))
    code, _, err = closelook(*command, "--prefix", "κæ", "--target", "β", "--method", "lrp", "--json", str(out))
    assert code == 0, err
    [prediction] = json.loads(out.read_text())["predictions"]
    assert sounds_of([*prediction["decoder_input_ids"][1:], prediction["target_id"]]) == ["κ", "æ", "β"]


def test_runs_prepare_and_report_show_answers_in_sounds(speller, tmp_path, inline):
    rows = [
        {"text": "cab___", "target": "κæ", "foil": "κβ", "evidence": [0, 1]},
        {"text": "bed___", "target": "β", "foil": "ð", "evidence": [0, 1]},
        {"text": "fad___", "target": "f", "foil": "ð", "evidence": [0, 1]},  # a letter is no sound
    ]
    (tmp_path / "mine.jsonl").write_text("\n".join(map(json.dumps, rows)))
    mine = {"source": "samples", "path": str(tmp_path / "mine.jsonl"), "words": "first_difference"}
    settings = {
        "name": "sounds",
        "root": str(tmp_path / "run"),
        "tasks": {"mine": mine},
        "models": [{"name": "speller", "id": str(speller), "decoder_tokenizer": str(speller / "sounds")}],
        "methods": ["lrp"],
        "report": {"samples": 5, "resamples": 20},
    }
    config = RunConfig.model_validate(settings)
    store = Store(config.root)
    for stage in (prepare, attribute, evaluate):
        assert stage(config, store).complete
    plan = make_plan(config, store)
    views = store.read(plan.models[0].inputs["mine"].folder, VIEW).to_pylist()
    assert sorted(sounds_of([row["target_id"], row["foil_id"]]) for row in views) == [["æ", "β"], ["β", "ð"]]
    run = Run(config, plan, Ledger(store))
    shown = shown_entries(run, results_of(run))
    assert sorted(entry["decoder"] for entry in shown) == [["‹start›"], ["‹start›", "κ"]]


def test_a_tokenizer_of_answers_is_for_encoder_decoders(closelook, speller):
    code, _, err = closelook("explain", "The keys", "--model", "demo/gpt2", "--decoder-tokenizer", str(speller))
    assert (code, len(err.splitlines())) == (2, 1)
    assert "is no encoder-decoder: leave --decoder-tokenizer out" in err


def test_the_sounds_of_a_trained_speller_are_those_that_its_stock_model_says(shared):
    folder = shared / "models" / "g2p-bart"
    sounds = AutoTokenizer.from_pretrained(folder / "phonemes")
    options = {"model": open_model(folder, decoder_tokenizer=folder / "phonemes"), "method": "random"}
    explanation = explain("cabinet", generate=11, **options)
    tokens = [answer.token for answer in explanation.answers]
    assert "".join(word for word in tokens if word not in sounds.all_special_tokens) == "kˈæbənˌɛt"
