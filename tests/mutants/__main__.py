"""Small wrong changes of the product, each of which a named test must catch: the measure of what the tests guard.

`python -m tests.mutants [NAME ...]` makes each change alone, in a temporary copy of the tracked files, and runs its
test there, which takes minutes. It exits with 1 unless every test fails with its change and passes without. A change
follows its code where that moves, and names the test that guards the same where tests are merged. `--check` only looks
whether the texts and the tests are there.
"""

from __future__ import annotations

import ast
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path

from tests.mutants.evaluation import MUTANTS as EVALUATION
from tests.mutants.jobs import MUTANTS as JOBS
from tests.mutants.methods import MUTANTS as METHODS
from tests.mutants.record import Mutant

MUTANTS = (*JOBS, *EVALUATION, *METHODS)
REPOSITORY = Path(__file__).parents[2]
LIMIT_S = 300  # for one test
IMPORTED = "ignore::pytest.PytestAssertRewriteWarning"  # HEAVY has plugins of pytest among what it imports
OPTIONS = ("-q", "-n", "0", "-p", "no:cacheprovider", "-rfE", "--tb=short", "-W", IMPORTED)
#: What takes long to import and is not of the project: every test begins in a fork that has it.
HEAVY = ("torch", "pyarrow.parquet", "datasets", "transformers.models.gpt2.modeling_gpt2", "pytest")
#: What a test that fails so says of the change: that it is no change of what the product does.
BROKEN = ("SyntaxError", "ImportError", "ModuleNotFoundError", "NameError", "UnboundLocalError")
OFFLINE = dict.fromkeys(("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE"), "1")


def problems_of(mutant: Mutant, root: Path = REPOSITORY) -> Iterator[str]:
    """Reasons why a mutant cannot be tried."""
    path = root / mutant.file
    count = path.read_text().count(mutant.before) if path.is_file() else 0
    if count != 1:
        yield f"its text occurs {count} times in {mutant.file}"
    elif not _is_python(path.read_text().replace(mutant.before, mutant.after)):
        yield f"its change leaves no Python in {mutant.file}"
    file, _, function = mutant.test.partition("::")
    test = root / file
    tree = ast.parse(test.read_text() if test.is_file() else "")
    if function.partition("[")[0] not in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}:
        yield f"there is no test {mutant.test}"


def _is_python(text: str) -> bool:
    try:
        ast.parse(text)
    except SyntaxError:
        return False
    return True


def copied(folder: Path) -> Path:
    """A copy of the tracked files as they are now."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=REPOSITORY, check=True, capture_output=True, text=True)
    for name in filter(None, listed.stdout.split("\0")):
        source, target = REPOSITORY / name, folder / name
        if source.is_file() or source.is_symlink():  # src/closelook leads to the rooms by links
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, target, follow_symlinks=False)
    return folder


def run(root: Path, tests: Sequence[str], *options: str) -> tuple[int, list[str]]:
    """pytest's exit code on the tests of a copy, 124 where it takes too long, and the lines of what failed."""
    log = root.parent / "log"
    pid = os.fork()
    if not pid:
        try:
            code = _pytest(root, log, [*OPTIONS, *options, *tests])
        except BaseException:
            traceback.print_exc()
            code = 125
        os._exit(code)
    try:
        code = _exit_code(pid, LIMIT_S * len(tests))
    finally:
        with suppress(ProcessLookupError):  # all have ended
            os.killpg(pid, signal.SIGKILL)
    lines = log.read_text(errors="replace").splitlines()
    return code, [line for line in lines if line.startswith(("FAILED", "ERROR"))]


def _exit_code(pid: int, limit_s: float) -> int:
    """A process's exit code, once it has ended; 124 where that takes too long."""
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.05)
    return 124


def _pytest(root: Path, log: Path, arguments: list[str]) -> int:
    """Run pytest in this process, on the modules of the copy; its exit code."""
    os.setsid()
    with log.open("w") as file:
        for number in (1, 2):
            os.dup2(file.fileno(), number)
    os.chdir(root)
    paths = [str(root), str(root / "src")]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    sys.path[:] = [*paths, *(path for path in sys.path if Path(path or REPOSITORY).resolve() != REPOSITORY)]
    for name in [name for name in sys.modules if name.partition(".")[0] == "tests"]:
        del sys.modules[name]
    code = int(import_module("pytest").main(arguments))
    sys.stdout.flush()
    return code


def tried(root: Path, mutant: Mutant) -> tuple[bool, str]:
    """(True if the test fails with the change, its message)."""
    path = root / mutant.file
    whole, stamp = path.read_text(), path.stat().st_mtime
    path.write_text(whole.replace(mutant.before, mutant.after))
    changed = 1 + MUTANTS.index(mutant)  # seconds: compiled modules are told apart by their time and size
    os.utime(path, (changed, changed))
    try:
        code, failed = run(root, [mutant.test], "-x")
    finally:
        path.write_text(whole)
        os.utime(path, (stamp, stamp))
    if code != 1 or not failed:
        return False, f"pytest ended with {code}"
    kind, _, failure = failed[0].partition(" ")
    why = failure.partition(" - ")[2]
    return kind == "FAILED" and not why.startswith(BROKEN), why


def main(arguments: Sequence[str]) -> int:
    names = [name for name in arguments if name != "--check"]
    if unknown := set(names) - {mutant.name for mutant in MUTANTS}:
        print(f"no mutant is named {', '.join(sorted(unknown))}", file=sys.stderr)
        return 2
    chosen = [mutant for mutant in MUTANTS if not names or mutant.name in names]
    problems = [f"anchor lost  {mutant.name}: {why}" for mutant in chosen for why in problems_of(mutant)]
    print("\n".join(problems), end="\n" * bool(problems))
    if "--check" in arguments:
        return int(bool(problems))
    return int(bool(problems) or not _all_caught([mutant for mutant in chosen if not any(problems_of(mutant))]))


def _all_caught(mutants: Sequence[Mutant]) -> bool:
    os.environ.update(OFFLINE, OMP_NUM_THREADS="1", COLUMNS="400")
    for name in HEAVY:
        import_module(name)
    with tempfile.TemporaryDirectory(prefix="closelook-mutants-") as folder:
        root, begun = copied(Path(folder) / "copy"), time.monotonic()
        code, red = run(root, list(dict.fromkeys(mutant.test for mutant in mutants)))
        print(f"{'pass' if code == 0 else 'FAIL':8} {time.monotonic() - begun:6.1f} s  all tests without a change")
        print("\n".join(red), end="\n" * bool(red), flush=True)
        survivors = 0
        for mutant in mutants:
            start = time.monotonic()
            caught, why = tried(root, mutant)
            if any(mutant.test in line for line in red):
                caught, why = False, "its test fails without it"
            survivors += not caught
            verdict = "caught" if caught else "SURVIVED"
            print(f"{verdict:8} {time.monotonic() - start:6.1f} s  {mutant.name}: {why}", flush=True)
        print(f"{len(mutants) - survivors} of {len(mutants)} caught in {time.monotonic() - begun:.0f} s")
    return code == 0 and not survivors


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
