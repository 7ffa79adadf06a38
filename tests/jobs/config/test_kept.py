"""A root keeps the configuration that it was last computed with."""

import pytest
import yaml

from closelook.jobs.config import RunConfig
from closelook.jobs.config.kept import FILE, Difference, differences, keeping, kept
from closelook.jobs.plan.cells import make_plan
from closelook.jobs.store import Damaged, Store
from closelook.lrp_core.records.types import UserError
from tests.jobs.small import config_of, prepared, rows_of


@pytest.fixture
def computed(tmp_path, model, inline, closelook):
    """(path of the configuration, root) of a run that has its relevance."""
    config = config_of(tmp_path / "root", model)
    prepared(config, rows_of(6))
    path = tmp_path / "small.yaml"
    path.write_text(config.model_dump_json())
    code, out, err = closelook("attribute", "--config", str(path))
    assert (code, err) == (0, "")
    assert "configuration kept in" not in out
    return str(path), config.root


def files(root):
    store = Store(root)
    return {path: store.modified_s(path) for path in store.files("", "", recursive=True)}


def test_commands_with_the_root_alone_use_what_it_was_computed_with(computed, closelook):
    _, root = computed
    code, out, _ = closelook("attribute", "--root", root)
    assert (code, "attribute: 0 computed, 3 up to date" in out) == (0, True)
    assert "nothing to do" in out
    _, out, _ = closelook("status", "--root", root)
    assert "3 cells: 3 done, 0 partial, 0 missing" in out
    _, out, _ = closelook("plan", "--root", root)
    assert f"plan of small in {root}" in out
    code, out, _ = closelook("gc", "--yes", "--root", root)
    assert (code, "0 files removed" in out) == (0, True)
    code, out, _ = closelook("evaluate", "--root", root)
    assert (code, "evaluate: 3 computed" in out) == (0, True)


def test_a_run_that_changes_it_says_which_keys_and_goes_on(computed, closelook):
    _, root = computed
    code, out, _ = closelook("attribute", "--root", root, "--set", "methods=[attnlrp, lrp]", "--set", "seed=1")
    assert code == 0
    lines = out.splitlines()
    begin = lines.index(f"the configuration kept in {root} changes:")
    methods = '  methods: ["attnlrp", "gradient_x_input", "random"] -> ["attnlrp", "lrp"]'
    assert lines[begin + 1 : begin + 4] == ["  seed: 0 -> 1", methods, "attribute: 1 computed, 1 up to date"]
    before = files(root)
    code, out, _ = closelook("attribute", "--root", root)
    assert (code, "configuration kept in" in out, "nothing to do" in out) == (0, False, True)
    assert files(root) == before


def test_garbage_is_told_by_the_roots_own_configuration_only(computed, closelook):
    path, root = computed
    before = files(root)
    code, out, err = closelook("gc", "--yes", "--config", path, "--set", "seed=1")
    assert (code, out) == (2, "")
    assert f"{root} was last computed with another configuration (seed: 0 -> 1): leave out --config" in err
    assert len(err.splitlines()) == 1
    assert files(root) == before
    assert closelook("gc", "--yes", "--config", path)[0] == 0, "the same one by another name"


def test_commands_that_only_look_may_look_by_another_and_change_nothing(computed, closelook):
    path, root = computed
    before = files(root)
    assert "2 done, 0 partial, 1 missing" in closelook("status", "--config", path, "--set", "seed=1")[1]
    closelook("plan", "--config", path, "--set", "seed=1")
    assert files(root) == before


def test_a_root_that_lost_its_configuration_is_not_taken_for_one_of_another(computed, closelook):
    path, root = computed
    Store(root).delete(FILE)
    before = files(root)
    for command in ("status", "run", "gc", "plan"):
        code, out, err = closelook(command, "--root", root)
        assert (code, out) == (1, "")
        assert f"{root} holds results, but its config.yaml is gone: try again, or add --config" in err
    assert files(root) == before
    code, out, _ = closelook("gc", "--config", path, "--set", "seed=1")
    assert (code, "2 files are not needed" in out) == (0, True)
    assert "configuration kept in" not in closelook("attribute", "--config", path)[1]
    assert kept(Store(root)) is not None


