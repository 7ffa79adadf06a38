"""The command line: one function a command. Heavy imports wait until a command needs them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from jobs.commands.app import MODEL, Config, Root, Set, Wait, app
from jobs.commands.asking import explain, neurons
from jobs.commands.benchmarks import NEEDS_CLONE, benchmark
from jobs.commands.benchmarks import names as benchmark_names
from jobs.commands.runs import load_run, run_stages
from jobs.commands.terminal import complain, say
from jobs.stages.record import STAGES
from lrp_core.types import UserError

NewFolder = Annotated[Path, typer.Option("--to", help="A new folder for the benchmark and its card.")]
Keys = Annotated[str | None, typer.Option("--keys", help="Explain keys with this in their name; '' for all.")]


def _version(is_asked: bool) -> None:
    if not is_asked:
        return
    from jobs.versions import versions

    known = versions()
    for name in sorted(known, key=lambda name: name != "closelook"):
        say(f"{name} {known[name]}")
    raise typer.Exit


@app.callback()
def _every(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print versions, closelook's first.")
    ] = False,
) -> None:
    """Options of closelook itself."""


def _add_stages(name: str, about: str, stages: tuple[str, ...]) -> None:
    """Add a command that runs these stages."""

    def command(config: Config = None, root: Root = None, set: Set = None, wait: Wait = 0) -> None:
        run_stages(stages, config, root, set, wait)

    app.command(name, help=about)(command)


_add_stages("run", f"Everything that is missing: {', '.join(STAGES)}.", tuple(STAGES))
for _stage in STAGES.values():
    if not _stage.own_command:
        _add_stages(_stage.name, _stage.about, (_stage.name,))


@app.command()
def stop(root: Annotated[str, typer.Argument(help="The root of the run.")]) -> None:
    """End a run after the units in hand: it begins no other. The same command goes on where it stopped."""
    _, store = load_run(None, root, None, is_made=True, is_read=True)

    from jobs.commands.stopping import stop as ask

    ask(store)


@app.command()
def status(config: Config = None, root: Root = None, set: Set = None) -> None:
    """Planned cells: done, partial, missing, rejected rows. Exit code 1 unless all are done."""
    loaded, store = load_run(config, root, set, is_read=True)

    from jobs.commands.status import status as show

    if not show(loaded, store):
        raise typer.Exit(1)


@app.command()
def plan(config: Config = None, root: Root = None, set: Set = None) -> None:
    """The cells of a run and what they will cost, from measured runtimes where there are any."""
    loaded, store = load_run(config, root, set)

    from jobs.commands.plan import show

    show(loaded, store)


@app.command()
def gc(
    config: Config = None,
    root: Root = None,
    set: Set = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list what would go.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Remove what is stale too, not only leftovers.")] = False,
) -> None:
    """Remove leftovers of killed writers and, with --yes, what this configuration has no use for; say why."""
    loaded, store = load_run(config, root, set, is_made=True)

    from jobs.commands.gc import collect

    collect(loaded, store, dry_run=dry_run, stale_too=yes)


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []})
def bench(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help=" | ".join(benchmark_names()) or NEEDS_CLONE, show_default=False)] = "",
    config: Annotated[str | None, typer.Option("--config", "-c", help="Without NAME: the run to measure.")] = None,
    root: Root = None,
    set: Set = None,
    wait: Wait = 0,
    quick: Annotated[bool, typer.Option("--quick", help="Small shapes, few repeats.")] = False,
    json: Annotated[Path | None, typer.Option("--json", help="Write the results there.")] = None,
) -> None:
    """Measure: value, target, met or missed. NAME --help shows its options; --root DIR keeps the results as Parquet.

    Without NAME it is a stage of the run: table 8 of the config's own models, kept in its root.
    """
    if name == "--help":
        return say(context.get_help())
    has_options = quick or json or context.args
    if not name and not has_options:
        return run_stages(("bench",), config, root, set, wait)
    module = benchmark(name)
    arguments = ["--quick"] if quick else []
    for option, value in (("--config", config), ("--root", root), ("--json", json)):
        if value is not None:
            arguments += [option, str(value)]
    for override in set or ():
        arguments += ["--set", override]
    module.main([*arguments, *context.args])


@app.command()
def audit(
    config: Config = None,
    root: Root = None,
    set: Set = None,
    task: Annotated[str | None, typer.Option("--task", help="Only this task.")] = None,
    n: Annotated[int | None, typer.Option("--n", help="Only so many samples of each task, or of each part.")] = None,
    part: Annotated[str | None, typer.Option("--part", help="Only this part of the task, such as ana.")] = None,
    json: Annotated[Path | None, typer.Option("--json", help="Write the audit there.")] = None,
) -> None:
    """The benchmark's audit: rows in, accepted, rejected by reason, shares of evidence. Exit code 1 for lost files."""
    loaded, store = load_run(config, root, set, is_made=True)

    from jobs.commands.audit import audit as show

    if not show(loaded, store, task, part, n, json):
        raise typer.Exit(1)


