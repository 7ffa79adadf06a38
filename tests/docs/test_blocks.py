"""Every block of README and docs/ says where it runs as it stands, and by which test, or why it does not."""

import json
import re
from pathlib import Path

import pytest
import yaml

from closelook.jobs.config import RunConfig
from tests.docs.reader import BLOCK

ROOT = Path(__file__).parents[2]
PAGES = {path.name: path for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]}
BY_LETTERS = ("wheel", "nightly")  # marks of blocks that tests/docs/test_letters.py runs
EXTEND = "tests/docs/test_extend.py::test_"

#: Of each page, what a block of a clone holds (a file, or a command that needs development models), and its test.
RUN = {
    "extend.md": {
        "nearest = ": "tests/jobs/packages/test_installed.py::test_a_method_of_ones_own_is_in_the_report_of_a_run",
        "HALVED = ": f"{EXTEND}a_rule_that_users_choose_is_a_function_and_its_name_in_two_tables",
        "def composites": f"{EXTEND}a_command_is_a_function",
        "class SparsityConfig": f"{EXTEND}a_key_of_the_config_is_a_field_with_its_documentation",
        "def lengths_part": f"{EXTEND}a_part_of_the_report_is_one_module_and_one_line",
        "SPARSITY = versioned": f"{EXTEND}a_product_is_a_module_and_a_line",
        "SPARSITY = Product": f"{EXTEND}a_product_is_a_module_and_a_line",
    },
}  # fmt: skip


def claims_of(page: str, block: re.Match[str]) -> list[str]:
    """The entries of RUN for the page that the block contains; "settings" for YAML, of which one test covers all."""
    if block["language"] == "yaml":
        return ["settings"]
    return [words for words in RUN.get(page, ()) if words in block["code"]]


def to_run(page: Path) -> list[re.Match[str]]:
    """Its blocks of code. One of text is what a command prints, unless it shows the command too."""
    every = BLOCK.finditer(page.read_text(encoding="utf-8"))
    return [block for block in every if block["language"] != "text" or block["code"].startswith("$ ")]


@pytest.mark.parametrize("page", PAGES)
def test_a_block_says_where_it_runs_or_why_it_does_not(page):
    claims: list[str] = []
    for block in to_run(PAGES[page]):
        mark, first = block["mark"] or "", block["code"].partition("\n")[0]
        if mark in BY_LETTERS or mark.startswith("not run: "):
            continue
        held = claims_of(page, block)
        assert mark == "clone" or block["path"] or block["language"] in ("yaml", "toml"), f"{page}, `{first}`: no mark"
        assert len(held) == 1, f"{page}, `{first}`: run by {held}"
        claims += held
    of_code = [words for words in claims if words != "settings"]
    assert sorted(of_code) == sorted(RUN.get(page, ())), f"{page}: blocks that are not there, or not once"


@pytest.mark.parametrize("test", sorted({test for page in RUN.values() for test in page.values()}))
def test_the_test_that_runs_a_block_is_there(test):
    file, _, name = test.partition("::")
    assert re.search(rf"^def {name}\(", (ROOT / file).read_text(encoding="utf-8"), re.M)


SETTINGS = [
    (page, block["code"]) for page, path in PAGES.items() for block in to_run(path) if block["language"] == "yaml"
]


@pytest.mark.parametrize(("page", "code"), SETTINGS, ids=lambda value: value.partition("\n")[0])
def test_the_settings_of_a_page_are_those_of_a_config(page, code):
    """Put in place of those of a config that is shipped."""
    settings = yaml.safe_load(code)
    base = "demo" if "perturb" in settings else "smoke"  # which has all tasks
    config = RunConfig.load(base, overrides=[f"{key}={json.dumps(value)}" for key, value in settings.items()])
    read = config.model_dump(mode="json")
    for key in settings:
        assert read[key] != RunConfig.load(base).model_dump(mode="json")[key], f"{page}: {key} changes nothing"
