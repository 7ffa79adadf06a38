"""A root says which format it has, and a closelook that does not know it refuses it."""

import json
import re

import pytest

import closelook as front


def test_a_root_of_a_later_format_is_refused_by_name(root):
    path = root.folder / "format.json"
    assert json.loads(path.read_text())["format"] == 2
    path.write_text(json.dumps({"format": 3, "closelook": "9.1"}))
    for command in ("run", "status", "audit", "gc", "report"):
        code, printed = root.command(command)
        assert code == 2
        assert re.search(
            r"root \S+ has format 3, which closelook 9.1 wrote; this is closelook .* install closelook 9.1 or later\n",
            printed,
        )
        assert printed.count("\n") == 1
    with pytest.raises(ValueError, match="has format 3"):
        front.load(str(root.folder))
    path.write_text("{")
    code, printed = root.command("status")
    assert code == 2
    assert "does not say which format the root has" in printed


def test_a_root_without_a_number_is_an_older_one_and_gets_this_version_s_with_the_next_manifest(root):
    path = root.folder / "format.json"
    path.unlink()
    assert root.command("status")[0] == 0
    assert not path.exists()
    (root.folder / "report/index.html").unlink()
    assert root.command("report")[0] == 0
    assert json.loads(path.read_text())["format"] == 2
