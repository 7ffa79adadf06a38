"""The faults of the chaos benchmark: functions that each break something in the world of a run."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.parts.chaos.world import STALE_S, World

MODEL = "gpt2"  # the model whose weights are swapped


@dataclass(frozen=True)
class Fault:
    """Something that goes wrong. `do` makes it happen, or returns False if it cannot happen at the moment."""

    name: str  # under which it is counted and printed
    do: Callable[[World], bool]
    weight: float = 1.0  # how often it is drawn, relative to the others
    local: bool = True  # whether it can happen to runs in a folder
    remote: bool = True  # whether it can happen to runs on an object store
    damages: bool = False  # whether it changes or removes files that were written


# Processes.


def kill_worker(world: World) -> bool:
    """Kills a worker that computes units."""
    return _signal_worker(world, signal.SIGKILL)


def terminate_worker(world: World) -> bool:
    """Sends SIGTERM to a worker."""
    return _signal_worker(world, signal.SIGTERM)


def pause_worker(world: World) -> bool:
    """Pauses a worker for up to 20 seconds."""
    return _paused(world, world.workers(), world.draw.uniform(1, 20))


def kill_raylet(world: World) -> bool:
    """Kills the raylet of a node. The node is replaced within 5 seconds."""
    raylet = _drawn(world, world.raylets())
    if raylet is None:
        return False
    raylet.kill()
    world.later(world.draw.uniform(0, 5), world.mend_cluster)
    return True


def pause_raylet(world: World) -> bool:
    """Pauses a raylet so long that Ray may declare its node dead."""
    pause_s = world.draw.uniform(1, 12)
    done = _paused(world, world.raylets(), pause_s)
    world.later(pause_s + 8, world.mend_cluster)
    return done


def kill_driver(world: World) -> bool:
    """Kills the driver."""
    return _signal_driver(world, signal.SIGKILL)


def terminate_driver(world: World) -> bool:
    """Sends SIGTERM to the driver alone, not to the other processes of its group."""
    if world.driver is None:
        return False
    with suppress(ProcessLookupError):
        os.kill(world.driver.process.pid, signal.SIGTERM)
    return True


def replace_driver(world: World) -> bool:
    """Pauses the driver until its lock is stale and starts another one, which takes over; then wakes the first."""
    paused = world.driver
    if paused is None:
        return False
    paused.signal(signal.SIGSTOP)
    world.start_driver()

    def wake() -> None:
        paused.signal(signal.SIGCONT)
        world.later(60, lambda: paused.signal(signal.SIGKILL))  # in case it does not end by itself

    world.later(STALE_S + world.draw.uniform(5, 15), wake)
    return True


def start_second_driver(world: World) -> bool:
    """Starts another run of the same root: it either refuses because the root is in use, or takes the root over."""
    if world.driver is None:
        return False
    other = world.run("run")
    world.later(60, lambda: other.signal(signal.SIGKILL))
    return True


def ask_to_stop(world: World) -> bool:
    """Starts `closelook stop` for the root."""
    return world.driver is not None and world.start("stop", world.root) is not None


def _signal_worker(world: World, number: int) -> bool:
    """Sends a signal to a random worker. False if there is none."""
    worker = _drawn(world, world.workers())
    if worker is None:
        return False
    with suppress(psutil.NoSuchProcess):
        worker.send_signal(number)
    return True


def _signal_driver(world: World, number: int) -> bool:
    """Sends a signal to all processes of the driver's group. False if no driver runs."""
    if world.driver is None:
        return False
    world.driver.signal(number)
    return True


def _paused(world: World, processes: list[psutil.Process], seconds: float) -> bool:
    """Pauses a random one of the processes for so many seconds. False if there is none."""
    process = _drawn(world, processes)
    if process is None:
        return False

    def wake() -> None:
        with suppress(psutil.NoSuchProcess):
            process.resume()

    with suppress(psutil.NoSuchProcess):
        process.suspend()
    world.later(seconds, wake)
    return True


def _drawn(world: World, processes: list[psutil.Process]) -> psutil.Process | None:
    """A random one of the processes; None if there is none."""
    ordered = sorted(processes, key=lambda process: process.pid)
    return world.draw.choice(ordered) if ordered else None


# Weights, clocks and batches.


def swap_weights(world: World) -> bool:
    """Replaces the model's weights by others for a few seconds."""
    world.put_weights(MODEL, "other")
    world.later(world.draw.uniform(1, 10), lambda: world.put_weights(MODEL, "own"))
    return True


