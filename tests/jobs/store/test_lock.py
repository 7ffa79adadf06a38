"""One run a root: who owns it, who is told so, and when a claim no longer counts."""

import json
import os
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import pytest

from closelook.jobs.store import Ledger, Store, lock
from closelook.jobs.store.lock import Locked, Owner, run_lock
from tests.patience import PATIENCE_S, wait_for

RACERS = 16


@pytest.fixture
def store(tmp_path) -> Store:
    return Store(str(tmp_path))


@pytest.fixture(params=["local", "s3"])
def root(request, tmp_path) -> str:
    """A root in a folder and one in a bucket."""
    if request.param == "local":
        return str(tmp_path)
    return f"s3://{request.getfixturevalue('bucket')}/{tmp_path.name}"


def test_a_second_run_is_refused_and_told_who_owns_the_root(store):
    with run_lock(store):
        with (
            pytest.raises(Locked, match=rf"in use by process {os.getpid()} on .*; wait for it to end"),
            run_lock(store),
        ):
            pytest.fail("two owners")
        assert len(store.files("lock", ".json")) == 1, "the refused claim is withdrawn"
    assert store.files("lock", ".json") == []
    with run_lock(store):
        pass


def test_a_second_run_may_wait(store, monkeypatch):
    monkeypatch.setattr(lock, "HEARTBEAT_S", 0.1)
    released, owned = [], threading.Event()

    def own():
        with run_lock(store):
            owned.set()
            time.sleep(0.3)
            released.append(time.monotonic())

    thread = threading.Thread(target=own)
    thread.start()
    assert owned.wait(60)
    with run_lock(store, wait_s=60):
        assert released
        assert time.monotonic() >= released[0]
    thread.join()


