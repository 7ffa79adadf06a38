"""Texts that a model is to go on with: articles, how much of them is read, and what is explained there."""

import json

import pytest

from closelook.evaluation.benchmark.demo import generate, model_dir
from closelook.evaluation.benchmark.reading import Origin, read, survey
from closelook.evaluation.benchmark.samples import Beginning, sample
from closelook.evaluation.benchmark.views import tokenise
from closelook.lrp_core.records import kinds
from tests.evaluation.benchmark.conftest import KINDS, MASKED, kind_of

TEXT = "The keys to the cabinet are on the table ."
ARTICLE = sample("t", TEXT, None, None, None)
WIKITEXT = """
 = Robert Boulter =

 Robert Boulter is an actor .

 = = Career = =

 He starred with L .
 A filter has a frequency . The inductance is then L
 = 1 henry and the capacitance C =
 1 farad .

 = Du Fu =

 Du Fu was a poet .
"""


def view_of(tokenizers, kind, row=ARTICLE, tokens=4, explains="true", max_length=100):
    beginning = Beginning(tokens, explains)
    return tokenise(
        [row],
        tokenizers[kind],
        kind=kind_of(kind),
        max_length=max_length,
        beginning=beginning,
    )


def rows_of(tmp_path, source, name, content):
    (tmp_path / name).write_text(content, encoding="utf-8")
    return list(read(survey(Origin("next_word", source, path=str(tmp_path / name)))))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("tokens", [1, 4, 100])
def test_the_first_tokens_are_read_and_the_next_one_is_explained(tokenizers, kind, tokens):
    tokenizer = tokenizers[kind]
    [view], rejects = view_of(tokenizers, kind, tokens=tokens)
    whole = tokenizer(TEXT, add_special_tokens=False)["input_ids"]
    count = min(tokens, len(whole) - 1)
    ordinary = [t for t, special in zip(view["input_ids"], view["special_mask"], strict=True) if not special]
    if kind in MASKED:
        assert view["input_ids"][view["position"]] == tokenizer.mask_token_id
        assert ordinary.pop() == tokenizer.mask_token_id
        assert view["input_ids"][-1] == tokenizer(TEXT)["input_ids"][-1], "the template is closed"
    else:
        assert view["position"] == len(view["input_ids"]) - 1
    assert not rejects
    assert ordinary == whole[:count]
    assert view["target_id"] == whole[count]
    assert view["length"] == len(view["input_ids"]) == len(view["special_mask"])
    assert view["evidence_mask"] is view["foil_id"] is view["scope_mask"] is None


@pytest.mark.parametrize("kind", KINDS)
def test_a_models_own_prediction_has_no_target_before_the_model_runs(tokenizers, kind):
    [view], _ = view_of(tokenizers, kind, explains="prediction")
    [true], _ = view_of(tokenizers, kind, explains="true")
    assert view == true | {"target_id": None}


@pytest.mark.parametrize("kind", KINDS)
def test_no_more_is_read_than_the_model_takes(tokenizers, kind):
    [view], _ = view_of(tokenizers, kind, tokens=100, max_length=6)
    assert view["length"] == 6


def test_a_text_of_one_token_and_a_task_that_says_nothing_of_beginnings_are_rejects(tokenizers):
    _, [short] = view_of(tokenizers, "wordpiece", sample("t", "keys", None, None, None))
    assert short["reason"] == "no token follows the beginning"
    _, [unasked] = tokenise([ARTICLE], tokenizers["wordpiece"], kind=kinds.MASKED, max_length=100)
    assert unasked["reason"] == "no slot"


def test_articles_begin_after_their_titles_and_formulas_are_no_titles(tmp_path):
    rows = rows_of(tmp_path, "wikitext", "wiki.test.raw", WIKITEXT)
    assert [json.loads(row["meta"])["title"] for row in rows] == ["Robert Boulter", "Du Fu"]
    assert rows[0]["text"].startswith("Robert Boulter is an actor .\n= = Career = =\n")
    assert rows[0]["text"].endswith("1 farad .")
    assert rows[1]["text"] == "Du Fu was a poet ."
    assert all(row["slot"] is row["target"] is row["foil"] is None and row["evidence"] == [] for row in rows)


def test_a_dump_gives_an_article_a_line_and_rejects_what_has_none(tmp_path):
    lines = [{"title": "Nero", "text": "Nero was an emperor."}, {"title": "Nothing", "text": " "}]
    rows = rows_of(tmp_path, "wikipedia", "wiki.jsonl", "\n".join(map(json.dumps, lines)))
    assert rows[0]["text"] == "Nero was an emperor."
    assert (rows[1]["stage"], rows[1]["reason"]) == ("source", "empty text")


def test_the_published_articles_are_read_whole(shared):
    rows = list(read(survey(Origin("next_word", "wikitext", path=str(shared / "data" / "wikitext")))))
    assert len(rows) == 60
    assert min(len(row["text"]) for row in rows) > 1000


def test_texts_of_the_demo_language_end_with_the_word_of_a_slot():
    from transformers import AutoTokenizer

    rows = list(generate("next_word", 30))
    assert len({row["sample_id"] for row in rows}) == 30
    assert {row["text"].partition(" ")[0] == "Context:" for row in rows} == {True, False}
    tokenizer = AutoTokenizer.from_pretrained(model_dir("gpt2"))
    views, rejects = tokenise(rows, tokenizer, kind=kinds.CAUSAL, max_length=128, beginning=Beginning(512, "true"))
    assert not rejects
    for row, view in zip(rows, views, strict=True):
        assert tokenizer.decode([*view["input_ids"], view["target_id"]]).endswith(row["text"].split()[-1])
