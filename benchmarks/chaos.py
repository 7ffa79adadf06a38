"""`closelook bench chaos`: runs under faults of every kind, whose files must equal those of an undisturbed run.

Faults are processes killed and paused, nodes lost, disks full, requests refused, files damaged, weights swapped, clocks
stepped, and batches that hang. Ray is real, on this machine. The root is a folder on a small disk, then one on an S3
server. Drivers are started again as a scheduler would. After some time faults end, `closelook audit --deep` looks for
damage, and runs repair it. Then every file of every product must equal that of an undisturbed run, up to rounding,
which depends on what shares a forward pass, or the root must name it as damaged or lacking rows; none may be lost.
"""

from __future__ import annotations

import random
import shutil
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import yaml

from benchmarks.parts.chaos.faults import FAULTS, NotNow
from benchmarks.parts.chaos.products import ROUNDING_BY_ROW, compared
from benchmarks.parts.chaos.world import World, mount_disk, settings
from benchmarks.parts.harness import SCRATCH, Bench, parser
from benchmarks.parts.stores.object_store import object_store
from closelook.jobs.bench.record import met
from closelook.jobs.cluster import attempts
from closelook.jobs.store import Store

METHODS = ("attnlrp", "gradient_x_input", "attention_rollout", "random")
WHOLE: dict[str, Any] = {
    "tasks": {"sva": {"source": "demo", "limit": 24}},
    "heads": {"sva": 8},
    "layers": {"sva": 8},
    "prune": {"methods": ["attnlrp"], "random_runs": 1, "step": 4},
    "perturb": {"samples": 8, "explanations": ["target"], "embeddings": ["full"]},
    "controls": {"samples": 8, "depths": 2, "models": ["gpt2"]},
    "neurons": {
        "tasks": {"sva": 8},
        "knockout": {"models": ["gpt2"]},
        "corpus": {"source": "demo", "limit": 20, "top": 3, "ranks": 3, "models": ["gpt2"]},
    },
}
SMALL: dict[str, Any] = {
    "tasks": {"sva": {"source": "demo", "limit": 16}},
    "perturb": {"samples": 8, "explanations": ["target"], "embeddings": ["full"]},
}
GAP_S = (1.0, 12.0)  # seconds between two faults, fewest and most
CALM_RUNS = 4  # runs without faults within which all damage must be repaired
CALM_S = 1800.0  # the longest that each of them may take, on a busy machine too
TICK_S = 0.2
#: Exit codes of commands under chaos. `stop` ends with 2 where no run owns the root, `run` as a worker does where a
#: batch hangs in its own process.
FORESEEN = {
    "run": {0, 1, attempts.EXIT_CODE, 130, 143, -signal.SIGKILL, -signal.SIGTERM},
    "stop": {0, 1, 2, -signal.SIGKILL},
}


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Run without faults, then under faults in a folder and on an S3 server; see `--help`. Returns the result as JSON.

    A quick run, or one of at most two minutes, takes one of both, chosen by the seed. Raises SystemExit if a ratio
    misses its target.
    """
    options = parser("chaos", __doc__)
    options.number("--minutes", 10, "of faults", quick=1)
    options.add_argument("--seed", type=int, default=0, help="by which faults are drawn; default 0")
    options.add_argument("--keep", metavar="DIR", help="leave roots and logs in this new folder")
    options.add_argument("--undisturbed", metavar="ROOT", help="compare with this root, DIR/undisturbed of a kept run")
    bench = options.begin(arguments)
    chosen = bench.chosen
    whole = not bench.quick and chosen.minutes > 2
    with ExitStack() as stack:
        scratch = chosen.keep or stack.enter_context(tempfile.TemporaryDirectory(prefix=SCRATCH))
        folder = Path(scratch).resolve()
        folder.mkdir(exist_ok=True)
        is_small = mount_disk(folder / "disk")
        server = stack.enter_context(object_store())
        world = World(folder, random.Random(chosen.seed), server, is_small)
        stack.callback(world.stop)
        world.copy_model("gpt2", "gpt2-seed1")
        world.config = folder / "chaos.yaml"
        world.config.write_text(yaml.safe_dump(settings(folder, METHODS, WHOLE if whole else SMALL)))
        world.start_cluster()
        world.root = chosen.undisturbed or str(folder / "undisturbed")
        if not chosen.undisturbed and not calm(world):
            raise RuntimeError(f"the undisturbed run did not complete: {last_lines(world)}")
        undisturbed = Store(world.root)
        places = {"a folder on a small disk" if is_small else "a folder": str(world.disk / "root")}
        places["an S3 server"] = server.root("root")
        if not whole:
            places = dict([list(places.items())[chosen.seed % 2]])
        for storage, root in places.items():
            world.root = root
            under_chaos(bench, world, undisturbed, storage, 60 * chosen.minutes / len(places))
    result = bench.finish()
    if not all(map(met, result["ratios"].values())):
        raise SystemExit(1)  # unlike in other benchmarks a missed target is a defect
    return result


def under_chaos(bench: Bench, world: World, undisturbed: Store, storage: str, seconds: float) -> None:
    """Run under faults for `seconds`, then without, and compare every file with that of the `undisturbed` run.

    Adds rows about this `storage`, and three ratios whose target is 0: files that are lost or wrong without a manifest
    that says so, runs without faults that do not complete, and commands with an exit code that FORESEEN lacks.
    """
    first = len(world.started)
    done, completed = chaos(world, seconds)
    drivers = world.started[first:]
    healed = calm(world)
    comparison = compared(undisturbed, world.store)
    for name, times in done.most_common():
        bench.row(what="fault", place=storage, fault=name, times=times)
    paths = {"rounded": comparison.rounded, "named": comparison.named, "lost": comparison.lost}
    paths["false"] = comparison.false
    counts = {"files": comparison.files, "equal": comparison.equal}
    counts |= {kind: len(of_kind) for kind, of_kind in paths.items()}
    differences = {"rounding": max(comparison.rounded.values(), default=0.0), "rounding_bound": ROUNDING_BY_ROW}
    codes = Counter(f"{driver.command} {driver.code}" for driver in drivers)
    facts = {"place": storage, "drivers": len(drivers), "completed": completed, "exit_codes": dict(codes)}
    bench.row(what="run", **facts, **counts, **differences)
    print(f"{storage}: {paths}", flush=True)
    if bench.chosen.keep and world.is_local:  # the small disk disappears when this process ends
        shutil.copytree(world.root, world.folder / "root")
    if not healed:
        print(f"{storage}: a run in peace did not complete: {last_lines(world)}", flush=True)
    bench.ratio(f"{storage}: files lost or false", len(comparison.lost) + len(comparison.false), 0.0, "lower", **counts)
    bench.ratio(f"{storage}: runs in peace that did not complete", float(not healed), 0.0, "lower")
    strange = sum(driver.code not in FORESEEN[driver.command] for driver in drivers)
    bench.ratio(f"{storage}: commands that ended in an unforeseen way", float(strange), 0.0, "lower")


def chaos(world: World, seconds: float) -> tuple[Counter[str], int]:
    """Cause random faults while runs go on, for `seconds`: how often each was caused, and how many runs completed."""
    done, completed = Counter[str](), 0
    end = time.monotonic() + seconds
    at = time.monotonic() + world.draw.uniform(*GAP_S)
    possible = [fault for fault in FAULTS if (fault.local if world.is_local else fault.remote)]
    while time.monotonic() < end:
        if world.reap() == 0:
            completed += 1
        if world.driver is None:
            world.start_driver()
        world.undo()
        if time.monotonic() >= at:
            (fault,) = world.draw.choices(possible, [fault.weight for fault in possible])
            with suppress(NotNow):
                fault.do(world)
                done[fault.name] += 1
                print(f"{end - time.monotonic():6.0f} s left: {fault.name}", flush=True)
            at = time.monotonic() + world.draw.uniform(*GAP_S)
        time.sleep(TICK_S)
    return done, completed


def calm(world: World) -> bool:
    """End all faults, then audit and run until nothing is left to do. True if that succeeds within CALM_RUNS runs."""
    world.undo(everything=True)
    world.server.calm()
    for name in ("clock", "hang"):
        (world.folder / name).unlink(missing_ok=True)
    world.end_drivers()
    world.mend_cluster()
    for _ in range(CALM_RUNS):
        damaged = world.store.exists("manifest") and ended(world, "audit", "--deep") != 0
        code = ended(world, "run")
        if code == 0 and not damaged:
            return ended(world, "status") == 0
    return False


def ended(world: World, command: str, *arguments: str) -> int:
    """Run a command to its end and return its exit code; it is killed if it takes longer than CALM_S."""
    driver = world.run(command, *arguments)
    deadline = time.monotonic() + CALM_S
    while driver.code is None:
        if time.monotonic() > deadline:
            driver.signal(signal.SIGKILL)
            driver.process.wait()
        time.sleep(TICK_S)
    return driver.code


def last_lines(world: World) -> str:
    """The last lines that the last command printed."""
    return "\n".join(world.started[-1].log.read_text(errors="replace").splitlines()[-12:])
