"""`closelook.explain`: explanations are what methods give, with their tokens, as tensors, frames, pages and data."""

import json
import pickle

import numpy as np
import pandas as pd
import pytest
import torch

import closelook
from closelook.evaluation.benchmark.demo import model_dir
from closelook.lrp_core import Batch

TEXT, PAIR = "The keys to the cabinet", {"target": "are", "foil": "is"}


@pytest.fixture(scope="module")
def gpt2():
    return closelook.open_model("demo/gpt2")


def directly(opened, text, target, foil, name, **options):
    """The relevance that the method itself computes."""
    ids, target_ids, foil_ids = (opened.tokenizer(part)["input_ids"] for part in (text, f" {target}", f" {foil}"))
    row = {"input_ids": ids, "position": len(ids) - 1, "target_id": target_ids[0], "foil_id": foil_ids[0]}
    return closelook.METHODS[name](opened.view, Batch.collate([row], pad_id=0), **options)


def test_an_explanation_is_what_the_methods_give_with_its_tokens(gpt2):
    explanation = closelook.explain(TEXT, **PAIR, model=gpt2, method=["attnlrp", "lrp"])
    for name in ("attnlrp", "lrp"):
        torch.testing.assert_close(explanation[name], directly(gpt2, TEXT, "are", "is", name).tokens[0])
    assert "".join(explanation.tokens) == TEXT
    assert (explanation.target, explanation.foil) == ("are", "is")
    assert repr(explanation) == "<Explanation of 'are rather than is' by demo/gpt2: attnlrp, lrp>"
    message = "this explanation has no method 'random'; there are attnlrp, lrp; to get it, add it to `method` of "
    with pytest.raises(closelook.UserError, match=message):
        explanation["random"]


def test_options_and_dtype_reach_the_method():
    settings = {"integrated_gradients": {"steps": 3}}
    opened = closelook.open_model("demo/gpt2", dtype="float64")
    explanation = closelook.explain(TEXT, **PAIR, model=opened, method=settings)
    expected = directly(opened, TEXT, "are", "is", "integrated_gradients", steps=3)
    assert explanation["integrated_gradients"].dtype == torch.float64
    torch.testing.assert_close(explanation["integrated_gradients"], expected.tokens[0])


def test_each_token_of_a_longer_target_is_a_row_of_a_matrix(gpt2):
    explanation = closelook.explain("The keys to the", "cabinet", words="each", model=gpt2)
    matrix = explanation["attnlrp"]
    assert [answer.target for answer in explanation.answers] == ["cabin", "et"]
    assert matrix.shape == (2, 6)
    assert matrix.isnan().tolist() == [[False] * 5 + [True], [False] * 6]
    first = closelook.explain("The keys to the", explanation.answers[0].view.target_id, model=gpt2)
    torch.testing.assert_close(matrix[0, :5], first["attnlrp"])
    whole = [
        *gpt2.tokenizer("The keys to the")["input_ids"],
        *(answer.view.target_id for answer in explanation.answers),
    ]
    assert gpt2.tokenizer.decode(whole) == "The keys to the cabinet"


def test_the_first_token_in_which_longer_words_differ_is_explained(gpt2):
    explanation = closelook.explain("The keys to the", "cabinet", "cabinets", words="first_difference", model=gpt2)
    assert explanation.tokens[-1] == " cabin"
    assert len(explanation.answers) == 1


def test_texts_of_a_batch_are_explained_as_alone(gpt2):
    texts = [TEXT, "The teachers", "The girl that saw the keys"]
    explanation = closelook.explain(texts, ["are", "are", "is"], ["is", "is", "are"], model=gpt2, method="lrp")
    for row, text, target, foil in zip(explanation, texts, ["are", "are", "is"], ["is", "is", "are"], strict=True):
        alone = closelook.explain(text, target, foil, model=gpt2, method="lrp")
        torch.testing.assert_close(row["lrp"], alone["lrp"], rtol=1e-4, atol=1e-4)
    frame = explanation.to_frame()
    assert sorted(set(frame["text"])) == [0, 1, 2]
    assert len(frame) == sum(len(row.tokens) for row in explanation)


def test_a_model_may_be_a_path_and_a_token_a_number_of_numpys(gpt2):
    folder = model_dir("gpt2")
    (by_path,) = closelook.explain([TEXT], target=np.array([37]), model=folder, method="lrp")
    assert by_path["lrp"].tolist() == closelook.explain(TEXT, target=37, model=gpt2, method="lrp")["lrp"].tolist()


def test_atman_explains_the_score_of_a_regressor_where_nothing_else_is_asked_for():
    explanation = closelook.explain("the cats walk", second="the dogs sleep", model="demo/bert-score", method="atman")
    relevance = explanation.relevance("atman")[0]
    assert torch.equal(relevance.explained, relevance.logit_target)
    assert explanation["atman"].abs().max() > 1e-3


