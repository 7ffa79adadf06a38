"""`import closelook`: explanations are what methods give, with their tokens; a root is read as its manifests say."""

import json
import pickle
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import closelook
from closelook.jobs import results
from closelook.jobs.store import Store
from closelook.lrp_core import Batch
from tests.synthetic import VARIANTS, Words, a_cell, relevance_rows, write_cell, write_run

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
    explanation = closelook.explain(TEXT, **PAIR, model="demo/gpt2", method=settings, dtype="float64")
    expected = directly(explanation.opened, TEXT, "are", "is", "integrated_gradients", steps=3)
    assert explanation["integrated_gradients"].dtype == torch.float64
    torch.testing.assert_close(explanation["integrated_gradients"], expected.tokens[0])


def test_tokens_may_be_given_by_number(gpt2):
    are, is_ = (gpt2.tokenizer(f" {word}")["input_ids"][0] for word in ("are", "is"))
    explanation = closelook.explain(TEXT, are, is_, model=gpt2)
    torch.testing.assert_close(explanation["attnlrp"], closelook.explain(TEXT, **PAIR, model=gpt2)["attnlrp"])
    assert (explanation.target, explanation.foil) == ("are", "is")


def test_each_token_of_a_longer_target_is_a_row_of_a_matrix(gpt2):
    explanation = closelook.explain("The keys to the", "cabinet", words="each", model=gpt2)
    matrix = explanation["attnlrp"]
    assert [answer.target for answer in explanation.answers] == ["cabin", "et"]
    assert matrix.shape == (2, 6)
    assert matrix.isnan().tolist() == [[False] * 5 + [True], [False] * 6]
    first = closelook.explain("The keys to the", explanation.answers[0].row["target_id"], model=gpt2)
    torch.testing.assert_close(matrix[0, :5], first["attnlrp"])
    whole = [
        *gpt2.tokenizer("The keys to the")["input_ids"],
        *(answer.row["target_id"] for answer in explanation.answers),
    ]
    assert gpt2.tokenizer.decode(whole) == "The keys to the cabinet"


def test_the_first_token_in_which_longer_words_differ_is_explained(gpt2):
    explanation = closelook.explain("The keys to the", "cabinet", "cabinets", words="first_difference", model=gpt2)
    assert explanation.tokens[-1] == " cabin"
    assert len(explanation.answers) == 1


def test_generated_tokens_are_explained_in_turn(gpt2):
    explanation = closelook.explain(TEXT, generate=3, model=gpt2)
    assert explanation["attnlrp"].shape == (3, len(explanation.answers[0].tokens) + 2)
    assert [answer.row["predicted_id"] for answer in explanation.answers] == [
        a.row["target_id"] for a in explanation.answers
    ]


def test_texts_of_a_batch_are_explained_as_alone(gpt2):
    texts = [TEXT, "The teachers", "The girl that saw the keys"]
    explanation = closelook.explain(texts, ["are", "are", "is"], ["is", "is", "are"], model=gpt2, method="lrp", batch=2)
    for row, text, target, foil in zip(explanation, texts, ["are", "are", "is"], ["is", "is", "are"], strict=True):
        alone = closelook.explain(text, target, foil, model=gpt2, method="lrp")
        torch.testing.assert_close(row["lrp"], alone["lrp"], rtol=1e-4, atol=1e-4)
    frame = explanation.to_frame()
    assert sorted(set(frame["text"])) == [0, 1, 2]
    assert len(frame) == sum(len(row.tokens) for row in explanation)


def test_a_model_may_be_a_path_and_a_token_a_number_of_numpys(gpt2):
    folder = Path(gpt2.resolved.location)
    (by_path,) = closelook.explain([TEXT], target=np.array([37]), model=folder, method="lrp")
    assert by_path["lrp"].tolist() == closelook.explain(TEXT, target=37, model=gpt2, method="lrp")["lrp"].tolist()


