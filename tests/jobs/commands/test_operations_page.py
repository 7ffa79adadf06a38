"""docs/operations.md says what the rules on operations are."""

from closelook.jobs.commands.listings.documents import rewritten
from closelook.jobs.commands.listings.operations import END, PAGE, START, page_table
from closelook.lrp_core.operations.table import NAMES


def test_the_page_is_what_the_rules_say():
    text = PAGE.read_text(encoding="utf-8")
    assert rewritten(text, page_table(), START, END) == text, (
        "run `python -m closelook.jobs.commands.listings.operations`"
    )


def test_every_rule_has_a_row():
    rows = [line for line in page_table().splitlines() if line.startswith("| `")]
    assert len(rows) == len(NAMES)
    assert all(row.count(" | ") == 2 for row in rows)
