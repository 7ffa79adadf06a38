"""The command line: bad input is one line and exit code 2, and nothing is half-written."""

import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time

import psutil
import pytest
from typer.main import get_command

from benchmarks import BENCHES
from closelook.jobs.__main__ import app
from closelook.jobs.commands.roots import commands
from closelook.jobs.plan.cells import make_plan
from closelook.jobs.store import TEMPORARY, Ledger, Store
from closelook.jobs.store.lock import run_lock
from tests.jobs.hub import Hub
from tests.jobs.small import REPOSITORY, config_of, ended, prepared, rows_of, save_model
from tests.jobs.small import closelook as run_closelook
from tests.patience import PATIENCE_S


@pytest.fixture
def config_file(tmp_path, model):
    """A config of the small model, whose views are in the store."""
    config = config_of(tmp_path / "root", model)
    store = prepared(config, rows_of(6))
    path = tmp_path / "small.yaml"
    path.write_text(config.model_dump_json())
    return str(path), config, store


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--config", "dmo"], "no config 'dmo'"),
        (["--set", "tasks.foo.source=demo"], "the source 'demo' feeds the tasks ra, "),
        (["--set", "token_budgt=3"], "did you mean 'token_budget'?"),
        (["--set", "methods=[atnlrp]"], "unknown method 'atnlrp' (did you mean 'attnlrp'?)"),
        (["--set", "models.gpt2.id=demo/gtp2"], "unknown id 'demo/gtp2' (did you mean 'demo/gpt2'?)"),
        (["--set", "models.gpt2.id=/no/model"], "there is no directory /no/model"),
        (["--root", "/dev/null/run"], "cannot write to the root /dev/null/run"),
        (["--root", "ftp://host/run"], "ftp:// is not supported"),
        (["--set", "tasks.sva.source=squad", "--set", "tasks.sva.path=/no/file"], "/no/file"),
        (["--set", "token_budget=many"], "'token_budget': expected a whole number, not 'many'"),
        (["--set", "methods=lrp"], "'methods': expected a list, as in [a, b], not 'lrp'"),
        (
            ["--set", "ray.address=http://127.0.0.1:8265"],
            "is the address of a Ray dashboard, not of a cluster: send the job there with `closelook",
        ),
        (["--root", __file__], "is a file: name a folder"),
        (["--root", ""], "no root is given: name a folder"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(closelook, tmp_path, arguments, message):
    root = tmp_path / "root"
    where = [] if "--root" in arguments else ["--root", str(root)]
    code, out, err = closelook(
        "run", *(["--config", "smoke"] if "--config" not in arguments else []), *where, *arguments
    )
    assert code == 2
    assert out == ""
    assert message in err
    assert len(err.strip().splitlines()) == 1
    assert not root.exists() or [path for path in root.rglob("*") if path.is_file()] == []


def test_a_cluster_that_does_not_answer_is_one_line_and_nothing_is_prepared(closelook, monkeypatch, tmp_path):
    monkeypatch.setattr("ray.init", lambda **_: pytest.fail("Ray itself tries for minutes"))
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # nobody listens there, and nobody else gets it
        address = f"127.0.0.1:{closed.getsockname()[1]}"
        arguments = ("--config", "smoke", "--root", str(tmp_path / "root"), "--set", f"ray.address={address}")
        code, out, err = closelook("run", *arguments)
    assert (code, out) == (1, "")
    assert f"no Ray cluster answers at {address}" in err
    assert len(err.strip().splitlines()) == 1
    assert not (tmp_path / "root").exists()


def test_a_store_that_denies_access_is_one_line(closelook, monkeypatch, tmp_path):
    denied = OSError("AWS Error ACCESS_DENIED during HeadObject operation:\nno credentials")
    monkeypatch.setattr(Store, "manifests", lambda self: (_ for _ in ()).throw(denied))
    code, _, err = closelook("status", "--config", "smoke", "--root", str(tmp_path))
    assert code == 1
    assert err == "error: AWS Error ACCESS_DENIED during HeadObject operation: no credentials\n"


def test_a_root_in_use_is_one_line_and_exit_code_1(closelook, config_file):
    path, _, store = config_file
    with run_lock(store):
        code, _, err = closelook("attribute", "--config", path)
    assert code == 1
    assert "is in use by process" in err


def test_status_counts_cells_and_says_by_its_exit_code_whether_all_are_done(closelook, config_file):
    path, config, store = config_file
    cells = [planned.artifact for planned in make_plan(config, store).cells()]
    code, out, _ = closelook("status", "--config", path)
    assert code == 1
    assert "3 cells: 0 done, 0 partial, 3 missing" in out
    Ledger(store).commit(cells[0], {"rejects": {"model_error": 2}})
    Ledger(store).commit(cells[1], {"rejects": {"model_error": 2}}, complete=False)
    code, out, _ = closelook("status", "--config", path)
    assert "3 cells: 1 done, 1 partial, 1 missing" in out
    assert "2 model_error" in out, "samples count once, not once a method"
    for cell in cells[1:]:
        Ledger(store).commit(cell, {})
    code, out, _ = closelook("status", "--config", path)
    assert (code, "3 scores: 0 done, 0 partial, 3 missing" in out) == (1, True)
    assert "3 cells: 3 done" in out


def test_what_is_not_prepared_is_counted_later(closelook, tmp_path):
    code, out, _ = closelook("status", "--config", "demo", "--root", str(tmp_path / "root"))
    assert code == 1
    assert "gpt2: sva is not prepared: run `closelook prepare` with the same --config and --root" in out
    assert not (tmp_path / "root").exists()


def test_help_shows_few_commands_in_four_groups_each_with_an_example_that_is_one():
    group = get_command(app)
    shown = [command for command in group.commands.values() if not command.hidden]
    assert len(shown) <= 22
    assert len({command.rich_help_panel for command in shown}) == 4
    for name, command in group.commands.items():
        program, named, *arguments = shlex.split(command.epilog.removeprefix("Example: "))
        assert (program, named) == ("closelook", name)
        command.make_context(name, arguments)


def test_help_names_every_config_that_comes_with_closelook(closelook):
    code, out, _ = closelook("run", "--help")
    names = {path.stem for path in (REPOSITORY / "jobs" / "conf").glob("*.yaml")}
    assert (code, {name for name in names if name not in out}) == (0, set())


def test_status_lists_stale_cells_and_only_gc_removes_them(closelook, config_file):
    path, config, store = config_file
    for planned in make_plan(config, store).cells():
        cell = planned.artifact
        shard = f"{cell.key[:12]}-00000-aa.parquet"
        store.write_bytes(f"{cell.folder}/{shard}", b"")
        Ledger(store).commit(cell, {"shards": [shard]})
    files = set(store.files("", "", recursive=True))
    reseeded = ["--config", path, "--set", "seed=1"]
    _, out, _ = closelook("status", *reseeded)
    assert "1 stale records, which `closelook gc --yes` removes" in out
    _, out, _ = closelook("gc", "--dry-run", *reseeded)
    assert "0 files would be removed" in out
    assert "2 files are not needed by config small" in out
    assert "cells of other inputs, settings or versions: 2 files" in out
    assert "2 files would be removed" in closelook("gc", "--dry-run", "--yes", *reseeded)[1]
    assert set(store.files("", "", recursive=True)) == files
    _, out, _ = closelook("gc", *reseeded)
    assert "0 files removed" in out
    assert "2 files are not needed by config small: if no other config needs them, --yes removes them" in out
    assert set(store.files("", "", recursive=True)) == files
    assert "2 files removed" in closelook("gc", "--yes", *reseeded)[1]
    gone = files - set(store.files("", "", recursive=True))
    assert len(gone) == 2
    assert all("random" in name for name in gone)
    assert "0 files removed" in closelook("gc", "--config", path, "--set", "methods=[attnlrp]")[1]


def test_gc_after_a_run_with_other_settings_says_so_and_removes_nothing(closelook, config_file, inline):
    path, _, store = config_file
    for seed in (1, 0):
        assert closelook("attribute", "--config", path, "--set", f"seed={seed}")[0] == 0
    store.write_bytes(f"relevance/{TEMPORARY}left", b"")
    os.utime(f"{store.root}/relevance/{TEMPORARY}left", (0, 0))
    store.write_bytes(f"relevance/{TEMPORARY}alive", b"")  # of a writer that may be at it
    files = set(store.files("", "", recursive=True))
    code, out, _ = closelook("gc", "--config", path)
    assert code == 0
    assert "cells of other inputs, settings or versions: 2 files" in out
    assert "left by writers that were killed: 1 files" in out
    assert "1 files removed" in out
    assert set(store.files("", "", recursive=True)) == files
    assert store.temporaries() == [f"relevance/{TEMPORARY}alive"]


def test_gc_keeps_shards_of_unfinished_cells(closelook, config_file):
    path, config, store = config_file
    cell = next(make_plan(config, store).cells()).artifact
    store.write_bytes(f"{cell.folder}/{cell.key[:12]}-00000-aa.parquet", b"")
    store.write_bytes(f"{cell.folder}/ffffffffffff-00000-aa.parquet", b"")
    _, out, _ = closelook("gc", "--yes", "--config", path)
    assert "1 files removed" in out
    assert "ffffffffffff-00000-aa.parquet" in out


@pytest.mark.parametrize(
    ("wrong", "code", "message"),
    [
        ("{parent}/gtp2", 2, "model gtp2: there is no directory {parent}/gtp2 (did you mean 'gpt2'?)"),
        ("./models/gpt2", 2, "model gpt2: there is no directory models/gpt2"),
        ("tests/gpt2", 2, "model gpt2: there is no directory tests/gpt2"),
        (
            "modls/gpt2",
            1,
            "model gpt2: there is no directory modls/gpt2, the hub does not answer, and it is not in the",
        ),
        ("gpt3", 1, "model gpt3: there is no directory gpt3, the hub does not answer, and it is not in the"),
        (
            "bert-base-uncaseed",
            1,
            "model bert-base-uncaseed: there is no directory bert-base-uncaseed, the hub does not answer, and it is "
            "not in the local cache (did you mean 'google-bert/bert-base-uncased'?): give a folder",
        ),
        (
            "openai-community/gpt2",
            1,
            "model gpt2: there is no directory openai-community/gpt2, the hub does not answer, and it is not in the "
            "local cache: give a folder",
        ),
        ("gpt2 ", 2, "model gpt2: 'gpt2 ' is neither a directory nor a model on the hub: check its name"),
    ],
)
def test_a_model_that_is_not_there_is_one_line_that_says_so(closelook, monkeypatch, model, wrong, code, message):
    monkeypatch.chdir(REPOSITORY)
    result, _, err = closelook("explain", "--model", wrong.format(parent=model.parent), "w5 w7", "--target", "w10")
    assert err.startswith(f"error: {message.format(parent=model.parent)}")
    assert (result, len(err.splitlines())) == (code, 1)


@pytest.mark.nightly  # processes, as variables of the hub are read on import
def test_a_model_of_the_hub_without_safe_weights_or_without_a_config_is_one_line_that_says_what_to_do(model, tmp_path):
    pickled = tmp_path / "pickled"
    shutil.copytree(model, pickled)
    (pickled / "model.safetensors").rename(pickled / "pytorch_model.bin")
    hub = Hub({"owner/pickled": pickled, "owner/empty": tmp_path})
    online = {"HF_ENDPOINT": hub.url, "HF_HUB_OFFLINE": "0", "TRANSFORMERS_OFFLINE": "0", "HF_HOME": str(tmp_path)}
    messages = {}
    for name in hub.models:
        code, _, messages[name] = ended(run_closelook("explain", "--model", name, "w5 w7", "--target", "w10", **online))
        assert (code in (1, 2), len(messages[name].splitlines())) == (True, 1)
    hub.close()
    made = "from transformers import GPT2LMHeadModel as Model; Model.from_pretrained('owner/pickled').save_pretrained"
    assert f"convert it by python -c \"{made}('FOLDER')\" and give that FOLDER" in messages["owner/pickled"]
    assert "owner/empty has no config.json: give the id of a model of transformers" in messages["owner/empty"]


@pytest.mark.parametrize("family", ["gpt2", "bert"])
def test_a_folder_without_a_tokenizer_is_one_line_that_says_so(closelook, tmp_path, family):
    folder = save_model(tmp_path / "bare", family)
    for path in folder.glob("tokenizer*"):
        path.unlink()
    config = tmp_path / "bare.yaml"
    config.write_text(config_of(tmp_path / "root", folder).model_dump_json())
    for arguments in (
        ["explain", "--model", str(folder), "w5 w7", "--target", "w10"],
        ["run", "--config", str(config)],
    ):
        code, _, err = closelook(*arguments)
        assert code == 2
        assert f"tried {folder} (it holds no tokenizer's files): put tokenizer.json there, or " in err
        assert len(err.splitlines()) == 1


@pytest.mark.parametrize("arguments", [["--config", "dmo"], ["--set", "tokn_budget=3"]])
def test_a_mistake_in_a_config_is_told_before_anything_heavy_is_imported(arguments):
    run = "import sys; from closelook.jobs.__main__ import main\ntry: main()\nfinally: print(*sys.modules)"
    command = [sys.executable, "-c", run, "run", "--config", "smoke", *arguments]
    process = subprocess.run(command, capture_output=True, text=True, cwd=REPOSITORY, check=False)
    assert process.returncode == 2
    assert len(process.stderr.splitlines()) == 1
    imported = set(process.stdout.split())
    assert "closelook.jobs.config" in imported
    assert not imported & {"torch", "transformers", "ray", "pyarrow", "numpy", "datasets", "spacy", "matplotlib"}


@pytest.mark.nightly  # a process with another HOME
def test_a_home_that_cannot_be_written_is_one_line(tmp_path, config_file):
    path, _, _ = config_file
    code, _, err = ended(run_closelook("attribute", "--config", path, HOME="/dev/null"))
    assert (code, err.splitlines()) == (
        2,
        ["error: Ray keeps its token in /dev/null, which cannot be written: set HOME to a folder of yours"],
    )


def test_a_ray_that_does_not_start_in_time_is_one_line(closelook, config_file, monkeypatch):
    """Ray has no class of its own for it."""
    path, _, _ = config_file

    def slow(**options):
        raise Exception("The current node timed out during startup.")

    monkeypatch.setattr("ray.init", slow)
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    code, _, err = closelook("attribute", "--config", path)
    assert (code, err.strip()) == (1, "error: Ray did not start in time: this machine is too busy, run again later")


@pytest.mark.ray
def test_a_run_that_is_stopped_says_how_to_go_on_and_leaves_no_lock(tmp_path, model):
    slow = [{"integrated_gradients": {"steps": 50}}]  # far from done when its first shard is seen
    config = config_of(tmp_path / "root", model, methods=slow, explanations=["target"], embeddings=["partial"])
    store = prepared(config, rows_of(4000))
    path = tmp_path / "small.yaml"
    path.write_text(config.model_dump_json())
    process = run_closelook("attribute", "--config", str(path))
    while not store.files("relevance", recursive=True):
        time.sleep(0.1)
        assert process.poll() is None
    started = psutil.Process(process.pid).children(recursive=True)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    code, out, err = ended(process)
    assert (code, out) == (130, ""), err
    assert psutil.wait_procs(started, timeout=PATIENCE_S)[1] == []
    assert err.splitlines()[-1] == "stopped; run the same command again to continue"
    assert all(line.startswith("attribute: ") for line in err.splitlines()[:-1])
    assert store.files("lock", ".json") == []


def test_an_unknown_benchmark_names_the_nearest(closelook):
    code, _, err = closelook("bench", "altii")
    assert code == 2
    assert "did you mean 'alti'?" in err


@pytest.mark.parametrize("arguments", [("lrp", "--quick"), ("unknown",), ("--quick",)])
def test_benchmarks_without_a_clone_ask_for_one(closelook, tmp_path, monkeypatch, arguments):
    monkeypatch.setattr(commands, "CLONE", tmp_path)
    (tmp_path / "benchmarks").mkdir()  # another package's
    code, _, err = closelook("bench", *arguments)
    assert (code, err) == (2, f"error: {commands.NEEDS_CLONE}\n")


def test_a_benchmark_shows_its_own_options(closelook):
    code, out, _ = closelook("bench", "lrp", "--help")
    assert code == 0
    assert out.startswith("usage: closelook bench lrp ")
    code, out, _ = closelook("bench", "--help")
    assert code == 0
    plain = re.sub(r"\x1b\[[0-9;]*m", "", out)  # some CI systems get colours
    assert " | ".join(BENCHES) in " ".join(plain.replace("│", " ").split()), "the list may be longer than a line"


def test_a_wrong_option_of_a_benchmark_and_no_benchmark_are_one_line(closelook):
    assert closelook("bench", "alti", "--config", "demo")[::2] == (
        2, "error: unrecognized arguments: --config demo (see `closelook bench alti --help`)\n"
    )  # fmt: skip
    assert "no benchmark is named: give one of lrp, alti" in closelook("bench", "--quick")[2]


def test_nothing_is_written_outside_the_root(closelook, config_file, tmp_path):
    before = set(tmp_path.rglob("*"))
    closelook("status", "--config", config_file[0])
    assert set(tmp_path.rglob("*")) == before
    assert isinstance(config_file[2], Store)