def test_a_classifiers_label_is_explained():
    explanation = closelook.explain("The food was good", model="demo/bert-sentiment", method="gradient_l2")
    assert explanation.answers[0].foil is not None
    assert len(explanation["gradient_l2"]) == len(explanation.tokens)


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
        "where did the clerk go ?", model="demo/t5", method=["attnlrp", "atman"], generate=2
    )
    html = explanation._repr_html_()
    second = explanation.relevance("attnlrp")[1]
    assert second.decoder_tokens.shape == (1, 2)
    assert html.count('title="what the decoder has seen"') == 2, "a column of each token; AtMan does not speak of them"
    first, last = (answer.target for answer in explanation.answers)
    assert (
        f"{last.replace('<', '&lt;').replace('>', '&gt;')} ← {first}: {float(second.decoder_tokens[0, 1]):.4g}" in html
    )
    assert html.count("<tbody><tr>") == 2
    assert html.count("<tr>") == 2 * (1 + 2)


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
            assert decoder["token"].tolist() == answer.decoder
            assert decoder["at"].tolist() == list(range(at + 1))
            assert decoder["special"].tolist() == [True] + [False] * at
            assert decoder["relevance"].tolist() == relevance.decoder_tokens[0].tolist()
            whole = float(relevance.explained[0] + relevance.residual[0])
            assert rows["relevance"].sum() == pytest.approx(whole, abs=1e-4)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"method": "lpr"}, "unknown method 'lpr' (did you mean 'lrp'?)"),
        ({"method": {"lrp": {"stepss": 3}}}, "stepss"),
        (
            {"method": "contextcite"},
            "contextcite gives no relevance of tokens: it is computed from the `ablations` of a run",
        ),
        ({"method": ["lrp", "lrp"]}, "several methods have the same name (lrp, lrp)"),
        ({"words": "all"}, "one of single, first_difference, each, not 'all'; a whole answer is explained by `answer`"),
        ({"target": 10**6, "foil": None, "text": TEXT}, "`target`: give token ids from 0 to "),
        ({"target": "are", "foil": 7}, "both words or both token ids"),
        ({"target": 7, "foil": 7, "text": TEXT}, "target equals foil"),
        ({"text": None, "input_ids": [5, 6, 7], "foil": "are"}, "target equals foil"),
        (
            {"text": TEXT, "model": "demo/bert-sentiment", "target": None, "label": "positive", "foil": "1"},
            "target equals foil",
        ),
        ({"text": f"{TEXT} \udce9"}, "has half of a character (a surrogate), which no tokenizer reads"),
        (
            {"text": "caf\udce9.png", "model": "demo/vit", "target": None, "foil": None},
            "path of an image, rename the file",
        ),
        ({"target": "are\udce9"}, "(a surrogate), which no tokenizer reads"),
        (
            {"text": "The [MASK] are old", "model": "demo/bert", "target": None, "foil": None},
            "demo/bert predicts at the token [MASK]: mark its place by ___ instead",
        ),
        ({"target": ["are"] * 2}, "`target` has 2 entries for 1 texts"),
        ({"batch": 0}, "at least 1, not 0"),
        ({"method": []}, "`method` names no method"),
        ({"text": 3}, "`text` must be a string, or a list of these, not 3"),
        ({"text": [3]}, "a text must be a string, not 3"),
        ({"target": 1.5}, "`target` must be a word or a token id, not 1.5"),
        ({"generate": "2"}, "at least 1, not '2'"),
        ({"generate": True}, "at least 1, not True"),
        ({"batch": True}, "at least 1, not True"),
        ({"second": 3}, "`second` must be a string, not 3"),
        ({"label": 1.5, "target": None, "foil": None}, "`label` must be the name or number of a label, not 1.5"),
        ({"label": True, "target": None, "foil": None}, "`label` must be the name or number of a label, not True"),
        ({"model": 3}, "`model` must be a hub id, a folder, or a model, pipeline or ModelView in memory, not 3"),
    ],
)
def test_what_is_mistyped_is_one_line(gpt2, settings, message):
    with pytest.raises(closelook.UserError) as caught:
        closelook.explain(**({"text": [TEXT], "model": gpt2, **PAIR} | settings))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_labels_are_taken_by_number_and_by_name():
    asked = {"text": "The food was good", "model": closelook.open_model("demo/bert-sentiment"), "method": "lrp"}
    by_name = closelook.explain(label="negative", foil="positive", **asked)
    for number in (0, np.int64(0), "0"):
        by_number = closelook.explain(label=number, foil=1, **asked)
        assert (by_number.target, by_number.foil) == ("negative", "positive")
        assert torch.equal(by_number["lrp"], by_name["lrp"])
    with pytest.raises(closelook.UserError, match="has no label 2"):
        closelook.explain(label=2, **asked)


def test_a_target_of_a_classifier_is_pointed_to_label():
    for model, text in (("demo/bert-sentiment", "The food was good"), ("demo/vit", "picture.png")):
        with pytest.raises(closelook.UserError, match="predicts labels, not words: use `label` 'negative' for"):
            closelook.explain(text, target="negative", model=model)
    with pytest.raises(closelook.UserError, match="demo/bert-score predicts scores, not words: leave `target` out"):
        closelook.explain("The food", target="negative", model="demo/bert-score")


@pytest.mark.parametrize("is_in_memory", [False, True])
def test_a_pickled_explanation_does_not_hold_the_model(gpt2, is_in_memory):
    given = {"model": gpt2.view.model, "tokenizer": gpt2.tokenizer} if is_in_memory else {"model": gpt2}
    explanation = closelook.explain(TEXT, **PAIR, **given, method=["attnlrp", "lrp"])
    stored = pickle.dumps(explanation)
    weights = sum(parameter.nbytes for parameter in gpt2.view.model.parameters())
    assert len(stored) < weights / 2
    read = pickle.loads(stored)
    assert read.to_dict() == explanation.to_dict()
    assert torch.equal(read["attnlrp"], explanation["attnlrp"])
    assert read._repr_html_() == explanation._repr_html_()
    if is_in_memory:
        with pytest.raises(closelook.UserError, match="was a model in memory, which is not pickled"):
            _ = read.opened.view


