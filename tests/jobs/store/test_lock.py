"""One run a root: who owns it, who is told so, and when a claim no longer counts."""

import json
import os
import random
import subprocess
import sys
import threading
import time

import pytest

from benchmarks.parts.chaos.driver import SteppedClock
from jobs.store import Ledger, Store, lock
from jobs.store.lock import Locked, run_lock
from tests.patience import wait_for


@pytest.fixture
def store(tmp_path, monkeypatch) -> Store:
    monkeypatch.setattr(lock, "SETTLE_S", 0.05)
    return Store(str(tmp_path))


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


@pytest.mark.parametrize("slowest_s", [0.0, 0.3])
def test_of_runs_that_start_together_at_most_one_owns_the_root(slowest_s, store, monkeypatch):
    """Also where a write takes longer than claims have to settle."""
    owners, most, guard, start = [], [], threading.Lock(), threading.Barrier(6)
    draw, write = random.Random(0), Store.write_bytes

    def slowly(*arguments):
        time.sleep(draw.uniform(0, slowest_s))
        write(*arguments)
        time.sleep(draw.uniform(0, slowest_s))

    monkeypatch.setattr(Store, "write_bytes", slowly)

    def contend():
        start.wait()
        try:
            with run_lock(store):
                with guard:
                    owners.append(1)
                    most.append(len(owners))
                time.sleep(0.3)
                with guard:
                    owners.pop()
        except Locked:
            pass

    threads = [threading.Thread(target=contend) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most or slowest_s
    assert max(most, default=1) == 1


def test_an_earlier_claim_waits_for_a_later_one_to_be_given_up_and_gives_way_to_one_that_stays(store, monkeypatch):
    record = {"host": "elsewhere", "pid": 1, "since": "now", "held": True}
    later, write, announced = "lock/9-aa.json", Store.write_bytes, []

    def announce(store, path, data):
        write(store, path, data)
        if path != later and json.loads(data)["held"] and not announced:
            announced.append(path)  # another has looked before this write came through
            write(store, later, json.dumps(record).encode())

    looks, files = [], Store.files

    def look(store, *arguments):
        looks.append(arguments)
        if len(looks) == 4:
            store.delete(later)
        return files(store, *arguments)

    monkeypatch.setattr(Store, "write_bytes", announce)
    with monkeypatch.context() as patch:
        patch.setattr(Store, "files", look)
        with run_lock(store):
            assert len(looks) == 4
    announced.clear()
    with pytest.raises(Locked, match="process 1 on elsewhere"), run_lock(store):
        pass


def test_a_claim_of_a_dead_process_of_this_machine_does_not_count(store):
    code = "import os, sys\nfrom jobs.store.lock import run_lock\nfrom jobs.store import Store\n"
    code += "with run_lock(Store(sys.argv[1])):\n    os._exit(1)\n"
    subprocess.run([sys.executable, "-c", code, store.root], check=False)
    assert len(store.files("lock", ".json")) == 1
    with run_lock(store):
        pass


def test_a_live_claim_from_another_pid_namespace_is_not_stolen(namespaces, store):
    """A container of the same host name does not see the owner's process."""
    code = "import sys\nfrom jobs.store.lock import run_lock\nfrom jobs.store import Store\n"
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
            store.write_manifest("before", {})
            with turn:
                Store(store.root).delete(claim)
            with pytest.raises(Locked):
                store.write_manifest("after", {})
            with pytest.raises(Locked):
                store.delete("manifest/before.json")
            time.sleep(0.3)
            assert store.files("lock", ".json") == [], "the heartbeat does not bring it back"

    with pytest.raises(Locked, match="another run took over"):
        own()
    assert dict(Ledger(store).records()) == {"before": {}}
    store.write_manifest("after", {})


def test_a_claim_without_heartbeat_of_another_machine_is_stale_after_a_while(store, monkeypatch):
    record = {"host": "elsewhere", "pid": 1, "since": "earlier", "held": True}
    store.write_bytes("lock/0-aa.json", json.dumps(record).encode())
    with pytest.raises(Locked, match="process 1 on elsewhere"), run_lock(store):
        pass
    monkeypatch.setattr(lock, "STALE_S", -1)
    with run_lock(store):
        pass


@pytest.mark.parametrize("step_s", [-86_400, 86_400])
def test_a_clock_that_is_off_takes_the_lock_of_no_live_run(step_s, store, tmp_path, monkeypatch):
    with run_lock(store):
        (tmp_path / "clock").write_text(str(step_s))
        monkeypatch.setattr(lock, "time", SteppedClock(tmp_path / "clock"))
        with pytest.raises(Locked, match="in use"), run_lock(store):
            pytest.fail("two owners")


def test_the_heartbeat_keeps_a_claim_fresh(store, monkeypatch):
    monkeypatch.setattr(lock, "HEARTBEAT_S", 0.05)
    with run_lock(store):
        (path,) = store.files("lock", ".json")
        first = store.modified_s(path)
        wait_for(lambda: store.modified_s(path) != first)