@app.command()
def export(
    to: NewFolder,
    config: Config = None,
    root: Root = None,
    set: Set = None,
) -> None:
    """Write the prepared benchmark as a data set with a card."""
    loaded, store = load_run(config, root, set, is_made=True)

    from jobs.commands.audit import export as write

    for path in write(loaded, store, to):
        say(str(path))


@app.command()
def methods(
    name: Annotated[str | None, typer.Argument(help="Show this one in full.", show_default=False)] = None,
) -> None:
    """The methods there are: what they need and give, what they cost, their options."""
    from jobs.commands.methods import show

    show(name)


@app.command()
def tasks() -> None:
    """The tasks there are: what is predicted, from which sources, and what counts as evidence."""
    from jobs.commands.tasks import show

    show()


@app.command()
def models() -> None:
    """The kinds and families of models there are, and which methods apply to them."""
    from jobs.commands.models import show

    show()


app.command()(explain)
app.command()(neurons)


@app.command()
def init(
    file: Annotated[Path, typer.Argument(help="The config to write: FILE.yaml.")],
    model: Annotated[str, MODEL],
    data: Annotated[Path | None, typer.Option("--data", help="Your samples: JSON Lines, CSV or Parquet.")] = None,
    method: Annotated[str | None, typer.Option("--method", help="Methods, separated by commas.")] = None,
) -> None:
    """Write a commented config for your model and data."""
    from jobs.commands.init import write

    write(file, model, data, method)


@app.command()
def config(
    config: Config = None,
    root: Root = None,
    set: Set = None,
    keys: Keys = None,
) -> None:
    """Print the configuration in effect, defaults filled in; or, with --keys, what keys there are."""
    from jobs.commands.config import show, show_keys

    if keys is not None:
        return show_keys(keys)
    loaded, _ = load_run(config, root, set)
    show(loaded)


@app.command()
def compare(
    first: Annotated[str, typer.Argument(help="The root of one run.")],
    second: Annotated[str, typer.Argument(help="The root of the other.")],
    metric: Annotated[str | None, typer.Option("--metric", help="What to compare; default: the leading one.")] = None,
    to: Annotated[Path | None, typer.Option("--csv", help="Also write every number there.")] = None,
    html: Annotated[Path | None, typer.Option("--html", help="Also write a page with samples of both runs.")] = None,
) -> None:
    """Compare two runs: settings, cells, scores with paired tests, cost."""
    from jobs.commands.compare import show

    show(first, second, metric, to, html)


def main() -> None:
    """Bad input is one line and exit code 2; a run that cannot complete now is one line and exit code 1."""
    try:
        app()
    except UserError as error:
        _fail(error, 2)
    except ModuleNotFoundError as error:
        from jobs.versions import extra_of

        module = (error.name or "").partition(".")[0]
        extra = extra_of(module)
        if extra is None:
            raise
        _fail(UserError(f"this command needs {module}: pip install 'closelook[{extra}]'"), 2)
    except Exception as error:
        code = _exit_code(error)
        if code is None:
            raise
        _fail(error, code)


def _exit_code(error: Exception) -> int | None:
    """The exit code of a foreseen error; None for any other."""
    from evaluation.schema import SchemaMismatch
    from jobs.cluster.pools import ClusterUnreachable
    from jobs.plan.checkpoints import ModelUnavailable
    from jobs.store.lock import Locked

    if isinstance(error, SchemaMismatch):
        return 2
    foreseen = Locked | ModelUnavailable | ClusterUnreachable | OSError  # OSError: of the store
    return 1 if isinstance(error, foreseen) else None


def _fail(error: Exception, code: int) -> None:
    complain(f"error: {' '.join(str(error).split())}", "red")
    sys.exit(code)


if __name__ == "__main__":
    main()
