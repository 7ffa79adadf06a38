import hashlib
import json

import datasets
import pytest

from closelook.evaluation.benchmark import reading
from closelook.evaluation.benchmark.reading import Origin
from closelook.evaluation.benchmark.samples import is_reject
from closelook.evaluation.benchmark.sources.squad import first_piece
from closelook.evaluation.tasks import SOURCES
from closelook.lrp_core.records.types import UserError

BLIMP = {
    "sentence_good": "Many teenagers were helping themselves.",
    "sentence_bad": "Many teenagers were helping herself.",
}
LGD = "1\tthe keys to the cabinet are old\tthe keys to the cabinet ***mask*** old\tare\tis"
CONTEXT = "Rollo led the Normans in 911. Paris fell in 845."


def question(text, answer, start=None, **more):
    start = CONTEXT.index(answer) if start is None else start
    return {"question": text, "id": text, "answers": [{"text": answer, "answer_start": start}], **more}


WHO = question("Who led?", "Rollo")
SQUAD = {"data": [{"title": "A", "paragraphs": [{"context": CONTEXT, "qas": [WHO, question("When?", "911")]}]}]}


def read(tmp_path, source, content, **options):
    """The survey and the rows of a file, by its folder; rows in are rows out, rejects, or left by a limit."""
    file = tmp_path / f"data{SOURCES[source].suffixes[0]}"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    survey = reading.survey(Origin("task", source, path=str(tmp_path), **options))
    rows = list(reading.read(survey))
    assert survey.read == len(rows) + survey.left
    assert survey.rejected == sum(map(is_reject, rows))
    return survey, rows


def reject_of(tmp_path, source, content):
    """The one reject among rows of which another is good."""
    _, rows = read(tmp_path, source, content)
    [reject] = [row for row in rows if is_reject(row)]
    return reject["reason"], reject["where"]


def sentence(row):
    return row["text"][: row["slot"]] + "|" + row["text"][row["slot"] :]


def squad(*questions, context=CONTEXT):
    return json.dumps({"data": [{"title": "A", "paragraphs": [{"context": context, "qas": list(questions)}]}]})


def test_blimp_text_ends_at_the_slot_without_the_full_stop(tmp_path):
    _, [row] = read(tmp_path, "blimp", json.dumps(BLIMP))
    assert sentence(row) == "Many teenagers were helping|"
    assert (row["target"], row["foil"]) == ("themselves", "herself")
    assert json.loads(row["meta"])["rest"] == "."


def test_lgd_keeps_the_published_sentence_and_its_attractors(tmp_path):
    _, [row] = read(tmp_path, "lgd", LGD)
    assert sentence(row) == "the keys to the cabinet | old"
    assert (row["target"], row["foil"], json.loads(row["meta"])) == ("are", "is", {"attractors": 1})


def test_squad_prompt_evidence_and_scope(tmp_path):
    _, rows = read(tmp_path, "squad", json.dumps(SQUAD))
    assert rows[0]["text"] == f"Context: {CONTEXT}\nQuestion: Who led?\nAnswer:"
    assert [rows[0]["text"][slice(*span)] for span in rows[0]["evidence"]] == ["Rollo"]
    assert [rows[0]["text"][slice(*span)] for span in rows[0]["scope"]] == [CONTEXT]
    assert [(row["target"], row["foil"]) for row in rows] == [("Rollo", "911"), ("911", "Rollo")]
    assert {row["cluster"] for row in rows} == {"A"}, "the article"


def test_evidence_is_the_annotated_span_though_the_answer_occurs_again(tmp_path):
    context = "Rollo led. Rollo ruled. Paris fell."
    content = squad(question("Who ruled?", "Rollo", 11), question("What fell?", "Paris", 24), context=context)
    _, rows = read(tmp_path, "squad", content)
    assert rows[0]["evidence"] == [[9 + 11, 9 + 16]]
    assert json.loads(rows[0]["meta"])["occurrences"] == 2


