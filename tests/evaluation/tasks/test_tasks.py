"""Tasks as records, and which record a config's task has."""

import pytest

from closelook.evaluation.benchmark.demo import TASKS as DEMO_TASKS
from closelook.evaluation.benchmark.demo.labelled import JUDGED
from closelook.evaluation.benchmark.sources.base import Generated, Source
from closelook.evaluation.tasks import SOURCES, TASKS, Task, register, task_of
from closelook.lrp_core.records.types import UserError


def source(name, **changes):
    settings = {"title": name, "url": "", "licence": "", "suffixes": (), "records": iter, "rows": iter}
    return Source(name=name, **settings | changes)


@pytest.mark.parametrize("name", sorted(TASKS))
def test_every_task_tells_its_figure_and_its_evidence(name):
    task = TASKS[name]
    if task.evidence is not None:
        assert task.evidence_about
    if task.figure:  # of Close Look
        assert task.figure.startswith("Figure ")
        assert set(task.share) == {"masked", "causal"}
    assert all(SOURCES[source.name] is source for source in task.sources)
    assert task.is_published(task.sources[0].name) == isinstance(task.sources[0], Source)
    assert not task.is_published("demo")


def test_the_demo_language_feeds_the_tasks_it_has_sentences_for():
    fed = [task.name for task in TASKS.values() if any(isinstance(source, Generated) for source in task.sources)]
    assert sorted(fed) == sorted([*DEMO_TASKS, "next_word", *JUDGED, "shapes", "sources"])


def test_a_task_under_another_name_is_what_its_source_makes_it():
    task = task_of("short", "squad")
    assert (task.name, task.answer, task.evidence, task.scope) == ("short", True, "source", "context")
    assert task.figure == ""
    assert task_of("sva", "squad").answer  # the source decides, not the name


def test_the_users_own_file_makes_a_plain_task_or_feeds_a_known_one():
    assert task_of("mine", "samples") == Task(name="mine", title="mine")
    assert task_of("sva", "samples") is TASKS["sva"]


def test_a_source_of_several_tasks_does_not_make_another():
    fed = "ra, sva, qa, next_word, sentiment, similarity, brackets, triggers, shapes, sources"
    with pytest.raises(UserError, match=f"'demo' feeds the tasks {fed}, not 'mine'"):
        task_of("mine", "demo")


def test_a_package_cannot_take_the_name_of_a_task_or_of_a_source():
    with pytest.raises(UserError, match="their-package and closelook both bring a task named 'sva'"):
        register(Task(name="sva", title="other"), by="their-package")
    with pytest.raises(UserError, match="their-package and closelook both bring a source named 'lgd'"):
        register(Task(name="other", title="other", sources=(source("lgd", brings_evidence=True),)), by="their-package")


def test_evidence_that_nobody_finds_is_refused():
    with pytest.raises(
        UserError, match="other of their-package takes its evidence from its source, but bare brings none"
    ):
        register(Task(name="other", title="other", sources=(source("bare"),)), by="their-package")
    assert "bare" not in SOURCES
