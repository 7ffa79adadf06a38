"""Users' own samples: what is read, and every kind of row and file that is not."""

import bz2
import gzip
import json
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from closelook.evaluation.benchmark import reading
from closelook.evaluation.benchmark.labels import index_of
from closelook.evaluation.benchmark.reading import Origin
from closelook.evaluation.benchmark.samples import is_reject, meta_of
from closelook.evaluation.benchmark.sources import files
from closelook.evaluation.benchmark.sources.own import Wanted
from closelook.lrp_core.records.types import UserError

GOOD = {"text": "The keys to the cabinet ___ old.", "target": "are", "foil": "is", "evidence": "keys"}


def lines(*rows):
    return "".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows)


def read(tmp_path, content, name="mine.jsonl", columns=None, **options):
    file = tmp_path / name
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    demands = Wanted(**options)
    survey = reading.survey(Origin("mine", "samples", path=str(file), columns=columns or {}), fields=demands)
    rows = list(reading.read(survey, demands))
    accepted = [row for row in rows if not is_reject(row)]
    assert (len(accepted), len(rows) - len(accepted)) == (survey.drawn, survey.rejected)
    assert survey.read == len(rows) + survey.repeated
    assert survey.left == 0
    return rows


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
    rows += read(tmp_path, lines(labelled | {"cluster": "a review"}), output="label")
    assert [row["cluster"] for row in rows] == ["3", None, "a review"]
    assert {row["meta"] for row in rows} == {"{}"}, "it is not kept a second time"


@pytest.mark.parametrize("nothing", [None, "", []])
def test_columns_without_a_value_are_as_if_they_were_not_there(tmp_path, nothing):
    empty = dict.fromkeys(("label", "score", "cluster", "messages", "answer", "sources"), nothing)
    [row] = read(tmp_path, lines(GOOD | empty))
    assert (row["target"], row["label"], row["cluster"]) == ("are", None, None)


@pytest.mark.parametrize(
    ("written", "expected"),
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
def test_evidence_is_words_or_spans_of_the_text_as_written(tmp_path, written, expected):
    [row] = read(tmp_path, lines(GOOD | {"evidence": written}))
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
    ({"evidence": "The keys"}, "same content as an earlier row"),
    ({"cluster": "a"}, "same content as an earlier row"),
    ({"text": "The keys", "target": ...}, "'foil' without a slot"),
    ({"text": "The keys", "target": ..., "foil": ...}, "a text by itself"),
    ({"text": "The keys", "target": ..., "foil": ..., "label": "x"}, "a text by itself"),
    ({"text": ..., "review": "x"}, "no column 'text'"),
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


def parquet_of(rows):
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(rows), sink)
    return sink.getvalue().to_pybytes()


def test_dates_and_decimals_of_other_columns_are_kept_as_texts(tmp_path):
    moment = datetime(2024, 5, 17, 8, 30, tzinfo=UTC)
    other = {"id": moment.date(), "asked": moment, "at": moment.time(), "took": timedelta(hours=1)}
    other |= {"price": Decimal("1.50"), "all": [moment.date()]}
    [row] = read(tmp_path, parquet_of([GOOD | other]), "mine.parquet")
    assert meta_of(row)["columns"] == {
        "id": "2024-05-17",
        "asked": "2024-05-17T08:30:00+00:00",
        "at": "08:30:00",
        "took": "1:00:00",
        "price": "1.50",
        "all": ["2024-05-17"],
    }
    with pytest.raises(UserError, match="JSON cannot hold: 'photo' holds a bytes"):
        read(tmp_path, parquet_of([GOOD | {"photo": b"jpg"}]), "mine.parquet")


def damaged(content):
    """Parquet whose first page has no header any more, and whose footer is whole."""
    return content[:4] + bytes(40) + content[44:]