def test_the_foil_comes_from_the_paragraph_then_from_the_article_and_begins_differently(tmp_path):
    paragraph = {"context": "9th century, or 9 years", "qas": [
        {"question": "a", "answers": [{"text": "9th century", "answer_start": 0}]},
        {"question": "b", "answers": [{"text": "9 years", "answer_start": 16}]},
    ]}  # fmt: skip
    later = {"context": "Paris", "qas": [{"question": "c", "answers": [{"text": "Paris", "answer_start": 0}]}]}
    other = {"title": "B", "paragraphs": [{"context": "Rome", "qas": []}]}
    content = json.dumps({"data": [{"title": "A", "paragraphs": [paragraph, later]}, other]})
    _, rows = read(tmp_path, "squad", content)
    assert [row["foil"] for row in rows] == ["Paris", "Paris", "9th century"]


def test_a_broken_paragraph_costs_no_other(tmp_path):
    whole = {"context": CONTEXT, "qas": [WHO, question("When?", "911")]}
    content = json.dumps({"data": [{"title": "A", "paragraphs": [{"qas": []}, whole]}]})
    _, rows = read(tmp_path, "squad", content)
    broken = [row["where"] for row in rows if is_reject(row)]
    assert broken == ["data.json:data[0].paragraphs[0]"]
    assert len(rows) == 3


def test_a_question_whose_article_has_no_other_answer_is_rejected(tmp_path):
    lonely = {"title": "B", "paragraphs": [{"context": CONTEXT, "qas": [WHO]}]}
    content = json.dumps({"data": [*SQUAD["data"], lonely]})
    assert reject_of(tmp_path, "squad", content) == ("no foil in the article", "data.json:data[1].paragraphs[0].qas[0]")


@pytest.mark.parametrize(
    ("answer", "piece"), [("10th century", "10"), ("U.S.", "u"), ("$5", "$"), ("Émile Zola", "émile")]
)
def test_answers_are_compared_by_their_first_piece(answer, piece):
    assert first_piece(answer) == piece


def test_unanswerable_questions_are_no_rows(tmp_path):
    impossible = {"question": "Why?", "id": "x", "answers": [], "is_impossible": True}
    survey, _ = read(tmp_path, "squad", squad(WHO, question("When?", "911"), impossible))
    assert survey.read == 2


