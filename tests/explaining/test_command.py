"""`closelook explain`: one prediction or several in turn, in the terminal, on a page and as JSON."""

import itertools
import json
import re

import pytest
import torch

import closelook as front
from closelook.jobs.methods import METHODS
from closelook.lrp_core import Batch, load_model


def test_a_sentence_is_explained_in_the_terminal_and_on_a_page(closelook, model, tmp_path):
    page = tmp_path / "page.html"
    words = ["w5 w7 w9", "--target", "w10", "--foil", "w11", "--method", "attnlrp,random"]
    code, out, _ = closelook("explain", "--model", str(model), *words, "--html", str(page))
    assert code == 0
    assert "why w10 rather than w11 (logit" in out
    for method in ("attnlrp", "random"):
        assert re.search(rf"^{method} +w5 [+-]\d.* w7 [+-]\d.* w9 [+-]\d", out, re.MULTILINE), out
    assert "w7" in page.read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--target", "w10", "--method", "alti"], "which gpt2 models do not have: use alti_logit"),
        (["--target", "w10", "--method", "lpr"], "did you mean 'lrp'?"),
        (["--target", "w10", "--method", "lrp,altii"], "unknown method 'altii' (did you mean 'alti'?)"),
        (["--target", "w10", "--html", "/no/such/folder/page.html"], "cannot write /no/such/folder/page.html: No such"),
        (
            ["--target", "w1 w2"],
            "cannot be explained: target or foil is not one token: 'w1 w2' is split into 'w1', 'w2'; "
            "--words says which of several tokens is explained",
        ),
        (["--dtype", "flot32"], "unknown dtype 'flot32' (did you mean 'float32'?)"),
        (["--device", "cdua"], "unknown device 'cdua': devices are cpu, cuda and"),
        (["--device", "cuda:99"], "there is no device 'cuda:99': torch "),
        (
            ["--explanation", "contrastive"],
            "a contrastive explanation needs a foil: give --target and --foil, or --explanation",
        ),
    ],
)
def test_what_cannot_be_explained_is_one_line(closelook, model, arguments, message):
    code, _, err = closelook("explain", "--model", str(model), "w5 w7", *arguments)
    assert code == 2
    assert message in err
    assert len(err.splitlines()) == 1


def test_a_text_with_two_places_for_the_target_is_one_line(closelook, model):
    code, _, err = closelook("explain", "--model", str(model), "w5 ___ w7 ___", "--target", "w10")
    assert (code, err) == (2, "error: the text has ___ 2 times: ___ marks the place of the target, so keep it once\n")


def test_relevance_that_is_rounding_noise_is_not_shown_as_relevance(closelook, tmp_path):
    page = tmp_path / "page.html"
    arguments = ("The keys to the cabinet ___ old.", "--target", "are", "--foil", "is", "--html", str(page))
    _, out, _ = closelook("explain", "--model", "demo/bert", "--method", "gradient_x_input,lrp", *arguments)
    assert "gradient_x_input  nothing beyond rounding\n" in out
    assert re.search(r"^lrp +the [+-]\d", out, re.MULTILINE) or "[CLS]" in out
    assert "e-0" not in page.read_text()
    _, out, _ = closelook("explain", "--model", "demo/gpt2", "--method", "gradient_x_input", *arguments[:5])
    assert "rounding" not in out


def explained(closelook, tmp_path, model, *arguments):
    """The JSON that a call writes."""
    path = tmp_path / "found.json"
    code, _, err = closelook("explain", "--model", str(model), *arguments, "--json", str(path))
    assert code == 0, err
    return json.loads(path.read_text())


def test_the_json_holds_what_the_methods_give(closelook, model, tmp_path):
    words = ("w5 w7 w9", "--target", "w10", "--foil", "w11", "--method", "lrp,alti_logit", "--dtype", "float64")
    written = explained(closelook, tmp_path, model, *words)
    [prediction] = written["predictions"]
    assert written["dtype"] == "float64"
    view = load_model(str(model), dtype="float64")
    batch = Batch.collate([prediction], pad_id=0)
    for entry in prediction["methods"]:
        relevance = METHODS[entry["method"]](view, batch)
        torch.testing.assert_close(torch.tensor(entry["relevance"], dtype=torch.float64), relevance.tokens[0])
        assert entry["explained"] == pytest.approx(prediction["logit_target"] - prediction["logit_foil"])
        assert sum(entry["relevance"]) - entry["explained"] == pytest.approx(entry["residual"])


