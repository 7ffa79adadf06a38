"""The faults of the chaos benchmark: functions that each break something in the world of a run."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import psutil

from benchmarks.parts.chaos.world import STALE_S, Driver, World

MODEL = "gpt2"  # the model whose weights are swapped


class NotNow(Exception):
    """The fault cannot happen at the moment."""


@dataclass(frozen=True)
class Fault:
    """Something that goes wrong. `do` makes it happen, or raises NotNow."""

    name: str  # under which it is counted and printed
    do: Callable[[World], object]
    weight: float = 1.0  # how often it is drawn, relative to the others
    local: bool = True  # whether it can happen to runs in a folder
    remote: bool = True  # whether it can happen to runs on an object store


# Processes.


def kill_raylet(world: World) -> None:
    """Kills the raylet of a node. The node is replaced within 5 seconds."""
    _drawn(world, world.raylets()).kill()
    world.later(world.draw.uniform(0, 5), world.mend_cluster)


def pause_worker(world: World) -> None:
    """Pauses a worker for up to 20 seconds."""
    _pause(world, world.workers(), world.draw.uniform(1, 20))


def pause_raylet(world: World) -> None:
    """Pauses a raylet so long that Ray may declare its node dead."""
    pause_s = world.draw.uniform(1, 12)
    world.later(pause_s + 8, world.mend_cluster)
    _pause(world, world.raylets(), pause_s)


def kill_driver(world: World) -> None:
    """Kills all processes of the driver's group."""
    _driver(world).signal(signal.SIGKILL)


def terminate_driver(world: World) -> None:
    """Sends SIGTERM to the driver alone, not to the other processes of its group."""
    with suppress(ProcessLookupError):
        os.kill(_driver(world).process.pid, signal.SIGTERM)


def replace_driver(world: World) -> None:
    """Pauses the driver until its lock is stale and starts another one, which takes over; then wakes the first."""
    paused = _driver(world)
    paused.signal(signal.SIGSTOP)
    world.start_driver()

    def wake() -> None:
        paused.signal(signal.SIGCONT)
        world.later(60, lambda: paused.signal(signal.SIGKILL))  # in case it does not end by itself

    world.later(STALE_S + world.draw.uniform(5, 15), wake)


def start_second_driver(world: World) -> None:
    """Starts another run of the same root: it either refuses because the root is in use, or takes the root over."""
    _driver(world)
    other = world.run("run")
    world.later(60, lambda: other.signal(signal.SIGKILL))


def ask_to_stop(world: World) -> None:
    """Starts `closelook stop` for the root."""
    _driver(world)
    world.start("stop", world.root)


def _driver(world: World) -> Driver:
    """The driver. Raises NotNow if none runs."""
    if world.driver is None:
        raise NotNow
    return world.driver


def _signal_worker(world: World, number: int) -> None:
    """Sends a signal to a random worker."""
    worker = _drawn(world, world.workers())
    with suppress(psutil.NoSuchProcess):
        worker.send_signal(number)


def _pause(world: World, processes: list[psutil.Process], seconds: float) -> None:
    """Pauses a random one of the processes for so many seconds."""
    process = _drawn(world, processes)

    def wake() -> None:
        with suppress(psutil.NoSuchProcess):
            process.resume()

    with suppress(psutil.NoSuchProcess):
        process.suspend()
    world.later(seconds, wake)


def _drawn(world: World, processes: list[psutil.Process]) -> psutil.Process:
    """A random one of the processes. Raises NotNow if there is none."""
    if not processes:
        raise NotNow
    return world.draw.choice(sorted(processes, key=lambda process: process.pid))


# Weights, clocks and batches.


def swap_weights(world: World) -> None:
    """Replaces the model's weights by others for a few seconds."""
    world.put_weights(MODEL, "other")
    world.later(world.draw.uniform(1, 10), lambda: world.put_weights(MODEL, "own"))


def step_clock(world: World) -> None:
    """Sets the driver's clock wrong by up to a day, from now on."""
    (world.folder / "clock").write_text(str(world.draw.uniform(-86_400, 86_400)))


def hang_row(world: World) -> None:
    """Makes the next batch of some worker hang."""
    (world.folder / "hang").touch()


# Stores.


def fill_disk(world: World) -> None:
    """Leaves no space on the disk, or almost none, for some seconds."""
    if not world.is_disk_small:
        raise NotNow
    ballast = world.disk / "ballast"
    free = os.statvfs(world.disk)
    left = world.draw.choice([0, 0, 16 << 10, 128 << 10])
    size = max(0, free.f_bavail * free.f_frsize - left)
    with ballast.open("ab") as file, suppress(OSError):
        os.posix_fallocate(file.fileno(), 0, file.tell() + size)
    world.later(world.draw.uniform(2, 12), lambda: ballast.unlink(missing_ok=True))


def refuse_requests(world: World) -> None:
    """Refuses a share of all requests with 503, for some seconds."""
    world.server.failing_share = world.draw.choice([0.1, 0.3, 1.0])
    world.later(world.draw.uniform(3, 15), lambda: setattr(world.server, "failing_share", 0.0))


def slow_listings(world: World) -> None:
    """Delays every listing, for some seconds."""
    world.server.delay_s = world.draw.uniform(0.2, 2)
    world.later(world.draw.uniform(3, 15), lambda: setattr(world.server, "delay_s", 0.0))


def old_listings(world: World) -> None:
    """Answers listings as they were a while ago, for some seconds."""
    world.server.lists_old = True
    world.later(world.draw.uniform(2, 10), lambda: setattr(world.server, "lists_old", False))


# Files.


def flip_bit(world: World) -> None:
    """Changes a random bit of a committed file."""

    def flipped(data: bytes) -> bytes:
        at = world.draw.randrange(len(data))
        return data[:at] + bytes([data[at] ^ (1 << world.draw.randrange(8))]) + data[at + 1 :]

    _change(world, flipped)


def truncate(world: World) -> None:
    """Cuts off the end of a committed file at a random place."""
    _change(world, lambda data: data[: world.draw.randrange(len(data))])


def remove(world: World) -> None:
    """Deletes a committed file."""
    world.store.delete(_file(world))


def _change(world: World, change: Callable[[bytes], bytes]) -> None:
    """Changes a committed file without the run's knowledge."""
    path, store = _file(world), world.store
    try:
        data = store.read_bytes(path)
        if world.is_local:
            Path(world.root, path).write_bytes(change(data))
        else:
            store.write_bytes(path, change(data))
    except OSError:  # the store is full or refuses requests, or the file is gone
        raise NotNow from None


def _file(world: World) -> str:
    """The path of a random committed file: a Parquet file of a product, or a manifest. Raises NotNow without any."""
    if world.server.failing_share:  # requests would be tried again for as long as a run tries them
        raise NotNow
    try:
        paths = [path for path in world.store.files("", ".parquet", recursive=True) if not path.startswith("runtime/")]
        paths += world.store.files("manifest", ".json")
    except OSError:
        raise NotNow from None
    if not paths:
        raise NotNow
    return world.draw.choice(paths)


#: Faults that end a driver are rare, so that runs make progress between them.
FAULTS = (
    Fault("worker killed", partial(_signal_worker, number=signal.SIGKILL), 3),
    Fault("worker sent SIGTERM", partial(_signal_worker, number=signal.SIGTERM), 2),
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
    Fault("bit flipped", flip_bit, 3),
    Fault("file truncated", truncate, 2),
    Fault("file removed", remove, 2),
)
