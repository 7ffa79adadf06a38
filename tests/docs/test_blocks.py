"""Every code block of the README and of docs/ runs in a test, or says in the line before it why it does not."""

import json
import re
from pathlib import Path

import pytest
import yaml

from jobs.config import RunConfig

ROOT = Path(__file__).parents[2]
PAGES = {path.name: path for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]}
MARK = r"(?:^<!-- not run: (?P<why>[^\n]+) -->\n)?"
BLOCK = re.compile(rf"{MARK}^```(?P<language>\w+)(?: \S+)?\n(?P<code>.*?)^```$", re.S | re.M)
PAGE = "tests/docs/test_pages.py::test_"
EXTEND = "tests/docs/test_extend.py::test_"
INSTALLED = "tests/jobs/packages/test_installed.py::test_the_readmes_blocks_run_where_only_the_wheel_is"
NEURONS = "tests/jobs/commands/test_contexts.py::test_five_neurons_answer_to_what_their_page_says"

#: Of each page, what a block holds, and the test that runs it as it stands there.
RUN = {
    "README.md": {
        "closelook.explain(": f"{PAGE}a_sentence_is_explained_through_the_front_door_as_the_readme_says",
        "closelook explain --model": INSTALLED,
        "cat > mine.jsonl": INSTALLED,
        "NEAREST = Method(": f"{PAGE}a_method_of_the_readme_explains",
        "entry-points": INSTALLED,
        "closelook.load(": INSTALLED,
        "closelook compare": INSTALLED,
    },
    "answers.md": {
        **dict.fromkeys(
            ("explanation.shares()", "closelook explain", "messages=[", "reasoning=(0, 8)"),
            f"{PAGE}answers_are_explained_as_their_page_says",
        ),
        "log.jsonl <<": f"{PAGE}a_log_becomes_a_page_of_sources_as_the_page_of_answers_says",
    },
    "decisions.md": {
        **dict.fromkeys(
            ("reviews.csv <<", "import pandas", "closelook decisions"),
            f"{PAGE}a_file_of_decisions_is_explained_as_its_page_says",
        ),
    },
    "extend.md": {
        "[build-system]": f"{EXTEND}the_package_is_shown_as_it_is",
        "EMBEDDING_POWER = ": f"{EXTEND}the_package_is_shown_as_it_is",
        "OPEN_LOOP = replace": f"{EXTEND}a_rule_of_the_package_changes_the_gradient_that_its_method_reads",
        "HALVED = ": f"{EXTEND}a_rule_that_users_choose_is_a_function_and_its_name_in_two_tables",
        "def composites": f"{EXTEND}a_command_is_a_function",
        "class SparsityConfig": f"{EXTEND}a_key_of_the_config_is_a_field_with_its_documentation",
        "MLPS = Finer": f"{EXTEND}a_finer_relevance_is_a_record_its_field_and_its_reader",
        "class MlpRelevance": f"{EXTEND}a_finer_relevance_is_a_record_its_field_and_its_reader",
        "CHOSEN = ": f"{EXTEND}the_package_is_shown_as_it_is",
        "PAIRS = ": f"{EXTEND}the_package_is_shown_as_it_is",
        "RENAMED = ": f"{EXTEND}the_package_is_shown_as_it_is",
        "TORCH_CLASSIFIER = ": f"{EXTEND}the_package_is_shown_as_it_is",
        "class RenamedConfig": f"{EXTEND}the_package_is_shown_as_it_is",
        "def lengths_part": f"{EXTEND}a_part_of_the_report_is_one_module_and_one_line",
        "SPARSITY = versioned": f"{EXTEND}a_product_is_a_module_and_a_line",
        "SPARSITY = Product": f"{EXTEND}a_product_is_a_module_and_a_line",
        "ENTROPY = Product": f"{EXTEND}the_package_is_shown_as_it_is",
    },
    "finetune.md": {
        "import random": f"{PAGE}the_fine_tuning_page_teaches_a_model_the_words_of_a_task",
    },
    "methods.md": {"AutoTokenizer": f"{PAGE}a_method_is_a_function_as_its_page_says"},
    "neurons.md": {
        **{f"closelook examples {neuron} ": NEURONS for neuron in ("1.82", "1.322", "1.330", "2.239", "4.290")},
        "--set 0.64=8": "tests/jobs/commands/test_steering.py::test_steering_runs_as_its_page_says",
    },
    "notebooks.md": {
        **dict.fromkeys(
            (
                *("explanation.to_frame()", "answers.to_frame()", "explained)", "closelook.load("),
                "LLMAttributionResult(",
            ),
            f"{PAGE}notebooks_can_do_what_their_page_says",
        ),
        "closelook.compare(": "tests/jobs/notebook/test_comparing.py::test_notebooks_compare_as_their_page_says",
        "from inseq": f"{PAGE}inseq_reads_what_an_answer_is_explained_by",
    },
    "trust.md": {"closelook verify": "tests/jobs/commands/test_verify.py::test_a_model_is_verified_as_the_page_says"},
    "store.md": {
        **dict.fromkeys(
            ("closelook.load(", "import pandas", "pq.read_table", "load_dataset("),
            f"{PAGE}the_store_is_read_as_its_page_says",
        ),
        "SELECT": f"{PAGE}the_stores_query_runs_in_duckdb",
    },
}  # fmt: skip


def claims_of(page: str, block: re.Match[str]) -> list[str]:
    """The entries of RUN for the page that the block contains; "settings" for YAML, of which one test covers all."""
    if block["language"] == "yaml":
        return [] if block["why"] else ["settings"]
    return [words for words in RUN.get(page, ()) if words in block["code"]]


def to_run(page: Path) -> list[re.Match[str]]:
    """Its blocks of code. One of text is what a command prints, unless it shows the command too."""
    every = BLOCK.finditer(page.read_text(encoding="utf-8"))
    return [block for block in every if block["language"] != "text" or block["code"].startswith("$ ")]


@pytest.mark.parametrize("page", PAGES)
def test_a_block_runs_in_a_test_or_says_why_not(page):
    claims: list[str] = []
    for block in to_run(PAGES[page]):
        held = claims_of(page, block)
        first = block["code"].partition("\n")[0]
        assert len(held) == (block["why"] is None), f"{page}, `{first}`: run by {held}, not run: {block['why']}"
        claims += held
    of_code = [words for words in claims if words != "settings"]
    assert sorted(of_code) == sorted(RUN.get(page, ())), f"{page}: blocks that are not there, or not once"


@pytest.mark.parametrize("test", sorted({test for page in RUN.values() for test in page.values()}))
def test_the_test_that_runs_a_block_is_there(test):
    file, _, name = test.partition("::")
    assert re.search(rf"^def {name}\(", (ROOT / file).read_text(encoding="utf-8"), re.M)


SETTINGS = [
    (page, block["code"])
    for page, path in PAGES.items()
    for block in to_run(path)
    if block["language"] == "yaml" and block["why"] is None
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
