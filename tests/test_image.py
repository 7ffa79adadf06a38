"""`make image` reads the Dockerfile, to carry it out in a Debian of its own."""

import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def image():
    return runpy.run_path(str(ROOT / ".ci" / "image.py"))


def test_comments_go_and_continued_lines_are_one_instruction(image):
    text = 'FROM a\n# first\nRUN one \\\n    # inside\n    && two\n\ncmd ["x"]\n'
    assert list(image["instructions"](text)) == [("FROM", "a"), ("RUN", "one && two"), ("CMD", '["x"]')]


def test_values_are_those_of_a_shell(image):
    assert image["pairs"]('A="one two" B=3 C=') == {"A": "one two", "B": "3", "C": ""}


def test_a_copy_has_what_the_image_is_made_of_and_no_more(image, tmp_path):
    made = image["Image"](tmp_path / "root", {}, folder="/app")
    made.follow("WORKDIR", "/app")
    made.follow("COPY", ". .")
    copied = tmp_path / "root" / "app"
    assert (copied / "jobs" / "deploy" / "Dockerfile").exists()
    assert (copied / "constraints.txt").exists()
    assert not [name for name in (".git", ".ci", ".venv", "tests") if (copied / name).exists()]
    assert not [*copied.rglob("__pycache__"), *copied.rglob("*.egg-info")]


def test_a_single_file_is_copied_alone(image, tmp_path):
    made = image["Image"](tmp_path / "root", {}, folder="/app")
    made.follow("WORKDIR", "/app")
    made.follow("COPY", "constraints.txt .")
    assert [path.name for path in (tmp_path / "root" / "app").iterdir()] == ["constraints.txt"]


def test_what_is_given_goes_before_the_dockerfiles_own(image, tmp_path):
    made = image["Image"](tmp_path, {"A": ""})
    made.follow("ARG", 'A="own"')
    made.follow("ARG", "B=own")
    made.follow("ENV", "C=1 D=2")
    made.follow("ENV", "D=3")
    assert (made.arguments, made.variables) == ({"A": "", "B": "own"}, {"C": "1", "D": "3"})


@pytest.mark.parametrize(
    ("instruction", "message"),
    [
        (("HEALTHCHECK", "NONE"), "does not know the instruction HEALTHCHECK"),
        (("FROM", "alpine"), "the base alpine is none"),
    ],
)
def test_what_cannot_be_carried_out_is_refused_by_name(image, tmp_path, instruction, message):
    with pytest.raises(SystemExit, match=message):
        image["Image"](tmp_path, {}).follow(*instruction)