def test_without_a_target_the_models_own_prediction_is_explained(closelook, model, tmp_path):
    [prediction] = explained(closelook, tmp_path, model, "w5 w7 w9")["predictions"]
    view = load_model(str(model))
    logits = view.model(torch.tensor([prediction["input_ids"]])).logits[0, -1]
    assert prediction["target_id"] == int(logits.argmax())
    assert prediction["logit_target"] == pytest.approx(float(logits.max()), rel=1e-5)
    assert prediction["foil"] is None


def test_generated_tokens_are_explained_one_after_the_other(closelook, model, tmp_path):
    written = explained(closelook, tmp_path, model, "w5 w7 w9", "--generate", "3")["predictions"]
    assert len(written) == 2, "the third token would be the end"
    for before, after in itertools.pairwise(written):
        assert after["input_ids"] == [*before["input_ids"], before["target_id"]]
        assert len(after["methods"][0]["relevance"]) == len(after["tokens"]) == len(before["tokens"]) + 1


def test_the_log_probability_is_explained_where_it_is_asked_for(closelook, model, tmp_path):
    asked = ("w5 w7 w9", "--target", "w10", "--explanation", "log_prob")
    [prediction] = explained(closelook, tmp_path, model, *asked)["predictions"]
    logits = load_model(str(model)).model(torch.tensor([prediction["input_ids"]])).logits[0, -1].log_softmax(-1)
    assert prediction["methods"][0]["explained"] == pytest.approx(float(logits[prediction["target_id"]]), rel=1e-4)


def test_pieces_are_summed_into_words(closelook, tmp_path):
    asked = ("The keys to the cabinet", "--target", "are", "--foil", "is", "--method", "attnlrp")
    [prediction] = explained(closelook, tmp_path, "demo/gpt2", *asked)["predictions"]
    relevance = prediction["methods"][0]["relevance"]
    texts = ["".join(prediction["tokens"][start:end]).strip() for start, end in prediction["words"]]
    assert texts == ["The", "keys", "to", "the", "cabinet"]
    sums = [sum(relevance[start:end]) for start, end in prediction["words"]]
    _, out, _ = closelook("explain", "--model", "demo/gpt2", *asked, "--by-word")
    shown = " ".join(f"{text} {value:+.2f}" for text, value in zip(texts, sums, strict=True))
    assert out.splitlines()[1] == f"attnlrp  {shown}"


@pytest.mark.parametrize("method", ["normxlogit", "attnlrp:reduce=l1", "random"])
def test_words_have_the_mean_where_the_sums_of_a_method_are_not_promised(closelook, method, tmp_path):
    asked = ("The keys to the cabinet", "--target", "are", "--method", f"lrp,{method}")
    prediction = explained(closelook, tmp_path, "demo/gpt2", *asked)["predictions"][0]
    _, out, _ = closelook("explain", "--model", "demo/gpt2", *asked, "--by-word")
    summed, averaged = (line.split() for line in out.splitlines()[1:])
    assert averaged[1] == "(means)"
    for line, skip, share in ((summed, 1, sum), (averaged, 2, lambda values: sum(values) / len(values))):
        (relevance,) = (entry["relevance"] for entry in prediction["methods"] if entry["method"] == line[0])
        expected = [share(relevance[start:end]) for start, end in prediction["words"]]
        assert [float(value) for value in line[skip + 1 :: 2]] == pytest.approx(expected, abs=0.006)


def test_a_masked_model_explains_what_it_fills_in_itself(closelook, tmp_path):
    [prediction] = explained(closelook, tmp_path, "demo/bert", "The keys to the cabinet ___ old.")["predictions"]
    assert prediction["special_mask"][0]
    assert prediction["special_mask"][-1]
    assert prediction["tokens"][prediction["position"]].strip() == "[MASK]"
    words = ["".join(prediction["tokens"][start:end]).strip() for start, end in prediction["words"]]
    assert words[0] == "[CLS]"
    assert words[-1] == "[SEP]"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["w5", "--generate", "2", "--target", "w7"], "leave --target and --foil out"),
        (["w5", "--generate", "0"], "--generate must be a number of tokens, at least 1, not 0"),
        (["w5", "--foil", "w7"], "a foil needs a target that it is contrasted with: give --target too"),
        (["w5", "--target", "w7", "--explanation", "contrastive"], "foil"),
        (["w5", "--json", "/no/such/folder/x.json"], "cannot write /no/such/folder/x.json"),
        (["w5 " * 200, "--generate", "2"], "are the most"),
        (["___"], "no text before the place of the target"),
    ],
)
def test_a_question_without_an_answer_is_one_line(closelook, model, arguments, message):
    code, _, err = closelook("explain", "--model", str(model), *arguments)
    assert code == 2
    assert message in err
    assert len(err.splitlines()) == 1