def test_a_label_that_is_the_prediction_is_explained_as_the_prediction():
    texts = ["The food was good", "the cats never walk"]
    predictions = closelook.explain(texts, model="demo/bert-sentiment", method="lrp")
    for text, alone in zip(texts, predictions, strict=True):
        label = alone.target
        for named in (
            closelook.explain(text, label=label, model="demo/bert-sentiment", method="lrp"),
            *closelook.explain([text], label=label, model="demo/bert-sentiment", method="lrp"),
        ):
            assert (named.target, named.foil) == (alone.target, alone.foil)
            torch.testing.assert_close(named["lrp"], alone["lrp"], rtol=1e-4, atol=1e-5)


def test_an_explanation_is_a_frame_plain_data_and_a_heat_map_whose_text_is_no_markup(gpt2, capsys):
    explanation = closelook.explain("The keys <b> to", **PAIR, model=gpt2, method=["lrp", "random"])
    frame = explanation.to_frame()
    assert isinstance(frame, pd.DataFrame)
    lrp = frame[frame["method"] == "lrp"]
    assert lrp["token"].tolist() == explanation.tokens
    assert lrp["relevance"].tolist() == explanation["lrp"].tolist()
    record = json.loads(json.dumps(explanation.to_dict()))["predictions"][0]
    assert record["methods"][0]["relevance"] == pytest.approx(explanation["lrp"].tolist())
    html = explanation._repr_html_()
    assert "<b>" not in html
    assert "decoder" not in html
    assert html.count("<tr>") == 2
    assert html.count("<span") == 2 * len(explanation.tokens)
    explanation.show()
    assert "demo/gpt2: why are rather than is (logit" in capsys.readouterr().out


def test_a_notebook_shows_what_the_decoder_of_an_encoder_decoder_has_seen():
    explanation = closelook.explain(
        "where did the clerk go ?", model="demo/t5", method=["attnlrp", "atman"], answer="on Thursday", spans="token"
    )
    html = explanation._repr_html_()
    second = explanation.relevance("attnlrp")[1]
    assert second.decoder_tokens.shape == (1, 2)
    assert html.count('title="what the decoder has seen"') == 2, "once a prediction; AtMan does not speak of them"
    assert f'"{explanation.answers[0].target}: {float(second.decoder_tokens[0, 1]):.4g}"' in html


def test_a_frame_of_an_encoder_decoder_says_which_side_a_token_is_on():
    explanation = closelook.explain(
        "where did the clerk go ?", model="demo/t5", method=["attnlrp", "atman"], generate=2
    )
    frame = explanation.to_frame()
    for at, answer in enumerate(explanation.answers):
        for method in ("attnlrp", "atman"):
            relevance, rows = explanation.relevance(method)[at], frame.query(f"answer == {at} and method == '{method}'")
            text, decoder = rows[rows["side"] == "text"], rows[rows["side"] == "decoder"]
            assert text["token"].tolist() == answer.tokens
            assert text["relevance"].tolist() == relevance.tokens[0].tolist()
            if method == "atman":
                assert not len(decoder), "it does not speak of the decoder's tokens"
                continue
            assert decoder["token"].tolist() == answer.decoder.tokens
            assert decoder["at"].tolist() == list(range(at + 1))
            assert decoder["special"].tolist() == [True] + [False] * at
            assert decoder["relevance"].tolist() == relevance.decoder_tokens[0].tolist()
            whole = float(relevance.explained[0] + relevance.residual[0])
            assert rows["relevance"].sum() == pytest.approx(whole, abs=1e-4)


def test_labels_are_taken_by_number_and_by_name():
    asked = {"text": "The food was good", "model": closelook.open_model("demo/bert-sentiment"), "method": "lrp"}
    by_name = closelook.explain(label="negative", foil="positive", **asked)
    for number in (0, np.int64(0), "0"):
        by_number = closelook.explain(label=number, foil=1, **asked)
        assert (by_number.target, by_number.foil) == ("negative", "positive")
        assert torch.equal(by_number["lrp"], by_name["lrp"])
    with pytest.raises(closelook.UserError, match="has no label '2'"):
        closelook.explain(label=2, **asked)


def test_a_target_of_a_classifier_is_pointed_to_label():
    for model, text in (("demo/bert-sentiment", "The food was good"), ("demo/vit", "picture.png")):
        with pytest.raises(closelook.UserError, match="predicts labels, not words: use `label` 'negative' for"):
            closelook.explain(text, target="negative", model=model)
    with pytest.raises(closelook.UserError, match="demo/bert-score predicts scores, not words: leave `target` out"):
        closelook.explain("The food", target="negative", model="demo/bert-score")


@pytest.mark.parametrize("is_in_memory", [False, True])
def test_a_pickled_explanation_does_not_hold_the_model(gpt2, is_in_memory):
    model = closelook.open_model(gpt2.view.model, tokenizer=gpt2.tokenizer) if is_in_memory else gpt2
    explanation = closelook.explain(TEXT, **PAIR, model=model, method=["attnlrp", "lrp"])
    stored = pickle.dumps(explanation)
    weights = sum(parameter.nbytes for parameter in gpt2.view.model.parameters())
    assert len(stored) < weights / 2
    read = pickle.loads(stored)
    assert read.to_dict() == explanation.to_dict()
    assert torch.equal(read["attnlrp"], explanation["attnlrp"])
    assert read._repr_html_() == explanation._repr_html_()
