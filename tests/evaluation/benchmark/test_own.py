"""Users' own samples: what is read, and every kind of row and file that is not."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from evaluation.benchmark import reading
from evaluation.benchmark.reading import Origin
from evaluation.benchmark.samples import is_reject
from lrp_core.types import UserError

GOOD = {"text": "The keys to the cabinet ___ old.", "target": "are", "foil": "is", "evidence": "keys"}


def lines(*rows):
    return "".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows)


def read(tmp_path, content, name="mine.jsonl"):
    file = tmp_path / name
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    return list(reading.read(reading.survey(Origin("mine", "samples", path=str(file)))))


def evidence(row):
    return [row["text"][start:end] for start, end in row["evidence"]]


def test_a_row_has_its_slot_where_the_mark_was_and_its_evidence_by_its_words(tmp_path):
    [row] = read(tmp_path, lines(GOOD | {"id": 7}))
    assert (row["text"][: row["slot"]], row["text"][row["slot"] :]) == ("The keys to the cabinet ", " old.")
    assert (row["target"], row["foil"], row["source"], row["scope"]) == ("are", "is", "samples", None)
    assert evidence(row) == ["keys"]
    assert json.loads(row["meta"]) == {"columns": {"id": 7}}


def test_a_cluster_is_what_alike_samples_share(tmp_path):
    labelled = {"text": "Good.", "label": "positive"}
    rows = read(tmp_path, lines(GOOD | {"cluster": 3}))
    rows += read(tmp_path, lines(GOOD | {"cluster": ""}))
    rows += read(tmp_path, lines(labelled | {"cluster": "a review"}))
    assert [row["cluster"] for row in rows] == ["3", None, "a review"]
    assert {row["meta"] for row in rows} == {"{}"}, "it is not kept a second time"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ([4, 8], ["keys"]),
        ([[4, 8]], ["keys"]),
        (["keys", "cabinet"], ["keys", "cabinet"]),
        ([[4, 8], "cabinet"], ["keys", "cabinet"]),
        ([[28, 31]], ["old"]),  # behind the mark, in the text as it is written
        (["The keys"], ["The keys"]),
        ("[4, 8]", ["keys"]),
        (" keys ", ["keys"]),
    ],
)
def test_evidence_is_words_or_spans_of_the_text_as_written(tmp_path, given, expected):
    [row] = read(tmp_path, lines(GOOD | {"evidence": given}))
    assert evidence(row) == expected


def test_a_slot_may_be_an_offset_and_a_foil_may_be_missing(tmp_path):
    bare = {"text": "The keys", "slot": 8, "target": "are", "evidence": "keys"}
    for slot in (8, 8.0, "8"):
        [row] = read(tmp_path, lines(bare | {"slot": slot, "foil": None}))
        assert (row["slot"], row["foil"]) == (8, None)


def test_the_three_formats_hold_the_same_samples(tmp_path):
    second = {"text": 'He said "go"\nand left ___', "target": "early", "foil": "", "evidence": '["He", [9, 11]]'}
    table = pa.Table.from_pylist([GOOD, second])
    quoted = "\ufefftext,target,foil,evidence\r\n" + "".join(
        ",".join('"' + row[name].replace('"', '""') + '"' for name in GOOD) + "\r\n" for row in (GOOD, second)
    )
    pq.write_table(table, tmp_path / "mine.parquet")
    expected = read(tmp_path, lines(GOOD, second))
    assert evidence(expected[1]) == ["He", "go"]
    assert read(tmp_path, quoted, "mine.csv") == expected
    assert read(tmp_path, (tmp_path / "mine.parquet").read_bytes(), "mine.parquet") == expected


BAD_ROWS = [
    ("{", "not JSON"),
    ("[1]", "not an object"),
    ({"text": None}, "column 'text' is not str"),
    ({"text": " ___ ", "evidence": [0, 1]}, "empty text"),
    ({"text": "The keys"}, "no slot"),
    ({"text": "The keys ___ and ___ old"}, "more than one ___"),
    ({"text": "The keys ____ old"}, "the slot is not three underscores"),
    ({"slot": 3}, "both a slot and ___"),
    ({"text": "The keys", "slot": 9}, "slot outside the text"),
    ({"text": "The keys", "slot": -1}, "slot outside the text"),
    ({"text": "The keys", "slot": "end"}, "column 'slot' is not int"),
    ({"text": "The keys", "slot": 1.5}, "column 'slot' is not int"),
    ({"text": "The keys", "slot": True}, "column 'slot' is not int"),
    ({"target": " "}, "empty target or foil"),
    ({"target": 3}, "column 'target' is not str"),
    ({"foil": ["is"]}, "column 'foil' is not str"),
    ({"foil": "are"}, "target equals foil"),
    ({"evidence": None}, "no evidence"),
    ({"evidence": ""}, "no evidence"),
    ({"evidence": []}, "no evidence"),
    ({"evidence": "key"}, "evidence is not in the text"),
    ({"text": "The keys of keys ___"}, "evidence occurs more than once"),
    ({"evidence": 4}, "evidence is neither words nor spans"),
    ({"evidence": [4, 8, 9]}, "evidence is neither words nor spans"),
    ({"evidence": [[4, "8"]]}, "evidence is neither words nor spans"),
    ({"evidence": [8, 4]}, "span outside the text"),
    ({"evidence": [4, 80]}, "span outside the text"),
    ({"evidence": [20, 26]}, "evidence across the slot"),
    ({"evidence": "___"}, "evidence across the slot"),
    ({"foill": "is", "foil": ...}, "unknown column 'foill'"),
    ({"target": ...}, "no column 'target'"),
    (GOOD, "same content as an earlier row"),
]


@pytest.mark.parametrize(("change", "reason"), BAD_ROWS)
def test_a_bad_row_is_rejected_with_its_line_and_the_reason(tmp_path, change, reason):
    """`...` leaves a column out."""
    row = change
    if isinstance(change, dict):
        row = {name: value for name, value in (GOOD | change).items() if value is not ...}
    good, bad = read(tmp_path, lines(GOOD, "", row))
    assert not is_reject(good)
    assert (bad["reason"], bad["where"], bad["stage"]) == (reason, "mine.jsonl:3", "source")


HEADER = "text,target,foil,evidence\n"
BAD_LINES = [
    ("a ___,are,is\n", "not as many fields as the header has", 3),
    ("a ___,are,is,a,b\n", "not as many fields as the header has", 3),
    (b"a ___,\xff,is,a\n", "not UTF-8", 3),
    ('a ___,"are" x,is,a\n', "not CSV", 3),
    ('"a\nb ___",are,are,a\n', "target equals foil", 3),
    ('a ___,"are\n', "not CSV", 3),
]


@pytest.mark.parametrize(("line", "reason", "number"), BAD_LINES)
def test_a_bad_row_of_csv_is_rejected_with_its_line(tmp_path, line, reason, number):
    good = "The keys ___,are,is,keys\n"
    line = line if isinstance(line, bytes) else line.encode()
    first, bad = read(tmp_path, (HEADER + good).encode() + line, "mine.csv")
    assert not is_reject(first)
    assert (bad["reason"], bad["where"]) == (reason, f"mine.csv:{number}")


def test_a_bad_row_of_parquet_is_rejected_with_its_number(tmp_path):
    pq.write_table(pa.Table.from_pylist([GOOD, GOOD | {"target": None}]), tmp_path / "x.parquet")
    _, bad = read(tmp_path, (tmp_path / "x.parquet").read_bytes(), "mine.parquet")
    assert (bad["reason"], bad["where"]) == ("column 'target' is not str", "mine.parquet:2")


BAD_FILES = [
    ("mine.jsonl", "", "no usable row in the samples source of task mine; there are none"),
    ("mine.csv", "", "no usable row .* there are none"),
    ("mine.csv", "a,b\n1,2\n", "no usable row .* mine.csv:2: no column 'text'"),
    ("mine.csv", "text,text\n1,2\n", "two columns of one name: text, text"),
    ("mine.jsonl", "text,target\n", "no usable row .* mine.jsonl:1: not JSON"),
    ("mine.parquet", "text", "mine.parquet is not Parquet that can be read: "),
    ("mine.txt", "text", r"mine.txt is no \.jsonl, \.csv, \.parquet file"),
]


@pytest.mark.parametrize(("name", "content", "message"), BAD_FILES)
def test_an_empty_or_wrong_file_is_one_line(tmp_path, name, content, message):
    with pytest.raises(UserError, match=message) as error:
        read(tmp_path, content, name)
    assert "\n" not in str(error.value)


def test_a_folder_without_samples_is_one_line(tmp_path):
    with pytest.raises(UserError, match=r"no \.jsonl or \.csv or \.parquet file at"):
        reading.survey(Origin("mine", "samples", path=str(tmp_path)))
