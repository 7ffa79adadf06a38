"""The command line: one function a command. Heavy imports wait until a command needs them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer

from jobs.bench import BENCHES
from jobs.commands import asking, own, terminal
from jobs.commands.options import Config, Root, Set, Wait
from jobs.commands.stopping import Stoppable
from jobs.stages.run import STAGES
from lrp_core.types import UserError

app = typer.Typer(
    cls=Stoppable,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Decomposition-based attributions for transformer language models, as a distributed benchmark.",
)


def _version(wanted: bool) -> None:
    if wanted:
        from jobs.versions import versions

        known = versions()
        for name in sorted(known, key=lambda name: name != "closelook"):
            terminal.console.print(f"{name} {known[name]}", markup=False)
        raise typer.Exit


@app.callback()
def _every(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print versions, closelook's first.")
    ] = False,
) -> None:
    """Options of closelook itself."""


@app.command(help=f"Everything that is missing: {', '.join(STAGES)}.")
def run(config: Config = None, root: Root = None, set: Set = None, wait: Wait = 0) -> None:
    terminal.run_stages(tuple(STAGES), config, root, set, wait)


def _stage_command(name: str, doc: str) -> Callable[..., None]:
    def command(config: Config = None, root: Root = None, set: Set = None, wait: Wait = 0) -> None:
        terminal.run_stages((name,), config, root, set, wait)

    command.__doc__ = doc
    return command


for _stage in STAGES.values():
    if not _stage.own_command:
        app.command(_stage.name)(_stage_command(_stage.name, _stage.about))


@app.command()
def status(config: Config = None, root: Root = None, set: Set = None) -> None:
    """Planned cells: done, partial, missing, rejected rows. Exit code 1 unless all are done."""
    loaded, store = terminal.load_run(config, root, set, is_made=root is not None and config is None, is_read=True)

    from jobs.commands.status import status as show

    if not show(loaded, store, terminal.console):
        raise typer.Exit(1)


@app.command()
def plan(config: Config = None, root: Root = None, set: Set = None) -> None:
    """The cells of a run and what they will cost, from measured runtimes where there are any."""
    loaded, store = terminal.load_run(config, root, set, is_made=root is not None and config is None)

    from jobs.commands.plan import show

    show(loaded, store, terminal.console)


@app.command()
def gc(
    config: Config = None,
    root: Root = None,
    set: Set = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list what would go.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Remove what is stale too, not only leftovers.")] = False,
) -> None:
    """Remove leftovers of killed writers and, with --yes, what this configuration has no use for; say why."""
    loaded, store = terminal.load_run(config, root, set, is_made=True)

    from jobs.commands.gc import collect

    collect(loaded, store, terminal.console, dry_run=dry_run, stale_too=yes)


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []})
def bench(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help=" | ".join(BENCHES), show_default=False)] = "",
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
    from jobs.config.file import nearest

    if name == "--help":
        terminal.console.print(context.get_help(), markup=False)
        return
    if not name:
        if quick or json or context.args:
            raise UserError(f"say which benchmark: {', '.join(BENCHES)}")
        return terminal.run_stages(("bench",), config, root, set, wait)
    if name not in BENCHES:
        raise UserError(f"no benchmark {name!r}{nearest(name, BENCHES)}")
    given = [("--config", config), ("--root", root), *(("--set", value) for value in set or ()), ("--json", json)]
    arguments = [text for option, value in given if value is not None for text in (option, str(value))]
    import_module(f"jobs.bench.{name}").main([*arguments, *["--quick"] * quick, *context.args])


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
    loaded, store = terminal.load_run(config, root, set, is_made=True)

    from jobs.commands.audit import audit as show

    if not show(loaded, store, terminal.console, task=task, part=part, n=n, json_file=json):
        raise typer.Exit(1)


@app.command()
def export(
    to: Annotated[Path, typer.Option("--to", help="A new folder for the benchmark and its card.")],
    config: Config = None,
    root: Root = None,
    set: Set = None,
) -> None:
    """Write the prepared benchmark as a data set with a card."""
    loaded, store = terminal.load_run(config, root, set, is_made=True)

    from jobs.commands.audit import export as write

    for path in write(loaded, store, to):
        terminal.console.print(str(path), markup=False)


@app.command()
def methods(
    name: Annotated[str | None, typer.Argument(help="Show this one in full.", show_default=False)] = None,
) -> None:
    """The methods there are: what they need and give, what they cost, their options."""
    from jobs.commands.methods import show

    show(terminal.console, name)


def _listing(name: str, doc: str) -> Callable[..., None]:
    def command() -> None:
        import_module(f"jobs.commands.{name}").show(terminal.console)

    command.__doc__ = doc
    return command


for _name, _doc in {
    "tasks": "The tasks there are: what is predicted, from which sources, and what counts as evidence.",
    "models": "The kinds and families of models there are, and which methods apply to them.",
}.items():
    app.command(_name)(_listing(_name, _doc))


asking.add_to(app)
own.add_to(app)


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
    from jobs.plan.hub import ModelUnavailable
    from jobs.store.lock import Locked

    if isinstance(error, SchemaMismatch):
        return 2
    foreseen = Locked | ModelUnavailable | ClusterUnreachable | OSError  # OSError: of the store
    return 1 if isinstance(error, foreseen) else None


def _fail(error: Exception, code: int) -> None:
    terminal.errors.print(f"error: {' '.join(str(error).split())}", style="red", markup=False)
    sys.exit(code)


if __name__ == "__main__":
    main()