def step_clock(world: World) -> bool:
    """Sets the driver's clock wrong by up to a day, from now on."""
    (world.folder / "clock").write_text(str(world.draw.uniform(-86_400, 86_400)))
    return True


def hang_row(world: World) -> bool:
    """Makes the next batch of some worker hang."""
    (world.folder / "hang").touch()
    return True


# Stores.


def fill_disk(world: World) -> bool:
    """Leaves no space on the disk, or almost none, for some seconds."""
    if not world.is_disk_small:
        return False
    ballast = world.disk / "ballast"
    free = os.statvfs(world.disk)
    left = world.draw.choice([0, 0, 16 << 10, 128 << 10])
    size = max(0, free.f_bavail * free.f_frsize - left)
    with ballast.open("ab") as file, suppress(OSError):
        os.posix_fallocate(file.fileno(), 0, file.tell() + size)
    world.later(world.draw.uniform(2, 12), lambda: ballast.unlink(missing_ok=True))
    return True


def refuse_requests(world: World) -> bool:
    """Refuses a share of all requests with 503, for some seconds."""
    world.disturbances.failing_share = world.draw.choice([0.1, 0.3, 1.0])
    world.later(world.draw.uniform(3, 15), lambda: setattr(world.disturbances, "failing_share", 0.0))
    return True


def slow_listings(world: World) -> bool:
    """Delays every listing, for some seconds."""
    world.disturbances.delay_s = world.draw.uniform(0.2, 2)
    world.later(world.draw.uniform(3, 15), lambda: setattr(world.disturbances, "delay_s", 0.0))
    return True


def old_listings(world: World) -> bool:
    """Answers listings as they were a while ago, for some seconds."""
    world.disturbances.lists_old = True
    world.later(world.draw.uniform(2, 10), lambda: setattr(world.disturbances, "lists_old", False))
    return True


# Files.


def flip_bit(world: World) -> bool:
    """Changes a random bit of a committed file."""

    def flipped(data: bytes) -> bytes:
        at = world.draw.randrange(len(data))
        return data[:at] + bytes([data[at] ^ (1 << world.draw.randrange(8))]) + data[at + 1 :]

    return _changed(world, flipped)


def truncate(world: World) -> bool:
    """Cuts off the end of a committed file at a random place."""
    return _changed(world, lambda data: data[: world.draw.randrange(len(data))])


def remove(world: World) -> bool:
    """Deletes a committed file."""
    path = _file(world)
    if path is None:
        return False
    world.store.delete(path)
    return True


def _changed(world: World, change: Callable[[bytes], bytes]) -> bool:
    """Changes a committed file without the run's knowledge."""
    path = _file(world)
    if path is None:
        return False
    store = world.store
    try:
        data = store.read_bytes(path)
        if world.is_local:
            Path(world.root, path).write_bytes(change(data))
        else:
            store.write_bytes(path, change(data))
    except OSError:  # the store is full or refuses requests, or the file is gone
        return False
    return True


def _file(world: World) -> str | None:
    """The path of a random committed file: a Parquet file of a product, or a manifest."""
    if world.disturbances.failing_share:  # requests would be tried again for as long as a run tries them
        return None
    try:
        paths = [path for path in world.store.files("", ".parquet", recursive=True) if not path.startswith("runtime/")]
        paths += world.store.files("manifest", ".json")
    except OSError:
        return None
    return world.draw.choice(paths) if paths else None


#: Faults that end a driver are rare, so that runs make progress between them.
FAULTS = (
    Fault("worker killed", kill_worker, 3),
    Fault("worker sent SIGTERM", terminate_worker, 2),
    Fault("worker paused", pause_worker, 2),
    Fault("raylet killed", kill_raylet, 2),
    Fault("raylet paused", pause_raylet, 2),
    Fault("driver killed", kill_driver, 0.8),
    Fault("driver sent SIGTERM", terminate_driver, 0.8),
    Fault("driver paused and replaced", replace_driver, 0.5),
    Fault("second driver started", start_second_driver, 0.5),
    Fault("run asked to stop", ask_to_stop, 0.4),
    Fault("weights swapped", swap_weights, 2),
    Fault("clock stepped", step_clock, 2),
    Fault("batch made to hang", hang_row, 2),
    Fault("disk filled", fill_disk, 4, remote=False),
    Fault("requests refused with 503", refuse_requests, 3, local=False),
    Fault("listings slowed", slow_listings, 2, local=False),
    Fault("listings of some time ago", old_listings, 3, local=False),
    Fault("bit flipped", flip_bit, 3, damages=True),
    Fault("file truncated", truncate, 2, damages=True),
    Fault("file removed", remove, 2, damages=True),
)