BROKEN = [
    ("lgd", f"{LGD}\n1\tonly\ttwo\n", "not five columns", "data.tsv:2"),
    ("lgd", f"{LGD}\n1\tb are\tb are\tare\tis\n", "no mask marker", "data.tsv:2"),
    ("lgd", f"1\tb are\t***mask*** ***mask***\tare\tis\n\n{LGD}", "more than one mask marker", "data.tsv:1"),
    ("lgd", f"{LGD}\n1\tb is\tb ***mask***\tare\tis\n", "the masked sentence is not the sentence", "data.tsv:2"),
    ("lgd", f"{LGD}\nx\tb are\tb ***mask***\tare\tis\n", "the number of attractors is no number", "data.tsv:2"),
    ("lgd", f"{LGD}\n1\tb are\tb ***mask***\tare\tare\n", "target equals foil", "data.tsv:2"),
    ("lgd", f"{LGD}\n{LGD}", "same content as an earlier row", "data.tsv:2"),
    ("lgd", LGD.encode() + b"\n\xff\n", "not UTF-8", "data.tsv:2"),
    ("blimp", json.dumps(BLIMP) + "\n{", "not JSON", "data.jsonl:2"),
    ("blimp", json.dumps(BLIMP) + "\n[]", "not an object", "data.jsonl:2"),
    ("blimp", json.dumps(BLIMP) + '\n{"sentence_good": "A b."}', "no column 'sentence_bad'", "data.jsonl:2"),
    ("blimp", json.dumps(BLIMP) + '\n{"sentence_good": 1}', "column 'sentence_good' is not str", "data.jsonl:2"),
    (
        "blimp",
        json.dumps(BLIMP) + "\n" + json.dumps({"sentence_good": "A b c.", "sentence_bad": "A d e."}),
        "the sentences do not differ in exactly one word",
        "data.jsonl:2",
    ),
    (
        "squad",
        squad(WHO, question("When?", "911"), question("x", "911", 3)),
        "answer_start does not match the text",
        "data.json:data[0].paragraphs[0].qas[2]",
    ),
    (
        "squad",
        squad(WHO, question("When?", "911"), question("x", "911", -3)),
        "answer_start does not match the text",
        "data.json:data[0].paragraphs[0].qas[2]",
    ),
    (
        "squad",
        squad(WHO, question("When?", "911"), {"question": "x", "answers": [], "is_impossible": False}),
        "no answer to an answerable question",
        "data.json:data[0].paragraphs[0].qas[2]",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("source", "content", "reason", "where"), BROKEN)
def test_a_broken_row_is_a_reject_with_its_place(tmp_path, source, content, reason, where):
    assert reject_of(tmp_path, source, content) == (reason, where)


def test_an_empty_context_is_a_reject(tmp_path):
    empty = {"context": " ", "qas": [question("x", "911", 0)]}
    article = {"title": "B", "paragraphs": [empty, *SQUAD["data"][0]["paragraphs"]]}
    content = json.dumps({"data": [article]})
    assert reject_of(tmp_path, "squad", content) == ("empty context", "data.json:data[0].paragraphs[0].qas[0]")


def test_a_changed_checksum_stops_with_both_sums(tmp_path):
    now = hashlib.sha256(LGD.encode()).hexdigest()
    assert read(tmp_path, "lgd", LGD, sha256=now)[0].origin.sha256 == now
    with pytest.raises(UserError) as error:
        read(tmp_path, "lgd", LGD, sha256="0" * 64)
    assert now in str(error.value)
    assert "0" * 64 in str(error.value)


@pytest.mark.parametrize("content", ['{"version": 2}', '{"data": [{"title": "A", ', '{"data": [{]}'])
def test_a_file_that_is_not_in_the_published_layout_is_an_error(tmp_path, content):
    with pytest.raises(UserError, match=r"of this source as published|not JSON"):
        read(tmp_path, "squad", content)


def test_a_limit_draws_the_lowest_sample_ids_in_the_order_of_the_source(tmp_path):
    lines = [f"1\tthe keys {i} are\tthe keys {i} ***mask***\tare\tis" for i in range(20)]
    _, everything = read(tmp_path, "lgd", "\n".join(lines))
    survey, rows = read(tmp_path, "lgd", "\n".join(lines), limit=5)
    ids = [row["sample_id"] for row in everything]
    assert [row["sample_id"] for row in rows] == [i for i in ids if i in sorted(ids)[:5]]
    assert (survey.drawn, survey.left) == (5, 15)
    again, _ = read(tmp_path, "lgd", "\n".join(reversed(lines)), limit=5)
    assert again.digest == survey.digest


def test_hub_rows_give_the_samples_of_the_published_file(tmp_path):
    _, from_file = read(tmp_path, "squad", json.dumps(SQUAD))
    hub = tmp_path / "hub"
    hub.mkdir()
    rows = [
        {
            "title": "A",
            "context": CONTEXT,
            "question": entry["question"],
            "answers": {key: [answer[key] for answer in entry["answers"]] for key in ("text", "answer_start")},
        }
        for entry in [WHO, question("When?", "911"), {"question": "Why?", "answers": []}]
    ]
    for split in ("train", "validation"):
        datasets.Dataset.from_list(rows).to_parquet(hub / f"{split}.parquet")
    survey = reading.survey(Origin("qa", "squad", hub=str(hub)))
    from_hub = [row for row in reading.read(survey) if not is_reject(row)]
    assert from_hub == from_file
    assert survey.rejected == 2  # the second split repeats the first


def test_a_hub_that_cannot_be_reached_is_one_line():
    with pytest.raises(UserError, match="cannot load nyu-mll/blimp") as error:
        reading.survey(Origin("ra", "blimp"))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("task", "source", "accepted"), [("ra", "blimp", 1000), ("sva", "lgd", 5990), ("qa", "squad", 1506)]
)
def test_published_files_are_read_whole(shared, task, source, accepted):
    survey = reading.survey(Origin(task, source, path=str(shared / "data" / task)))
    assert survey.drawn == accepted
    assert len(list(reading.read(survey))) == survey.read
