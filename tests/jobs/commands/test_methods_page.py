"""docs/methods.md says what the records say."""

from closelook.jobs.commands.listings.documents import rewritten
from closelook.jobs.commands.listings.records import END, PAGE, START, page_table
from closelook.jobs.methods import METHODS
from closelook.lrp_core.records.registry import OURS


def test_the_page_is_what_the_records_say():
    text = PAGE.read_text(encoding="utf-8")
    assert rewritten(text, page_table(), START, END) == text, "run `python -m closelook.jobs.commands.listings.records`"


def test_every_method_of_ours_has_a_row_with_its_source():
    rows = [line for line in page_table().splitlines() if line.startswith("| `")]
    assert [row.split("`")[1] for row in rows] == [name for name in METHODS if METHODS.owner(name) == OURS]
    assert all(len(row.split(" | ")) == 7 for row in rows)
