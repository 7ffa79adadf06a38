"""The command line: one function a command. Heavy imports wait until a command needs them."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from typer.core import TyperGroup

from jobs.bench import BENCHES
from jobs.commands import own
from jobs.commands.options import Config, Root, Set, Wait
from jobs.stages.run import STAGES
from lrp_core.types import UserError

if TYPE_CHECKING:
    from jobs.config import RunConfig
    from jobs.stages.summary import StageSummary
    from jobs.store import Store


class _Terminated(KeyboardInterrupt):
    """SIGTERM, as when a node is taken back: it ends a command as Ctrl-C does."""


def _terminate(number: int, frame: Any) -> None:
    raise _Terminated


def _end_children() -> None:
    """End what this command started, a Ray of its own among it; a cluster that it joined sees it go.

    Not `ray.shutdown()`: a thread of a model that then still calls Ray ends this process, with exit code 1.
    """
    import psutil

    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            child.kill()


class _Stoppable(TyperGroup):
    """Commands that Ctrl-C and SIGTERM end with one line, and with 130 or 143 as shells expect."""

    def invoke(self, ctx: Any) -> Any:
        here = threading.current_thread() is threading.main_thread()
        before = signal.signal(signal.SIGTERM, _terminate) if here else None
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as why:
            errors.print("stopped; run the same command again to continue")
            sys.stdout.flush()
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # the models' threads complain of what is taken from them
            try:
                _end_children()
            finally:
                os._exit(143 if isinstance(why, _Terminated) else 130)  # sys.exit would wait for those threads
        finally:
            if here:
                signal.signal(signal.SIGTERM, before or signal.SIG_DFL)


app = typer.Typer(
    cls=_Stoppable,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Decomposition-based attributions for transformer language models, as a distributed benchmark.",
)
console = Console(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else 160)
errors = Console(stderr=True, highlight=False, soft_wrap=True)


def _version(wanted: bool) -> None:
    if wanted:
        from jobs.versions import versions

        known = versions()
        for name in sorted(known, key=lambda name: name != "closelook"):
            console.print(f"{name} {known[name]}", markup=False)
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
    _run_stages(tuple(STAGES), config, root, set, wait)


def _stage_command(name: str, doc: str) -> Callable[..., None]:
    def command(config: Config = None, root: Root = None, set: Set = None, wait: Wait = 0) -> None:
        _run_stages((name,), config, root, set, wait)

    command.__doc__ = doc
    return command


for _stage in STAGES.values():
    if not _stage.own_command:
        app.command(_stage.name)(_stage_command(_stage.name, _stage.about))


@app.command()
def status(config: Config = None, root: Root = None, set: Set = None) -> None:
    """Planned cells: done, partial, missing, rejected rows. Exit code 1 unless all are done."""
    loaded, store = _load(config, root, set)

    from jobs.commands.status import status as show

    if not show(loaded, store, console):
        raise typer.Exit(1)


@app.command()
def plan(config: Config = None, root: Root = None, set: Set = None) -> None:
    """The cells of a run and what they will cost, from measured runtimes where there are any."""
    loaded, store = _load(config, root, set)

    from jobs.commands.plan import show

    show(loaded, store, console)


@app.command()
def gc(
    config: Config = None,
    root: Root = None,
    set: Set = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list what would go.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Remove what is stale too, not only leftovers.")] = False,
) -> None:
    """Remove leftovers of killed writers and, with --yes, what this configuration has no use for; say why."""
    loaded, store = _load(config, root, set)

    from jobs.commands.gc import collect

    collect(loaded, store, console, dry_run=dry_run, stale_too=yes)


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
        console.print(context.get_help(), markup=False)
        return
    if not name:
        if quick or json or context.args:
            raise UserError(f"say which benchmark: {', '.join(BENCHES)}")
        return _run_stages(("bench",), config, root, set, wait)
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
    n: Annotated[int | None, typer.Option("--n", help="Only so many samples of each task.")] = None,
    json: Annotated[Path | None, typer.Option("--json", help="Write the audit there.")] = None,
) -> None:
    """The benchmark's audit: rows in, accepted, rejected by reason, shares of evidence."""
    loaded, store = _load(config, root, set)

    from jobs.commands.audit import audit as show

    show(loaded, store, console, task=task, n=n, json_file=json)


@app.command()
def export(
    to: Annotated[Path, typer.Option("--to", help="A new folder for the benchmark and its card.")],
    config: Config = None,
    root: Root = None,
    set: Set = None,
) -> None:
    """Write the prepared benchmark as a data set with a card."""
    loaded, store = _load(config, root, set)

    from jobs.commands.audit import export as write

    for path in write(loaded, store, to):
        console.print(str(path), markup=False)


@app.command()
def methods(
    name: Annotated[str | None, typer.Argument(help="Show this one in full.", show_default=False)] = None,
) -> None:
    """The methods there are: what they need and give, what they cost, their options."""
    from jobs.commands.methods import show

    show(console, name)


