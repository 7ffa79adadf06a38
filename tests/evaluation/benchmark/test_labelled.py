"""Labelled texts in their published layouts, and what of them cannot be a sample."""

import json

import pytest

from closelook.evaluation.benchmark.reading import Origin, read, survey
from closelook.evaluation.benchmark.samples import is_reject
from closelook.evaluation.benchmark.sources.judged import MNLI
from closelook.lrp_core.records.types import UserError


def rows_of(task, path):
    return list(read(survey(Origin(task, task, path=str(path)))))


def reasons(rows):
    return {row["where"]: row["reason"] for row in rows if is_reject(row)}


def test_a_table_of_glue_keeps_quotation_marks_and_rejects_what_has_no_label(tmp_path):
    lines = ["index\tquestion\tsentence\tlabel", '0\tWho "won?\tA "team\tentailment', "1\tWhen?\tThen.\t-", "2\tWhy?"]
    (tmp_path / "dev.tsv").write_text("\n".join([*lines, "3\tHow?\t \tnot_entailment", "4\tHow?\tSo.\tmaybe"]))
    rows = rows_of("qnli", tmp_path / "dev.tsv")
    [kept] = [row for row in rows if not is_reject(row)]
    assert (kept["text"], kept["second"], kept["label"]) == ('Who "won?', 'A "team', "entailment")
    assert reasons(rows) == {
        "dev.tsv:3": "no gold label",
        "dev.tsv:4": "not as many fields as the header has",
        "dev.tsv:5": "empty second text",
        "dev.tsv:6": "unknown label",
    }


def test_labels_come_as_names_or_numbers_and_columns_under_either_name(tmp_path):
    records = [
        {"premise": "a", "hypothesis": "b", "label": "Neutral"},
        {"sentence1": "c", "sentence2": "d", "gold_label": "contradiction"},
        {"premise": "e", "hypothesis": "f", "label": 0},
        {"premise": "g", "hypothesis": "h", "label": -1},
        {"premise": "i", "label": 0},
    ]
    (tmp_path / "dev.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    rows = rows_of("mnli", tmp_path)
    assert [row["label"] for row in rows if not is_reject(row)] == ["neutral", "contradiction", "entailment"]
    assert reasons(rows) == {"dev.jsonl:4": "no gold label", "dev.jsonl:5": "no column 'hypothesis'"}
    hub = list(MNLI.hub_records([{"premise": "e", "hypothesis": "f", "label": 0, "idx": 3}]))
    assert next(MNLI.rows(hub[0])) == next(row for row in rows if row["text"] == "e")


def test_scores_come_from_csv_without_a_header(tmp_path):
    (tmp_path / "dev.csv").write_text('"A, b.","A\nc.",4.75\nd,e\nf,g,much\nh,i,nan\n')
    rows = rows_of("stsb", tmp_path)
    [kept] = [row for row in rows if not is_reject(row)]
    assert (kept["text"], kept["second"], kept["score"], kept["label"]) == ("A, b.", "A\nc.", 4.75, None)
    assert reasons(rows) == {
        "dev.csv:3": "not three columns",
        "dev.csv:4": "the score is no number",
        "dev.csv:5": "the score is no number",
    }


def test_reviews_are_files_in_folders_named_by_their_label(tmp_path):
    for path, text in (("pos/0_9.txt", "Fine.<br />"), ("neg/1_2.txt", "Dull."), ("unsup/2_0.txt", "Who knows.")):
        (tmp_path / "train" / path).parent.mkdir(parents=True)
        (tmp_path / "train" / path).write_text(text)
    rows = {row["text"]: (row["label"], row["meta"]) for row in rows_of("imdb", tmp_path)}
    assert rows == {"Fine.<br />": ("positive", '{"rating": 9}'), "Dull.": ("negative", '{"rating": 2}')}
    with pytest.raises(UserError, match=r"no \.txt file"):
        rows_of("imdb", tmp_path / "nowhere")


def test_geco_marks_the_words_in_which_the_two_forms_of_a_sentence_differ(tmp_path):
    forms = [
        ["She", "lent", "the", "she-wolf", "(", "hers", ")", "."],
        ["He", "lent", "the", "wolf", "(", "his", ")", "."],
    ]
    marks = [1, 0, 0, 1, 0, 1, 0, 0]
    records = [
        {"sentence": words, "ground_truth": marks, "target": target, "sentence_idx": 7}
        for target, words in enumerate(forms)
    ]
    records += [{**records[0], "ground_truth": marks[1:]}, {**records[0], "target": 2}]
    (tmp_path / "geco.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    rows = rows_of("geco", tmp_path)
    kept = [row for row in rows if not is_reject(row)]
    assert [(row["text"], row["label"]) for row in kept] == [
        (" ".join(forms[0]), "female"),
        (" ".join(forms[1]), "male"),
    ]
    for row, words in zip(kept, forms, strict=True):
        evidence = [row["text"][start:end] for start, end in row["evidence"]]
        assert evidence == [word for word, mark in zip(words, marks, strict=True) if mark]
    assert kept[0]["cluster"] == kept[1]["cluster"]
    assert reasons(rows) == {"geco.jsonl:3": "not as many marks as words", "geco.jsonl:4": "unknown label"}
