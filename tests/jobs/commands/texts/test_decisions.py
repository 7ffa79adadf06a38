"""`closelook decisions`: pages and data of rows that explain-file wrote."""

import csv
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

TEXTS = {"A/1": "The famous telescope looked dull.", "a 1": "Your nephews looked very brilliant today."}


@pytest.fixture
def rows(closelook, tmp_path):
    (tmp_path / "in.jsonl").write_text("".join(json.dumps({"id": i, "text": t}) + "\n" for i, t in TEXTS.items()))
    to = tmp_path / "rows.parquet"
    files = str(tmp_path / "in.jsonl"), str(to)
    assert closelook("explain-file", *files, "--model", "demo/bert-sentiment", "--method", "attnlrp,lrp")[0] == 0
    return to


def test_pages_link_to_sheets_of_cases_and_data_lie_beside(closelook, rows, tmp_path):
    site = tmp_path / "site"
    code, out, _ = closelook("decisions", str(rows), str(site), "--case", "a 1")
    assert code == 0
    assert f"case a 1 of demo/bert-sentiment: {site}/cases/a-1.html" in out
    sheet = (site / "cases" / "a-1.html").read_text()
    assert "The model decided: positive, with a probability of" in sheet
    assert "brilliant +" in sheet
    index = (site / "index.html").read_text()
    for name in ("cases/a-1.html", "cases/A-1-2.html"):
        assert f'href="{name}"' in index
        assert (site / name).exists()
    pairs = list(csv.DictReader((site / "disagreements.csv").read_text().splitlines()))
    assert {(pair["id"], pair["first"], pair["second"]) for pair in pairs} == {(i, "attnlrp", "lrp") for i in TEXTS}
    words = {row["word"] for row in csv.DictReader((site / "importance.csv").read_text().splitlines())}
    assert {"telescope", "brilliant"} <= words
    assert closelook("decisions", str(rows), str(site))[0] == 0, "it writes its own folder anew"


def test_what_does_not_fit_is_one_line(closelook, rows, tmp_path):
    full = tmp_path / "full"
    full.mkdir()
    (full / "mine.txt").write_text("mine")
    other = tmp_path / "other.parquet"
    pq.write_table(pa.table({"a": [1]}), other)
    for arguments, message in (
        ([rows, tmp_path / "new", "--case", "a 2"], "has no case 'a 2' (did you mean 'a 1'?)"),
        ([rows, full], "is not empty, and holds no pages of this command: name another folder"),
        (
            [other, tmp_path / "new"],
            "give the file with a row for each word that explain-file or `export --relevance`",
        ),
        ([tmp_path / "none.parquet", tmp_path / "new"], "cannot read"),
    ):
        code, _, err = closelook("decisions", *map(str, arguments))
        assert code == 2
        assert message in err
        assert len(err.splitlines()) == 1
