"""A root that is not there: commands that only read say so in one line, and commands that compute make it."""

import pytest

from closelook.jobs.config.kept import FILE
from tests.jobs.small import config_of, prepared, rows_of

READING = [
    ("status",),
    ("plan",),
    ("report",),
    ("gc",),
    ("audit",),
    ("config",),
    ("export", "--to", "exported"),
]


@pytest.mark.parametrize("arguments", READING)
@pytest.mark.parametrize("exists", [False, True])
def test_a_root_that_holds_no_run_is_one_line_for_commands_that_read(closelook, tmp_path, arguments, exists):
    root = tmp_path / "typo"
    if exists:
        root.mkdir()
        (root / "notes.txt").write_text("not a run")
    code, out, err = closelook(*arguments, "--root", str(root))
    assert (code, out) == (2, "")
    command = f"`closelook run --root {root} --config CONFIG`"
    assert err == f"error: there is no run in {root}: check the path, or start one there with {command}\n"
    assert [path.name for path in tmp_path.rglob("*")] == (["typo", "notes.txt"] if exists else [])


@pytest.mark.parametrize("typo", [0, 1])
def test_compare_of_a_root_that_is_not_there_is_one_line(closelook, model, tmp_path, typo):
    config = config_of(tmp_path / "root", model)
    prepared(config, rows_of(4))
    roots = [str(tmp_path / "root"), str(tmp_path / "root")]
    roots[typo] = str(tmp_path / "typo")
    code, out, err = closelook("compare", *roots)
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert f"{tmp_path / 'typo'} holds no run: compute one with" in err
    assert not (tmp_path / "typo").exists()


@pytest.mark.parametrize("command", ["status", "plan"])
def test_a_configuration_may_be_looked_at_before_its_root_is_made(closelook, tmp_path, command):
    code, out, err = closelook(command, "--config", "smoke", "--root", str(tmp_path / "new"))
    assert (code, err) == (1 if command == "status" else 0, "")
    assert out
    assert not (tmp_path / "new").exists()


def test_commands_that_compute_make_a_new_root(closelook, tmp_path):
    root = tmp_path / "new"
    settings = ("--set", "tasks={sva: {source: demo, limit: 2}}", "--set", "heads=null", "--set", "prune=null")
    code, _, err = closelook("prepare", "--config", "smoke", *settings, "--root", str(root))
    assert (code, err) == (0, "")
    assert (root / FILE).is_file()
    assert closelook("status", "--root", str(root))[0] == 1
