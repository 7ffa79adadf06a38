"""Runs never unpickle, run code of a model, listen to the network or leave their root.

`test_installed` shows that they reveal no secrets.
"""

import json
import os
import pickle
import socket
from pathlib import Path

import pytest

from closelook.evaluation.schema import VIEW
from closelook.jobs.cluster.attempts import Attempts
from closelook.jobs.config import ModelConfig, RunConfig
from closelook.jobs.config.file import ConfigError
from closelook.jobs.plan.models import load_tokenizer, open_view, resolve
from closelook.jobs.secrets import without_secrets
from closelook.jobs.store import Store
from closelook.jobs.store.lock import Locked, run_lock
from closelook.lrp_core.records.types import UserError
from tests.jobs.small import save_model


class Trap:
    """Leaves a mark when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self._mark = mark

    def __reduce__(self):
        return Path.touch, (self._mark,)


@pytest.fixture
def mark(tmp_path) -> Path:
    return tmp_path / "mark"


def test_the_trap_works(mark):
    pickle.loads(pickle.dumps(Trap(mark)))
    assert mark.exists()


def test_nothing_of_the_store_is_unpickled(tmp_path, mark):
    store = Store(str(tmp_path / "root"))
    for path in ("part.parquet", "manifest/cell.json", "attempts/unit.json", "lock/0-aa.json"):
        store.write_bytes(path, pickle.dumps(Trap(mark)))
    with pytest.raises(ValueError, match="Parquet"):  # pyarrow's ArrowInvalid
        store.read("part.parquet", VIEW)
    with pytest.raises(UnicodeDecodeError):
        store.manifest("cell")
    with pytest.raises(UnicodeDecodeError):
        Attempts(store, "unit", 1, "run").begin()
    with pytest.raises(Locked, match="unknown process"), run_lock(store):
        pass
    assert not mark.exists()


def test_pickled_weights_are_refused(tmp_path, mark):
    directory = save_model(tmp_path / "gpt2")
    (directory / "model.safetensors").unlink()
    (directory / "pytorch_model.bin").write_bytes(pickle.dumps(Trap(mark)))
    with pytest.raises(UserError, match="safetensors"):
        resolve(ModelConfig(name="gpt2", id=str(directory)))
    assert not mark.exists()


def test_code_that_comes_with_a_model_is_not_run(tmp_path, mark):
    directory = save_model(tmp_path / "gpt2")
    (directory / "evil.py").write_text(f"open({str(mark)!r}, 'w').close()\n")
    classes = {"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model", "AutoTokenizer": ["evil.Slow", None]}
    for name in ("config.json", "tokenizer_config.json"):
        settings = json.loads((directory / name).read_text())
        (directory / name).write_text(json.dumps({**settings, "auto_map": classes}))
    model = ModelConfig(name="gpt2", id=str(directory))
    open_view(resolve(model), "float32", "cpu")
    load_tokenizer(model)
    assert not mark.exists()


@pytest.mark.parametrize("key", ["trust_remote_code", "models.gpt2.trust_remote_code", "ray.runtime_env"])
def test_no_key_of_a_config_lets_foreign_code_in(key):
    with pytest.raises(ConfigError, match="unknown config key"):
        RunConfig.load("smoke", overrides=[f"{key}=true"])


@pytest.mark.parametrize("override", ["tasks={../sva: {source: demo}}", "name=a/b"])
def test_neither_tasks_nor_runs_have_names_that_lead_out_of_the_root(override):
    with pytest.raises(ConfigError, match="may contain only letters"):
        RunConfig.load("smoke", overrides=[override])


@pytest.mark.ray
@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="listening ports are read from /proc")
def test_a_ray_of_ones_own_listens_on_loopback_only(local_ray):
    local_ray.get(local_ray.remote(lambda: 0).remote())  # workers listen too
    result = listening(descendants(os.getpid()))
    assert len(result) >= 3, "the head, the node and a worker at the least"
    assert {address for address, _ in result} <= {"127.0.0.1", "::ffff:127.0.0.1", "::1"}, result


def descendants(pid: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(status.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue  # it has ended
        children.setdefault(parent, []).append(int(status.parent.name))
    result = [pid]
    for process in result:
        result += children.get(process, [])
    return result


def listening(pids: list[int]) -> set[tuple[str, int]]:
    """(address, port) of every TCP socket on which these processes listen."""
    sockets = {target for pid in pids for target in _open_files(pid) if target.startswith("socket:")}
    collected = set()
    for table, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            _, local, _, state, *rest = line.split()
            if state == "0A" and f"socket:[{rest[5]}]" in sockets:
                host, port = local.split(":")
                words = [bytes.fromhex(host[i : i + 8])[::-1] for i in range(0, len(host), 8)]
                collected.add((socket.inet_ntop(family, b"".join(words)), int(port, 16)))
    return collected


def _open_files(pid: int) -> list[str]:
    try:
        return [os.readlink(entry) for entry in Path(f"/proc/{pid}/fd").iterdir()]
    except OSError:
        return []  # it has ended


def test_only_values_that_name_a_secret_are_taken_out():
    environment = {"HOME": "/home/someone", "API_KEY": "0123456789", "TOKEN": "short"}
    assert without_secrets("/home/someone 0123456789 short", environment) == "/home/someone [API_KEY] short"
