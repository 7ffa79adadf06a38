"""The image: what the Dockerfile holds."""

import re
import subprocess
import sys
from pathlib import Path

from tests.jobs.cluster.test_deploy import DEPLOY, REPOSITORY, nightly


def build_arguments() -> dict[str, str]:
    """The arguments of the image's build with their defaults."""
    return dict(re.findall(r'^ARG (\w+)="(.*)"$', (DEPLOY / "Dockerfile").read_text(), re.MULTILINE))


def test_the_images_parser_and_weights_are_those_that_the_config_asks_for():
    tasks = nightly().tasks.values()
    first_choices = {task.spacy[0] for task in tasks if task.spacy}
    assert {name.rpartition("-")[0] for name in build_arguments()["SPACY_PIPELINES"].split()} == first_choices
    assert set(build_arguments()["FASTCOREF_WEIGHTS"].split()) == {task.coref for task in tasks if task.coref}


def test_the_image_installs_torch_before_sources_are_copied():
    lines = (DEPLOY / "Dockerfile").read_text().splitlines()
    assert lines.index("RUN pip install -c constraints.txt torch") < lines.index("COPY . .")


def test_the_image_holds_every_package_and_nothing_of_this_machine_and_runs_as_nobody_in_particular():
    lines = (DEPLOY / "Dockerfile").read_text().splitlines()
    left_out = {line for line in (REPOSITORY / ".dockerignore").read_text().splitlines() if not line.startswith("#")}
    assert "COPY . ." in lines
    assert not {"src", *(link.name for link in (REPOSITORY / "src" / "closelook").iterdir())} & left_out
    assert {".git", ".venv", "runs"} <= left_out
    assert [line for line in lines if line.startswith("USER ")] == ["USER 1000"]
    installing = [line for line in lines if "pip install" in line]
    assert all("-c constraints.txt" in line for line in installing)


def test_the_dockerfile_passes_hadolint():
    hadolint = Path(sys.executable).with_name("hadolint")
    checked = subprocess.run([hadolint, DEPLOY / "Dockerfile"], capture_output=True, text=True)
    assert (checked.returncode, checked.stdout) == (0, "")