BAD_FILES = [
    ("mine.jsonl", "", "no usable row in the samples source of task mine; it has no rows"),
    ("mine.csv", "", "no usable row .* it has no rows"),
    ("mine.csv", "a,b\n1,2\n", "no usable row .* mine.csv:2: no column 'text'"),
    ("mine.csv", "text,text\n1,2\n", "two columns of one name: text, text"),
    ("mine.jsonl", "text,target\n", "no usable row .* mine.jsonl:1: not JSON"),
    ("mine.parquet", "text", "mine.parquet is not Parquet that can be read: "),
    ("mine.parquet", damaged(parquet_of([GOOD] * 99)), "mine.parquet is not Parquet that can be read: "),
    (
        "mine.txt",
        "text",
        r"cannot read .*mine.txt: its name must end in one of \.jsonl, \.json, \.csv, \.tsv, \.parquet",
    ),
    ("mine.json", "[1, 2", r"mine.json is not JSON: "),
    ("mine.json", "[1, 2]", r"no usable row .* mine.json\[0\]: not an object: int"),
    (
        "mine.csv",
        "texte,étiquette\nBon,1\n",
        r"no column 'text': the columns are texte, étiquette: name the text",
    ),
    ("mine.csv", "text,étiquette\nBon,1\n".encode("latin-1"), "mine.csv is not UTF-8: save it as UTF-8"),
    ("mine.csv", "text,étiquette\nBon,1\n".encode("utf-16"), "mine.csv is not UTF-8: save it as UTF-8"),
    ("mine.csv.gz", "text", "mine.csv.gz cannot be read: "),
    ("mine.csv.gz", gzip.compress(b"text,target\n" * 9999)[:-40], "mine.csv.gz cannot be read: "),
    ("mine.jsonl.zst", "text", "mine.jsonl.zst cannot be read: "),
]


@pytest.mark.parametrize(("name", "content", "message"), BAD_FILES)
def test_an_empty_or_wrong_file_is_one_line(tmp_path, name, content, message):
    with pytest.raises(UserError, match=message) as error:
        read(tmp_path, content, name)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["mine.jsonl", "mine.json", "mine.csv", "mine.tsv"])
def test_a_mark_of_the_encoding_at_the_beginning_of_a_file_is_no_part_of_it(tmp_path, name):
    content = {
        ".jsonl": lines(GOOD),
        ".json": json.dumps([GOOD], indent=1),
        ".csv": ",".join(GOOD) + "\n" + ",".join(GOOD.values()),
        ".tsv": "\t".join(GOOD) + "\n" + "\t".join(GOOD.values()),
    }[name.removeprefix("mine")]
    [row] = read(tmp_path, content.encode("utf-8-sig"), name)
    assert evidence(row) == ["keys"]


def test_the_lines_of_a_long_text_in_csv_are_no_rows_of_their_own(tmp_path):
    text = "Good, bad\n" * 14_000
    [row] = read(tmp_path, f'text,label\n"{text}",bad\n', "mine.csv", output="label", labels=("good", "bad"))
    assert row["text"] == text


def test_chats_of_the_same_words_in_other_messages_are_not_the_same_sample(tmp_path):
    def chat(role):
        return [{"role": role, "content": "Be brief."}, {"role": "user", "content": "Who?"}]

    rows = [{"messages": chat("system"), "answer": "Ann.", "id": 1}, {"messages": chat("user"), "answer": "Ann."}]
    rows += [{"prompt": "It rains. Who?", "answer": "Ann.", "sources": [sources]} for sources in ("It rains.", "rains")]
    chats = read(tmp_path, lines(*rows, rows[0]), output="token", answers=True)
    assert [is_reject(row) for row in chats] == [False, True, False, True]
    assert len(meta_of(chats[0])["repeated"]) == 1


def test_a_text_may_have_a_column_named_answer_and_a_prompt_without_one_is_told_so(tmp_path):
    labelled = {"text": "Good.", "label": "good", "answer": "Yes."}
    [row] = read(tmp_path, lines(labelled), output="label", labels=("good", "bad"))
    assert json.loads(row["meta"])["columns"] == {"answer": "Yes."}
    rows = read(tmp_path, lines({"prompt": "Who?", "answer": "Ann."}, {"prompt": "Who?", "answer": ""}), answers=True)
    assert rows[1]["reason"] == "empty target or foil"