def test_numbers_may_be_those_of_numpy(gpt2):
    [actual] = closelook.explain([TEXT], model=gpt2, batch=np.int64(2), generate=np.int64(1))
    [expected] = closelook.explain([TEXT], model=gpt2)
    assert actual.to_dict() == expected.to_dict()


@pytest.fixture
def root(tmp_path, monkeypatch):
    """A scored store of made-up relevance that keeps its configuration."""
    monkeypatch.setattr(results, "load_tokenizer", lambda model: Words())
    write_run(tmp_path)
    return tmp_path


def test_relevance_of_a_root_stands_beside_its_tokens_and_texts(root):
    run = closelook.load(str(root))
    relevance = run.relevance(task="sva", method="attnlrp")
    assert len(relevance) == 8 * len(VARIANTS["attnlrp"])
    assert set(relevance["model"]) == {"gpt2"}
    for _, row in relevance.iterrows():
        assert len(row["relevance"]) == len(row["tokens"]) == len(row["evidence_mask"]) == len(row["input_ids"])
    texts = dict(zip(*(run.samples(task="sva")[name] for name in ("sample_id", "text")), strict=True))
    assert all(texts[row["sample_id"]] == row["text"] for _, row in relevance.iterrows())
    assert run.tokenizers == {"gpt2": "words-0000"}


def test_scores_of_a_root_are_those_of_its_files(root):
    scores = closelook.load(str(root)).scores(task="sva")
    store = Store(str(root))
    assert set(scores["method"]) == set(VARIANTS)
    kept = sum(len(pd.read_parquet(f"{root}/{path}")) for path in store.files("scores") if ".sva." in path)
    assert len(scores) == kept
    samples = closelook.load(str(root)).scores_of_samples(task="sva", method="random")
    assert set(samples["sample_id"]) <= {f"sva{at:05d}" for at in range(8)}


def test_what_no_manifest_vouches_for_is_not_read_and_the_latest_counts(root):
    store = Store(str(root))
    cell = a_cell("sva", "random", key="fedcba9876543210")
    views = closelook.load(str(root)).views("arrow", task="sva").to_pylist()
    before = closelook.load(str(root)).relevance(task="sva", method="random", tokens=False)
    write_cell(store, cell, relevance_rows(views, "random", seed=9))
    record = store.manifest(cell.name)
    store.delete(f"manifest/{cell.name}.json")
    again = closelook.load(str(root)).relevance(task="sva", method="random", tokens=False)
    assert again["relevance"].map(list).tolist() == before["relevance"].map(list).tolist()
    newer = {"inputs": {"tokenizer": "words-0000"}, "written": "2025-02-01T00:00:00Z"}
    store.write_manifest(cell.name, record | newer)
    latest = closelook.load(str(root)).relevance(task="sva", method="random", tokens=False)
    assert len(latest) == len(before)
    assert latest["relevance"].map(list).tolist() != before["relevance"].map(list).tolist()


def test_relevance_of_models_in_two_precisions_is_read_together(root):
    store, run = Store(str(root)), closelook.load(str(root))
    views, before = run.views("arrow", task="sva").to_pylist(), run.relevance(task="sva", method="random", tokens=False)
    cell = a_cell("sva", "random", dtype="float64", key="fedcba9876543210")
    write_cell(store, cell, relevance_rows(views, "random"))
    fields = {"inputs": {"tokenizer": "words-0000"}, "written": "2025-02-01T00:00:00Z"}
    store.write_manifest(cell.name, store.manifest(cell.name) | fields)
    both = closelook.load(str(root)).relevance(task="sva", method="random", tokens=False)
    assert both["dtype"].value_counts().to_dict() == {"float32": len(before), "float64": len(before)}
    assert {len(row) for row in both["relevance"]} == {len(row) for row in before["relevance"]}


def test_tables_come_as_arrow_and_as_a_data_set(root):
    run = closelook.load(str(root))
    frame, arrow, data = (run.scores(form) for form in ("pandas", "arrow", "datasets"))
    assert len(frame) == arrow.num_rows == len(data)
    assert list(frame.columns) == arrow.column_names == data.column_names


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (
            lambda run: run.relevance(method="attnlpr"),
            "holds no relevance of method 'attnlpr' (did you mean 'attnlrp'?)",
        ),
        (lambda run: run.relevance(metod="attnlrp"), "picked by model, task, dtype, method, tokenizer, not by 'metod'"),
        (lambda run: run.views(model="gpt3"), "did you mean 'gpt2'?"),
        (lambda run: run.curves(), "holds no complete curves"),
        (lambda run: run.curves(model="gpt2"), "holds no complete curves"),
        (lambda run: run.scores("panda"), "no form 'panda' (did you mean 'pandas'?)"),
    ],
)
def test_what_a_root_does_not_hold_is_one_line(root, ask, message):
    with pytest.raises(closelook.UserError) as caught:
        ask(closelook.load(str(root)))
    assert message in str(caught.value)


def test_an_empty_root_says_how_to_fill_it(tmp_path):
    with pytest.raises(closelook.UserError, match="closelook run --root"):
        closelook.load(str(tmp_path))