def _listing(name: str, doc: str) -> Callable[..., None]:
    def command() -> None:
        import_module(f"jobs.commands.{name}").show(console)

    command.__doc__ = doc
    return command


for _name, _doc in {
    "tasks": "The tasks there are: what is predicted, from which sources, and what counts as evidence.",
    "models": "The kinds and families of models there are, and which methods apply to them.",
}.items():
    app.command(_name)(_listing(_name, _doc))


@app.command()
def explain(
    sentence: Annotated[str, typer.Argument(help="The text (___ marks the target's place), or a picture's file.")],
    model: Annotated[str, typer.Option("--model", "-m", help="demo/gpt2, a hub id or a directory.")],
    target: Annotated[str | None, typer.Option("--target", help="The word to explain; else the model's own.")] = None,
    foil: Annotated[str | None, typer.Option("--foil", help="The word or label it is contrasted with.")] = None,
    label: Annotated[str | None, typer.Option("--label", help="A classifier's label; else what it predicts.")] = None,
    second: Annotated[str | None, typer.Option("--second", help="The other text of a pair.")] = None,
    method: Annotated[
        str, typer.Option("--method", help="Methods, separated by commas; options as in attnlrp:composite=vit.")
    ] = "attnlrp",
    explanation: Annotated[str | None, typer.Option("--explanation", help="contrastive | target | log_prob")] = None,
    prefix: Annotated[str | None, typer.Option("--prefix", help="The answer so far, of an encoder-decoder.")] = None,
    generate: Annotated[int, typer.Option("--generate", help="Tokens to predict and explain in turn.")] = 1,
    family: Annotated[str | None, typer.Option("--family", help="generic: a model that no family describes.")] = None,
    adapter: Annotated[str | None, typer.Option("--adapter", help="A LoRA adapter's folder or hub id.")] = None,
    words: Annotated[bool, typer.Option("--words", help="Sum the pieces of a word.")] = False,
    layers: Annotated[bool, typer.Option("--layers", help="Also what becomes of relevance layer by layer.")] = False,
    html: Annotated[Path | None, typer.Option("--html", help="Also write a page.")] = None,
    json: Annotated[Path | None, typer.Option("--json", help="Also write every number as JSON.")] = None,
    dtype: Annotated[str, typer.Option("--dtype", help="float32 | float64 | bfloat16 | float16")] = "float32",
    device: Annotated[str, typer.Option("--device", help="cpu, cuda, cuda:1, ...")] = "cpu",
) -> None:
    """Explain one prediction, or several in turn, in the terminal, coloured."""
    from jobs.typed import every_typed

    every_typed(method)  # before the heavy imports: a mistyped name is told at once

    from jobs.commands.explain import explain as show
    from jobs.commands.question import Question

    question = Question(sentence, target, foil, label, second, explanation, generate, prefix=prefix)
    show(
        question,
        model,
        method,
        console,
        html=html,
        json_file=json,
        by_word=words,
        layers=layers,
        dtype=dtype,
        device=device,
        family=family,
        adapter=adapter,
    )