def test_a_folder_without_samples_is_one_line(tmp_path):
    with pytest.raises(UserError, match=r"no \.jsonl or \.csv or \.tsv or \.parquet file at"):
        reading.survey(Origin("mine", "samples", path=str(tmp_path)))


def test_json_in_a_folder_is_read_where_a_pattern_names_it(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    (tmp_path / "mine.jsonl").write_text(lines(GOOD))
    survey = reading.survey(Origin("mine", "samples", path=str(tmp_path)))
    assert (survey.drawn, survey.rejected) == (1, 0)
    (tmp_path / "list.json").write_text(json.dumps([GOOD]))
    survey = reading.survey(Origin("mine", "samples", path=f"{tmp_path}/l*.json"))
    assert (survey.drawn, survey.rejected) == (1, 0)


TEXTS = [
    {"review": 'Good; really, "good"', "case": 7, "stars": "Positive"},
    {"review": "Bad", "case": 8, "stars": "0"},
    {"review": "Neither", "case": 9, "stars": ""},
]
NAMES = {"text": "review", "id": "case", "label": "stars"}
JUDGED = {"output": "label", "labels": ("negative", "positive")}


def separated(separator):
    quoted = ['"' + str(row[name]).replace('"', '""') + '"' for row in TEXTS for name in row]
    rows = [quoted[start : start + 3] for start in range(0, len(quoted), 3)]
    return "".join(separator.join(row) + "\n" for row in [list(TEXTS[0]), *rows]).encode()


FILES = {
    "mine.jsonl": lines(*TEXTS).encode(),
    "mine.json": json.dumps(TEXTS, indent=1).encode(),
    "lines.json": lines(*TEXTS).encode(),
    "mine.csv": separated(","),
    "semicolons.csv": separated(";"),
    "tabs.csv": separated("\t"),
    "mine.tsv": separated("\t"),
    "mine.csv.gz": gzip.compress(separated(";")),
    "mine.jsonl.gz": gzip.compress(lines(*TEXTS).encode()),
    "mine.jsonl.bz2": bz2.compress(lines(*TEXTS).encode()),
    "mine.json.zst": pa.Codec("zstd").compress(json.dumps(TEXTS).encode(), asbytes=True),
    "mine.parquet": parquet_of(TEXTS),
}


@pytest.mark.parametrize("name", FILES)
def test_every_file_gives_the_same_texts_by_the_names_of_its_columns(tmp_path, name):
    rows = read(tmp_path, FILES[name], name, NAMES, **JUDGED)
    assert [row["text"] for row in rows] == [row["review"] for row in TEXTS]
    assert [row["label"] for row in rows] == ["Positive", "0", None]
    assert [str(meta_of(row)["columns"]["id"]) for row in rows] == ["7", "8", "9"]
    assert all(row["slot"] is None and row["evidence"] == [] for row in rows)


def test_a_row_without_a_column_that_the_config_names_is_a_reject(tmp_path):
    _, bad = read(tmp_path, lines(TEXTS[0], {"review": "Bad"}), columns=NAMES, **JUDGED)
    assert (bad["reason"], bad["where"]) == ("no column 'case'", "mine.jsonl:2")
    assert bad["detail"] == "`columns` says that it holds id; the row's columns are review"


def test_a_column_of_another_meaning_gives_its_name_to_the_one_that_the_config_names(tmp_path):
    [row] = read(tmp_path, lines({"text": "A title", "review": "Good", "id": 1}), columns={"text": "review"}, **JUDGED)
    assert row["text"] == "Good"
    assert meta_of(row) == {"columns": {"id": 1}}


def test_further_rows_of_a_text_are_no_rejects_and_keep_their_columns(tmp_path):
    again = [{"review": "Bad", "case": at, "stars": "0"} for at in (20, 21)]
    rows = read(tmp_path, lines(*TEXTS, *again), columns=NAMES, **JUDGED)
    assert len(rows) == 3
    assert [meta_of(row).get("repeated") for row in rows] == [None, [{"id": 20}, {"id": 21}], None]


def test_a_survey_tells_repeated_rows_and_those_without_labels_and_its_digest_covers_them(tmp_path):
    file = tmp_path / "mine.jsonl"

    def survey(*rows):
        file.write_text(lines(*rows))
        return reading.survey(Origin("mine", "samples", path=str(file), columns=NAMES), fields=Wanted(**JUDGED))

    once, twice = survey(*TEXTS), survey(*TEXTS, TEXTS[2])
    assert (once.repeated, once.unlabelled) == (0, 1)
    assert (twice.repeated, twice.unlabelled, twice.read, twice.left) == (1, 1, 4, 0)
    assert once.digest != twice.digest


@pytest.mark.parametrize(
    ("row", "demands", "reason"),
    [
        ({"label": "postive"}, JUDGED, "unknown label"),
        ({"label": "2"}, JUDGED, "unknown label"),
        ({"label": 1}, JUDGED | {"numbered": False}, "a label by its number"),
        ({"label": "1"}, JUDGED | {"labels": ("0", "1", "2"), "numbered": False}, None),
        ({"label": 1.0}, JUDGED, None),
        ({"label": "LABEL_1"}, JUDGED, None),
        ({"labels": "positive"}, JUDGED, "unknown column 'labels'"),
        ({"store": "ours", "core": 1}, JUDGED, None),
        ({"score": 1}, JUDGED, "a score"),
        ({"label": "positive"}, {"output": "score"}, "a label"),
        ({}, {"output": "score"}, None),
        ({"target": "x", "slot": 1}, JUDGED, "a target"),
        ({"evidence": "Good"}, JUDGED, "evidence"),
        ({"evidence": "Good"}, JUDGED | {"evidence": True}, None),
        ({"evidence": "Good"}, JUDGED | {"evidence": False}, None),
        ({}, JUDGED | {"evidence": True}, "no evidence"),
    ],
)
def test_labels_and_evidence_are_as_the_task_wants_them(tmp_path, row, demands, reason):
    first = {"text": "Good", "evidence": "Good"} if demands.get("evidence") else {"text": "Good"}
    second = read(tmp_path, lines(first, {"text": "Good text", **row}), **demands)[1]
    assert second.get("reason") == reason
    if reason is None:
        assert bool(second["evidence"]) == bool(row.get("evidence") and demands["evidence"])


def test_words_without_evidence_are_samples_where_the_task_says_so(tmp_path):
    bare = {name: GOOD[name] for name in ("text", "target", "foil")}
    rows = read(tmp_path, lines(bare, GOOD | {"target": "were"}), evidence=False)
    assert [(row["target"], row["evidence"]) for row in rows] == [("are", []), ("were", [])]


@pytest.mark.parametrize(
    ("name", "labels", "expected"),
    [
        ("Positive ", ("NEGATIVE", "positive"), 1),
        ("1", ("negative", "positive"), 1),
        ("label_1", ("negative", "positive"), 1),
        ("1", ("LABEL_0", "LABEL_1"), 1),
        ("2", ("negative", "positive"), None),
        ("1", ("1", "2", "3"), 0),
        ("0", ("1", "2", "3"), None),  # not the first output: these numbers are names
        ("0", ("0", "1"), 0),
        ("-1", ("negative", "positive"), None),
        ("not entailment", ("ENTAILMENT", "not-entailment"), 1),
    ],
)
def test_a_label_is_known_by_its_name_in_any_case_or_by_its_number(name, labels, expected):
    assert index_of(name, labels) == expected


@pytest.mark.parametrize("name", ["mine.jsonl", "mine.csv"])
def test_a_file_without_line_ends_is_refused_before_it_fills_the_memory(tmp_path, monkeypatch, name):
    monkeypatch.setattr(files, "LONGEST", 200)
    (tmp_path / name).write_text("text\n" + "x" * 300)
    with pytest.raises(UserError, match="has a line of 0 MiB or more"):
        list(files.records(tmp_path / name))
