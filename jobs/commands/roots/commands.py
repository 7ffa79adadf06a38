"""Commands about runs: compute all or one stage, show state and cost, clean up, export, compare, run benchmarks."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Annotated

import typer

from closelook.jobs.commands.options import RESULTS, RUNS, Json, RunOptions, WaitingOptions, command
from closelook.jobs.commands.roots.runs import run_stages
from closelook.jobs.stages.record import STAGES
from closelook.lrp_core.records.types import UserError, nearest
from closelook.terminal import say

CLONE = Path(__file__).resolve().parents[3]
NEEDS_CLONE = "benchmarks are not installed with the package: run them in a clone of the repository"


def names() -> tuple[str, ...]:
    """The names of all benchmarks; () if this is no clone. Puts the clone on `sys.path`, to import them."""
    if not (CLONE / "pyproject.toml").exists() or not (CLONE / "benchmarks").is_dir():
        return ()
    if str(CLONE) not in sys.path:
        sys.path.insert(0, str(CLONE))
    known: tuple[str, ...] = import_module("benchmarks").BENCHES
    return known


def benchmark(name: str) -> ModuleType:
    """The module of the benchmark `name`. Raises UserError for an empty or unknown name, and if this is no clone."""
    known = names()
    if not known:
        raise UserError(NEEDS_CLONE)
    if not name:
        raise UserError(f"no benchmark is named: give one of {', '.join(known)}")
    if name not in known:
        raise UserError(f"no benchmark {name!r}{nearest(name, known)}")
    return import_module(f"benchmarks.{name}")


def _add_stages(name: str, about: str, stages: tuple[str, ...]) -> None:
    """Add the command `name`, with the help `about`, which runs these stages. Help shows few single stages."""
    is_shown = name in ("run", "prepare", "report")

    @command(RUNS, f"{name} --config demo", name=name, help=about, hidden=not is_shown)
    def compute(run: RunOptions, waiting: WaitingOptions) -> None:
        run_stages(stages, run, waiting.wait)


_add_stages(
    "run", f"Compute everything that is missing: {', '.join(STAGES)}, each a command of its own, too.", tuple(STAGES)
)
for _stage in STAGES.values():
    if not _stage.own_command:
        _add_stages(_stage.name, _stage.about, (_stage.name,))


@command(RUNS, "stop runs/demo")
def stop(root: Annotated[str, typer.Argument(help="The root of the run.")]) -> None:
    """Stop a run once the units in progress are done. The command that began it continues it."""
    _, store = RunOptions(root=root).load(is_made=True)

    from closelook.jobs.commands.stopping import stop as ask

    ask(store)


@command(RUNS, "status --config demo")
def status(run: RunOptions) -> None:
    """Count what is done, partial and missing, and rejected rows. Exit code 1 unless all is done."""
    loaded, store = run.load()

    from closelook.jobs.commands.roots.status import status as show

    if not show(loaded, store):
        say("not all is done (exit code 1): `closelook run` with the same options computes what is missing")
        raise typer.Exit(1)


@command(RUNS, "plan --config demo")
def plan(run: RunOptions) -> None:
    """List the cells of a run and estimate what they cost, from measured runtimes if there are any."""
    loaded, store = run.load()

    from closelook.jobs.commands.roots.plan import show

    show(loaded, store)


DryRun = Annotated[bool, typer.Option("--dry-run", help="List the files without removing them.")]
Yes = Annotated[bool, typer.Option("--yes", help="Also remove results of other settings, not only leftovers.")]


@command(RUNS, "gc --config demo --dry-run")
def gc(run: RunOptions, dry_run: DryRun = False, yes: Yes = False) -> None:
    """Remove leftovers of killed writers and, with --yes, results that this configuration does not need; say why."""
    loaded, store = run.load(is_made=True)

    from closelook.jobs.commands.roots.gc import collect

    collect(loaded, store, dry_run=dry_run, stale_too=yes)


Name = Annotated[str, typer.Argument(help=" | ".join(names()) or NEEDS_CLONE, show_default=False)]
Quick = Annotated[bool, typer.Option("--quick", help="Measure small shapes with few repeats.")]

_PASSED_ON = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}


@command(RESULTS, "bench lrp --quick", context_settings=_PASSED_ON)
def bench(
    context: typer.Context,
    run: RunOptions,
    waiting: WaitingOptions,
    name: Name = "",
    quick: Quick = False,
    json: Json = None,
) -> None:
    """Run a benchmark: values, targets, met or missed. NAME --help shows its options; --root DIR keeps the results.

    Without NAME, run the stage `bench` of a run: table 8 for the models of its config, kept in its root.
    """
    if name == "--help":
        return say(context.get_help())
    has_options = quick or json or context.args
    if not name and not has_options:
        return run_stages(("bench",), run, waiting.wait)
    module = benchmark(name)
    arguments = ["--quick"] if quick else []
    for option, value in (("--config", run.config), ("--root", run.root), ("--json", json)):
        if value is not None:
            arguments += [option, str(value)]
    for override in run.set or ():
        arguments += ["--set", override]
    module.main([*arguments, *context.args])


Task = Annotated[str | None, typer.Option("--task", help="Audit this task only.")]
Part = Annotated[str | None, typer.Option("--part", help="Audit this part of the task only, such as ana.")]
Samples = Annotated[int | None, typer.Option("--n", help="The number of samples of each task, or of each part.")]
Deep = Annotated[bool, typer.Option("--deep", help="Read every file and compare it with its hash.")]


@command(RESULTS, "audit --config demo --task sva --n 3")
def audit(
    run: RunOptions, task: Task = None, n: Samples = None, part: Part = None, json: Json = None, deep: Deep = False
) -> None:
    """Audit the benchmark: rows read, accepted, rejected by reason; evidence. Exit code 1 if a file is damaged."""
    loaded, store = run.load(is_made=True)

    from closelook.jobs.commands.roots.audit import audit as show

    if not show(loaded, store, task, part, n, json, deep):
        raise typer.Exit(1)


Folder = Annotated[Path | None, typer.Option("--to", help="A new folder for the benchmark and its dataset card.")]
Tables = Annotated[
    Path | None,
    typer.Option("--relevance", metavar="OUT.parquet", help="Write relevance by word; OUT.tokens.parquet has tokens."),
]


@command(RESULTS, "export --config demo --relevance relevance.parquet")
def export(run: RunOptions, to: Folder = None, relevance: Tables = None) -> None:
    """Write the prepared benchmark as a data set with a card, or relevance as tidy rows, as explain-file does."""
    if to is None and relevance is None:
        raise UserError("say what to write: --to FOLDER for the benchmark, --relevance OUT.parquet for relevance")
    loaded, store = run.load(is_made=True)

    if to is not None:
        from closelook.jobs.commands.roots.audit import export as write

        for path in write(loaded, store, to):
            say(str(path))
    if relevance is not None:
        from closelook.jobs.commands.roots.explained import write_relevance

        write_relevance(store, relevance)


First = Annotated[str, typer.Argument(help="The root of the first run.")]
Second = Annotated[str, typer.Argument(help="The root of the second run.")]
Metric = Annotated[str | None, typer.Option("--metric", help="The metric to compare; default: the first.")]
Csv = Annotated[Path | None, typer.Option("--csv", help="Also write the scores to this CSV file.")]


@command(RESULTS, "compare runs/mine runs/other")
def compare(first: First, second: Second, metric: Metric = None, to: Csv = None) -> None:
    """Compare two runs: their settings, cells, scores (with paired tests) and cost."""
    from closelook.jobs.commands.roots.compare import show

    show(first, second, metric, to)