def test_a_configuration_stays_kept_if_a_store_fails_and_another_try_may_help(tmp_path):
    store = Store(str(tmp_path))
    config = RunConfig.load("smoke", store.root)
    with pytest.raises(Damaged), keeping(config, store):
        raise Damaged("a file is gone")
    assert kept(store) == config
    with pytest.raises(UserError), keeping(config.model_copy(update={"seed": 1}), store):
        raise UserError("no such task")
    assert kept(store) == config


@pytest.mark.parametrize(
    ("text", "message"), [("name: small\n", "config key 'tasks': Field required"), ("a: [", "is not readable YAML")]
)
def test_one_of_another_version_is_one_line_and_is_replaced_by_a_run_that_names_another(
    computed, closelook, text, message
):
    path, root = computed
    Store(root).write_bytes(FILE, text.encode())
    code, out, err = closelook("status", "--root", root)
    assert (code, out) == (2, "")
    assert message in err
    assert "add --config with the configuration to use" in err
    assert len(err.splitlines()) == 1
    assert closelook("attribute", "--config", path)[0] == 0
    assert "3 cells: 3 done" in closelook("status", "--root", root)[1]


def test_paths_that_are_filled_in_are_not_filled_in_anew(computed, closelook):
    _, root = computed
    code, _, err = closelook("status", "--root", root, "--set", "data=/elsewhere")
    assert code == 2
    assert f"the configuration kept in {root} has its paths filled in already: add --config" in err


def test_a_configuration_that_cannot_be_run_is_not_kept(computed, closelook):
    _, root = computed
    before = files(root)
    missing = ["--set", "tasks.sva.source=squad", "--set", "tasks.sva.path=/no/file"]
    assert closelook("prepare", "--root", root, *missing)[0] == 2
    assert files(root).keys() == before.keys()
    assert kept(Store(root)).tasks["sva"].source == "demo"


def test_a_mistake_beside_the_root_is_told_as_one_in_any_configuration(computed, closelook):
    _, root = computed
    code, _, err = closelook("attribute", "--root", root, "--set", "sed=1")
    assert (code, err) == (2, "error: unknown config key 'sed' (did you mean 'seed'?)\n")


@pytest.mark.parametrize("name", ["demo", "smoke", "paper", "real"])
def test_what_is_kept_is_what_was_loaded_wherever_the_root_is_now(name, tmp_path):
    (tmp_path / "sva").mkdir()
    overrides = [f"data={tmp_path}", "assets=null"] if name == "real" else []
    config = RunConfig.load(name, str(tmp_path / "root"), overrides)
    assert bool(config.left_out) == (name == "real"), "for want of data"
    store = Store(config.root)
    store.create()
    with keeping(config, store) as changed:
        assert changed == []
    (tmp_path / "root").rename(tmp_path / "moved")
    moved = Store(str(tmp_path / "moved"))
    assert kept(moved) == config.model_copy(update={"root": moved.root})
    assert "root" not in yaml.safe_load(moved.read_bytes(FILE))


def test_the_order_of_models_is_kept_though_it_is_no_difference(tmp_path):
    config = RunConfig.load("demo", str(tmp_path))
    store = Store(config.root)
    turned = config.model_copy(update={"models": config.models[::-1]})
    for variant in (config, turned):
        with keeping(variant, store) as changed:
            assert changed == []
    assert kept(store).models == turned.models


def test_differences_are_told_by_name_and_as_a_whole_for_what_came_or_went():
    then = {"seed": 0, "models": [{"name": "a", "id": "x", "gpus": 1}, {"name": "b", "id": "y"}], "heads": None}
    now = {"seed": 0, "models": [{"name": "c", "id": "z", "tasks": None}, {"name": "a", "id": "w", "gpus": 1}]}
    result = list(differences(then, now | {"heads": {"sva": 3}}))
    assert result == [
        Difference("models.a.id", "x", "w"),
        Difference("models.b", {"name": "b", "id": "y"}, None),
        Difference("models.c", None, {"name": "c", "id": "z", "tasks": None}),
        Difference("heads", None, {"sva": 3}),
    ]
    assert str(result[2]) == 'models.c: null -> {"name": "c", "id": "z"}'


def test_a_plan_by_the_kept_configuration_wants_the_same_cells(computed):
    path, root = computed
    store = Store(root)
    cells = [
        [planned.artifact for planned in make_plan(config, store).cells()]
        for config in (kept(store), RunConfig.load(path))
    ]
    assert cells[0] == cells[1]