def race(root: str) -> tuple[int, int]:
    """(runs that owned the root, most at the same time) of RACERS that start together; an owner stays to the end."""
    owners, most, guard = [], [0], threading.Lock()
    start, end = threading.Barrier(RACERS), threading.Barrier(RACERS)
    failures = []

    def contend():
        store = Store(root)
        start.wait()
        try:
            with run_lock(store):
                with guard:
                    owners.append(1)
                    most.append(len(owners))
                end.wait(PATIENCE_S)
                with guard:
                    owners.pop()
        except Locked:
            end.wait(PATIENCE_S)
        except BaseException as error:
            failures.append(error)
            end.abort()

    threads = [threading.Thread(target=contend) for _ in range(RACERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    return len(most) - 1, max(most)


@pytest.mark.parametrize("stale", ["nothing", "a stale claim"])
def test_of_runs_that_start_together_exactly_one_owns_the_root(stale, root, monkeypatch):
    if stale == "a stale claim":
        monkeypatch.setattr(Owner, "is_dead_neighbour", lambda owner: owner.host == "stale")
        Store(root).write_bytes("lock/00000001.json", b'{"host": "stale"}')
    assert race(root) == (1, 1)
    assert Store(root).files("lock", ".json") == []


def test_a_run_that_was_slow_to_take_over_gives_way_to_the_owner_of_another_number(store, monkeypatch):
    """It saw a stale claim; meanwhile another run took over, ended, and a third began anew with the first number."""
    store.write_bytes("lock/00000001.json", b"")
    os.utime(f"{store.root}/lock/00000001.json", (0, 0))
    third, create = run_lock(Store(store.root)), Store.create_file

    def slowly(slow, path, data):
        monkeypatch.setattr(Store, "create_file", create)
        store.delete("lock/00000001.json")
        third.__enter__()
        return create(slow, path, data)

    monkeypatch.setattr(Store, "create_file", slowly)
    with pytest.raises(Locked, match="in use"), run_lock(store):
        pytest.fail("two owners")
    third.__exit__(None, None, None)
    assert store.files("lock", ".json") == []


@pytest.mark.parametrize("content", ["", "{", "[]", "null", '{"host": "other"}', '{"pid": "x"}', "\0" * 9])
def test_a_claim_that_cannot_be_read_counts_until_it_is_stale(content, store, tmp_path):
    claim = tmp_path / "lock" / "00000000000000000001-a.json"
    store.write_bytes(f"lock/{claim.name}", content.encode())
    with pytest.raises(Locked, match="in use by an unknown process"), run_lock(store):
        pass
    os.utime(claim, (0, 0))
    assert lock.owner_of(store) is None
    with run_lock(store):
        assert lock.owner_of(store).pid == os.getpid()
        assert not claim.exists()


def test_a_claim_that_was_created_although_the_answer_was_lost_is_held(store, monkeypatch):
    create = Store.create_file
    monkeypatch.setattr(Store, "create_file", lambda *arguments: create(*arguments) and False)
    with run_lock(store):
        store.write_manifest("mine", {})


def test_a_claim_of_a_dead_process_of_this_machine_does_not_count(store):
    code = "import os, sys\nfrom closelook.jobs.store.lock import run_lock\nfrom closelook.jobs.store import Store\n"
    code += "with run_lock(Store(sys.argv[1])):\n    os._exit(1)\n"
    subprocess.run([sys.executable, "-c", code, store.root], check=False)
    assert len(store.files("lock", ".json")) == 1
    with run_lock(store):
        pass


def test_a_live_claim_from_another_pid_namespace_is_not_stolen(namespaces, store):
    """A container of the same host name does not see the owner's process."""
    code = "import sys\nfrom closelook.jobs.store.lock import run_lock\nfrom closelook.jobs.store import Store\n"
    code += "with run_lock(Store(sys.argv[1])):\n    print('two owners')\n"
    apart = ["unshare", "--map-root-user", "--pid", "--fork", "--mount-proc"]
    if subprocess.run([*apart, "true"], check=False, capture_output=True).returncode:
        pytest.skip("no PID namespace of its own here")
    with run_lock(store):
        other = [*apart, sys.executable, "-c", code, store.root]
        process = subprocess.run(other, check=False, capture_output=True, text=True)
        assert "two owners" not in process.stdout
        assert f"in use by process {os.getpid()} on" in process.stderr
        assert len(store.files("lock", ".json")) == 1, "the owner's claim is there"
        store.write_manifest("still", {"mine": True})


def test_an_owner_whose_claim_was_given_up_writes_nothing_more(store, monkeypatch):
    """As after a pause: another run has removed the claim and taken its place."""
    monkeypatch.setattr(lock, "HEARTBEAT_S", 0.05)
    turn, renew = threading.Lock(), lock._Claim._renew

    def whole(claim):
        with turn:  # who removes a claim finds it older than a heartbeat
            renew(claim)

    monkeypatch.setattr(lock._Claim, "_renew", whole)

    def own():
        with run_lock(store):
            (claim,) = store.files("lock", ".json")
            store.write_manifest("before", {"files": {}})
            with turn:
                Store(store.root).delete(claim)
            with pytest.raises(Locked):
                store.write_manifest("after", {"files": {}})
            with pytest.raises(Locked):
                store.delete("manifest/before.json")
            time.sleep(0.3)
            assert store.files("lock", ".json") == [], "the heartbeat does not bring it back"

    with pytest.raises(Locked, match="another run took over"):
        own()
    assert dict(Ledger(store).records()) == {"before": {"files": {}}}
    store.write_manifest("after", {"files": {}})


def test_a_claim_without_heartbeat_of_another_machine_is_stale_after_a_while(store):
    record = {"host": "elsewhere", "pid": 1, "since": "earlier"}
    store.write_bytes("lock/00000001.json", json.dumps(record).encode())
    with pytest.raises(Locked, match="process 1 on elsewhere"), run_lock(store):
        pass
    os.utime(f"{store.root}/lock/00000001.json", (0, 0))
    with run_lock(store):
        pass


@pytest.mark.parametrize("step_s", [-86_400, 86_400])
def test_a_clock_that_is_off_takes_the_lock_of_no_live_run(step_s, store, tmp_path, monkeypatch):
    with run_lock(store):
        stepped = SimpleNamespace(**vars(time) | {"time": lambda: time.time() + step_s})
        monkeypatch.setattr(lock, "time", stepped)
        with pytest.raises(Locked, match="in use"), run_lock(store):
            pytest.fail("two owners")


def test_the_heartbeat_keeps_a_claim_fresh(store, monkeypatch):
    monkeypatch.setattr(lock, "HEARTBEAT_S", 0.05)
    with run_lock(store):
        (path,) = store.files("lock", ".json")
        first = store.modified_s(path)
        wait_for(lambda: store.modified_s(path) != first)