def test_a_classifier_is_explained_for_what_it_predicts_or_for_a_label(closelook, tmp_path):
    file = tmp_path / "numbers.json"
    command = ("explain", "the cats never walk", "--model", "demo/bert-sentiment", "--json", str(file))
    code, out, _ = closelook(*command)
    predicted = json.loads(file.read_text())["predictions"][0]
    assert code == 0
    assert {predicted["target"], predicted["foil"]} == {"negative", "positive"}
    assert predicted["logit_target"] > predicted["logit_foil"]
    assert f"why {predicted['target']} rather than {predicted['foil']} (logit" in out, "against the runner-up"
    assert predicted["methods"][0]["explained"] == pytest.approx(
        predicted["logit_target"] - predicted["logit_foil"], abs=1e-5
    )
    code, out, _ = closelook(*command, "--label", predicted["foil"].title())
    assert code == 0
    assert f"why {predicted['foil']} rather than {predicted['target']} (logit" in out, (
        "against the strongest of the others"
    )
    named = json.loads(file.read_text())["predictions"][0]
    assert (named["target_id"], named["foil_id"]) == (predicted["foil_id"], predicted["target_id"])
    assert named["methods"][0]["explained"] == pytest.approx(
        predicted["logit_foil"] - predicted["logit_target"], abs=1e-5
    )
    code, out, _ = closelook(*command, "--label", predicted["foil"], "--explanation", "target")
    assert f"why {predicted['foil']} (logit" in out
    alone = json.loads(file.read_text())["predictions"][0]
    assert alone["foil_id"] is None
    assert alone["methods"][0]["explained"] == pytest.approx(predicted["logit_foil"], abs=1e-5)
    code, _, err = closelook(*command, "--label", "negativ")
    assert (code, "did you mean 'negative'?" in err) == (2, True)
    code, _, err = closelook(*command, "--target", "walk")
    assert (code, "predicts labels, not words: use --label 'walk' for --target" in err) == (2, True)


def test_a_pair_is_read_as_its_model_reads_pairs(closelook, tmp_path):
    file = tmp_path / "numbers.json"
    command = ("explain", "the cats walk", "--model", "demo/bert-score", "--json", str(file))
    code, out, _ = closelook(*command, "--second", "the cats walk")
    assert code == 0
    assert "why the score (score" in out
    same = json.loads(file.read_text())["predictions"][0]
    assert sum(same["special_mask"]) == 3
    assert closelook(*command, "--second", "the dogs sleep")[0] == 0
    other = json.loads(file.read_text())["predictions"][0]
    assert same["logit_target"] > other["logit_target"] + 1, "a model of how much two texts share"
    code, _, err = closelook(*command, "--label", "high")
    assert (code, "predicts a score and has no labels" in err) == (2, True)
    code, _, err = closelook("explain", "the cats", "--model", "demo/gpt2", "--label", "walk")
    assert (code, "predicts words" in err) == (2, True)


def test_words_of_several_tokens_are_explained_as_in_python(closelook, tmp_path):
    file = tmp_path / "numbers.json"
    command = ("explain", "The keys to the", "--model", "demo/gpt2", "--target", "cabinet", "--json", str(file))
    for words in ("first_difference", "each"):
        code, _, err = closelook(*command, "--words", words)
        assert code == 0, err
        python = front.explain("The keys to the", "cabinet", words=words, model="demo/gpt2")
        read = json.loads(file.read_text())["predictions"]
        assert [prediction["target_id"] for prediction in read] == [answer.view.target_id for answer in python.answers]
    code, _, err = closelook(*command, "--words", "all")
    assert (code, "--words must be one of single, first_difference, each, not 'all'; a whole" in err) == (2, True)
