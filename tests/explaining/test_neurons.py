"""`closelook neurons TEXT`: inside one prediction, in the terminal."""

import json
import re
from pathlib import Path

import pytest

from closelook.lrp_core import METHODS, Batch, load_model
from closelook.lrp_core.interventions.neurons import neurons_scaled

ROOT = Path(__file__).parents[2]
SENTENCE = ("w5 w7 w9", "--target", "w10", "--foil", "w11")


def stripped(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.strip().splitlines())


def test_steering_runs_as_its_page_says(closelook):
    page = (ROOT / "docs" / "neurons.md").read_text()
    command, expected = re.search(r"^closelook (neurons .*?)\n```\n\n```text\n(.*?)\n```", page, re.S | re.M).groups()
    model, text, rest = re.fullmatch(r'neurons --model (\S+) "(.*?)" (.*)', command).groups()
    code, out, _ = closelook("neurons", "--model", model, text, *rest.split())
    assert code == 0
    assert stripped(out) == expected


def test_what_is_shown_is_what_the_model_computes(closelook, model, tmp_path):
    file = tmp_path / "neurons.json"
    code, out, _ = closelook(
        "neurons", "--model", str(model), *SENTENCE, "--top", "3", "--scale", "0.1=-5", "--dtype", "float64",
        "--json", str(file),
    )  # fmt: skip
    assert code == 0
    written = json.loads(file.read_text())
    view = load_model(str(model), dtype="float64")
    explained = json.loads(_explained_row(closelook, model, tmp_path))
    batch = Batch.collate([explained], 0)
    relevance = METHODS["attnlrp"](view, batch, neurons=True)
    best = relevance.neurons[0].flatten().sort(descending=True)
    width = relevance.neurons.shape[-1]
    for shown, value, index in zip(written["neurons"], best.values, best.indices, strict=False):
        neuron = shown["neuron"]
        assert (neuron["layer"], neuron["neuron"]) == divmod(int(index), width)
        assert neuron["relevance"] == pytest.approx(float(value), abs=1e-12)
    with neurons_scaled(view, [{(0, 1): -5.0}]):
        logits = view.all_logits(batch)[0, -1]
    expected = float(logits.softmax(0)[explained["target_id"]])
    after = dict(written["after"]["predictions"])
    assert after["w10"] == pytest.approx(expected, abs=1e-12)
    assert after["w10"] != dict(written["before"]["predictions"])["w10"]
    assert "changed: 0.1 times -5" in out


def _explained_row(closelook, model, tmp_path) -> str:
    """The row that `closelook explain` reads for the sentence, as JSON."""
    file = tmp_path / "explained.json"
    closelook("explain", "--model", str(model), *SENTENCE, "--json", str(file))
    (prediction,) = json.loads(file.read_text())["predictions"]
    return json.dumps({key: prediction[key] for key in ("input_ids", "position", "target_id", "foil_id")})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--set", "9.0=1"], "there is no layer 9: the model's layers are 0 to 0"),
        (["--scale", "0.99999=1"], "there is no neuron 99999: the model's neurons are 0 to"),
        (["--set", "17=1"], "as 2.17=0 (LAYER.EXPERT.NEURON=NUMBER in a mixture of experts), not '17=1'"),
        (["--set", "0.1=1", "--scale", "0.1=2"], "neuron 0.1 is changed twice"),
        (["--set", "0.1=inf"], "with 0.1 set to inf the model's logits are not finite: choose smaller values"),
        (["--method", "random"], "random gives no relevance of neurons"),
        (["--method", "attnlpr"], "did you mean 'attnlrp'"),
    ],
)
def test_what_cannot_be_done_is_one_line(closelook, model, arguments, message):
    code, _, err = closelook("neurons", "--model", str(model), *SENTENCE, *arguments)
    assert code == 2
    assert message in err
    assert len(err.splitlines()) == 1


def test_neurons_of_a_label_that_is_the_prediction_are_those_of_the_prediction(closelook):
    asked = ("neurons", "the cats never walk", "--model", "demo/bert-sentiment", "--top", "2")
    (_, predicted, _), (code, named, _) = closelook(*asked), closelook(*asked, "--label", "negative")
    assert code == 0
    assert "neurons for negative rather than positive" in predicted
    assert named == predicted


def test_a_score_is_a_number_and_no_share(closelook):
    code, out, _ = closelook("neurons", "--model", "demo/bert-score", "the dog sleeps", "--top", "1", "--set", "1.3=4")
    assert code == 0
    explained = re.search(r"neurons for the score by attnlrp \(explained (-?[\d.]+)\)", out).group(1)
    assert f"before: the score {explained}\n" in out
    assert re.search(r"^after: the score -?\d+\.\d\d$", out, re.M)


def test_models_of_images_have_no_text_to_read(closelook):
    code, _, err = closelook("neurons", "--model", "demo/vit", "the dog sleeps")
    assert (code, err) == (2, "error: demo/vit reads images: `closelook neurons` reads texts\n")


@pytest.mark.parametrize("name", ["bert", "bert-sentiment"])
def test_models_that_do_not_continue_a_text_generate_nothing(closelook, name):
    code, _, err = closelook("neurons", "--model", f"demo/{name}", "the cats never walk", "--generate", "3")
    assert (code, err) == (2, f"error: demo/{name} does not continue a text: leave --generate out\n")
