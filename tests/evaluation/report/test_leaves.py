"""Records in leaves: all of them are there once, in order, and nothing in them can become markup or run."""

import json
import re

import pytest

from closelook.evaluation.report.explorers import FIELDS, sample_explorer
from closelook.evaluation.report.heatmaps.tokens import Line, data
from closelook.evaluation.report.leaves import Leaves, escaped_json, script_hash
from closelook.evaluation.report.page import Provenance, explain_page
from tests.leaves import first_leaf, island

HOSTILE = "</script><script>alert(1)</script> & \u2028 <!--"


def records_of(leaves):
    """The records of every leaf, read from what the site holds."""
    texts = [leaves.first, *(leaves.files[f"{leaves.name}/{at}.html"] for at in range(1, len(leaves.starts) - 1))]
    first, *others = texts
    written = [json.loads(first)["first"], *(island(text, "leaf") for text in others)]
    assert [sum(map(len, written[:at])) for at in range(len(written) + 1)] == list(leaves.starts)
    return [record for leaf in written for record in leaf]


@pytest.mark.parametrize("count", [0, 1, 7, 40])
def test_every_record_is_in_one_leaf_and_they_keep_their_order(count):
    records = [{"number": at, "text": "x" * (at % 9)} for at in range(count)]
    leaves = Leaves.of("numbers", iter(records), budget_bytes=100)
    assert records_of(leaves) == records
    assert all(len(array) <= 103 for array in leaves.arrays)
    assert len(leaves.files) == len(leaves.arrays) - 1


def test_a_record_larger_than_a_leaf_has_one_of_its_own():
    leaves = Leaves.of("texts", ["a", "b" * 500, "c"], budget_bytes=100)
    assert leaves.starts == (0, 1, 2, 3)
    assert records_of(leaves) == ["a", "b" * 500, "c"]


def test_a_leaf_admits_its_own_line_of_script_and_nothing_in_it_ends_its_data():
    (leaf,) = Leaves.of("texts", ["first", HOSTILE], budget_bytes=1).files.values()
    programs = re.findall(r"<script>(.*?)</script>", leaf, re.S)
    assert len(programs) == 1
    assert f"default-src 'none'; script-src '{script_hash(programs[0])}'" in leaf
    assert island(leaf, "leaf") == [HOSTILE]


def test_json_for_a_script_element_gives_back_the_data_and_cannot_end_it():
    text = escaped_json([{"text": HOSTILE}])
    assert not set("<>&\u2028") & set(text)
    assert json.loads(text) == [{"text": HOSTILE}]
    with pytest.raises(ValueError, match="JSON"):
        escaped_json(float("nan"))


def entries(count):
    for at in range(count):
        for model in ("a", "b"):
            facts = {"sample_id": f"s{at}", "model": model, "task": "sva", "correct": at % 2 == 0, "attractors": at % 3}
            lines = [Line("LRP", [0.1, 1.0], "target"), Line("Random", [0.2, 0.1])]
            yield data(["The", " key"], lines, text="The key" * 40, **facts)


def test_a_line_of_the_list_says_what_filters_ask_and_its_entry_has_the_same_number():
    explorer = sample_explorer(entries(30), budget_bytes=2000)
    lines = [dict(zip(FIELDS["sample"], line, strict=True)) for line in records_of(explorer.index)]
    full = records_of(explorer.entries)
    assert len(lines) == len(full) == 60
    assert len(explorer.names) == 30
    for line, entry in zip(lines, full, strict=True):
        for name in ("sample_id", "model", "correct", "disagreement"):
            assert line[name] == entry[name]
        assert entry["text"].startswith(line["text"][:-1])
        assert len(line["text"]) <= 140
    choices = {"task": ["sva"], "model": ["a", "b"], "attractors": [0, 1, 2], "explanation": ["target"]}
    assert explorer.choices == choices


def test_a_page_of_one_explained_text_holds_every_record_and_admits_no_frame():
    page = explain_page(list(entries(2000)), "why", Provenance("explain", "", {"closelook": "1"}))
    assert len(first_leaf(page, "samples")) == 4000
    assert "frame-src" not in page
