"""`closelook decisions`: the sheet of a case, from rows that explain-file wrote."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

TEXTS = {"A/1": "The famous telescope looked dull.", "a 1": "Your nephews looked very brilliant today."}


@pytest.fixture
def rows(closelook, inline, tmp_path):
    (tmp_path / "in.jsonl").write_text("".join(json.dumps({"id": i, "text": t}) + "\n" for i, t in TEXTS.items()))
    to = tmp_path / "rows.parquet"
    files = str(tmp_path / "in.jsonl"), str(to)
    assert closelook("explain-file", *files, "--model", "demo/bert-sentiment", "--method", "attnlrp,lrp")[0] == 0
    return to


def test_the_sheet_of_a_case_tells_the_decision_and_its_words(closelook, rows, tmp_path):
    to = tmp_path / "sheet.html"
    code, out, _ = closelook("decisions", str(rows), "a 1", str(to))
    assert code == 0
    assert str(to) in out
    sheet = to.read_text()
    assert "The model decided: positive, with a probability of" in sheet
    assert "brilliant +" in sheet
    assert "telescope" not in sheet


def test_what_does_not_fit_is_one_line(closelook, rows, tmp_path):
    other = tmp_path / "other.parquet"
    pq.write_table(pa.table({"a": [1]}), other)
    to = tmp_path / "sheet.html"
    for arguments, message in (
        ([rows, "a 2", to], "has no case 'a 2' (did you mean 'a 1'?)"),
        ([rows, "a 1", tmp_path / "none" / "sheet.html"], "cannot write"),
        ([other, "a 1", to], "give the file with a row for each word that explain-file or `export --relevance`"),
        ([tmp_path / "none.parquet", "a 1", to], "cannot read"),
    ):
        code, _, err = closelook("decisions", *map(str, arguments))
        assert code == 2
        assert message in err
        assert len(err.splitlines()) == 1