@app.command()
def neurons(
    text: Annotated[
        str | None,
        typer.Argument(help="Without it: the stage.", show_default=False),
    ] = None,
    model: Annotated[str | None, typer.Option("--model", "-m", help="demo/gpt2, a hub id or a directory.")] = None,
    target: Annotated[str | None, typer.Option("--target", help="The word to explain; else the model's own.")] = None,
    foil: Annotated[str | None, typer.Option("--foil", help="The word or label it is contrasted with.")] = None,
    label: Annotated[str | None, typer.Option("--label", help="A classifier's label; else what it predicts.")] = None,
    second: Annotated[str | None, typer.Option("--second", help="The other text of a pair.")] = None,
    method: Annotated[str, typer.Option("--method", help="Of the gradient family.")] = "attnlrp",
    explanation: Annotated[str | None, typer.Option("--explanation", help="contrastive | target | log_prob")] = None,
    top: Annotated[int, typer.Option("--top", help="So many neurons.", min=0)] = 10,
    absolute: Annotated[bool, typer.Option("--absolute", help="The largest by magnitude.")] = False,
    set: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="L.N=V", help="Give it this value."),
    ] = None,
    scale: Annotated[
        list[str] | None, typer.Option("--scale", metavar="L.N=F", help="Multiply its activation.")
    ] = None,
    last: Annotated[bool, typer.Option("--last", help="Change it where the model predicts, not everywhere.")] = False,
    generate: Annotated[int, typer.Option("--generate", help="Tokens to go on with, before and after.")] = 1,
    normed: Annotated[
        bool, typer.Option("--normed", help="Fold the final norm's weight into what is written.")
    ] = False,
    json: Annotated[Path | None, typer.Option("--json", help="Also write every number as JSON.")] = None,
    dtype: Annotated[str, typer.Option("--dtype", help="float32 | float64 | bfloat16 | float16")] = "float32",
    device: Annotated[str, typer.Option("--device", help="cpu, cuda, cuda:1, ...")] = "cpu",
    neuron: Annotated[str | None, typer.Option("--neuron", metavar="L.N", help="Its best contexts.")] = None,
    corpus: Annotated[Path | None, typer.Option("--corpus", help="A text file, a text a line.")] = None,
    config: Config = None,
    root: Root = None,
    wait: Wait = 0,
) -> None:
    """The neurons that matter for a prediction, what each writes, and what is predicted when some are changed.

    With --neuron and --corpus, or --root: where in a text file, or in a run's corpus, one neuron is most active, and
    which tokens make it so. Without any of them it is a stage of the run: the corpus is read, and neurons are knocked
    out, by what methods say of them.
    """
    if neuron is not None or corpus is not None:
        if neuron is None or text is not None:
            raise UserError("the best contexts of a neuron need --neuron LAYER.NEURON, and no text")
        if corpus is not None:
            if model is None:
                raise UserError("say which model reads the corpus: --model demo/gpt2, a hub id or a directory")

            from jobs.commands.contexts import show_contexts

            return show_contexts(model, neuron, corpus, method, console, top=top, dtype=dtype, device=device)
        if config is None and root is None:
            raise UserError("say where: --corpus FILE with --model M, or --root DIR of a run that read a corpus")
        loaded, store = _load(config, root, None)

        from jobs.commands.contexts import show_kept

        return show_kept(loaded, store, neuron, method, console, model=model, top=top, device=device)
    if text is None:
        if model is not None:
            raise UserError("give a text that the model is to go on with, or leave --model out to run the stage")
        return _run_stages(("neurons",), config, root, set, wait)
    if model is None:
        raise UserError("say which model reads the text: --model demo/gpt2, a hub id or a directory")
    from jobs.typed import typed

    typed(method)  # before the heavy imports: a mistyped name is told at once

    from jobs.commands.question import Question
    from jobs.commands.steering import Steering, show_neurons

    question = Question(text, target, foil, label, second, explanation)
    show_neurons(
        question,
        model,
        method,
        console,
        top=top,
        generate=generate,
        steering=Steering.of(set or (), scale or (), last),
        normed=normed,
        absolute=absolute,
        json_file=json,
        dtype=dtype,
        device=device,
    )


own.add_to(app)


def _load(config: str | None, root: str | None, overrides: list[str] | None) -> tuple[RunConfig, Store]:
    """Before the heavy imports of a command: a mistake in the configuration is told at once."""
    from jobs.config.kept import load

    return load(config, root, overrides or ())


def _run_stages(
    stages: tuple[str, ...], config: str | None, root: str | None, overrides: list[str] | None, wait_s: float
) -> None:
    loaded, store = _load(config, root, overrides)

    from jobs.cluster.pools import check_address
    from jobs.config.kept import keeping
    from jobs.plan.cells import validate
    from jobs.stages.run import run as run_stages
    from jobs.store.lock import run_lock
    from jobs.store.runs import recorded

    validate(loaded)
    check_address(loaded)
    store.create()
    with run_lock(store, wait_s), keeping(loaded, store) as changed, recorded(loaded, store, stages) as record:
        if changed:
            console.print(f"the configuration that {store.root} keeps changes:", markup=False)
        for difference in changed:
            console.print(f"  {difference}", markup=False)
        summaries = []
        for summary in run_stages(loaded, store, stages):
            _show(summary)
            record(summary)
            summaries.append(summary)
    if not all(summary.complete for summary in summaries):
        raise typer.Exit(1)
    if not any(summary.computed for summary in summaries):
        console.print(f"nothing to do: everything in {store.root} is complete")


def _show(summary: StageSummary) -> None:
    console.print(f"{summary.stage}: {summary.computed} computed, {summary.skipped} up to date", style="bold")
    for line in summary.lines:
        console.print(f"  {line}", markup=False)
    for failure in summary.failures:
        errors.print(f"  {failure}", style="red", markup=False)


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
    """None for what nobody foresaw."""
    from evaluation.schema import SchemaMismatch
    from jobs.cluster.pools import ClusterUnreachable
    from jobs.plan.hub import ModelUnavailable
    from jobs.store.lock import Locked

    if isinstance(error, SchemaMismatch):
        return 2
    foreseen = Locked | ModelUnavailable | ClusterUnreachable | OSError  # OSError: of the store
    return 1 if isinstance(error, foreseen) else None


def _fail(error: Exception, code: int) -> None:
    errors.print(f"error: {' '.join(str(error).split())}", style="red", markup=False)
    sys.exit(code)


if __name__ == "__main__":
    main()
