"""The command-line application, and options that several commands share, as dataclasses: each field is an option.

Modules `commands.py` in the folders of jobs/commands add commands by `@command()`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import MISSING, dataclass, fields, is_dataclass
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, get_args, get_type_hints

import typer
from typer.models import ParameterInfo

from closelook.jobs.commands.stopping import Stoppable
from closelook.lrp_core.records.types import UserError

if TYPE_CHECKING:
    from closelook.explaining.opening import Opened
    from closelook.jobs.config import RunConfig
    from closelook.jobs.store import Store

Json = Annotated[Path | None, typer.Option("--json", help="Also write every number to this JSON file.")]
_MODEL = typer.Option("--model", "-m", help="demo/gpt2, a hub id or a directory.")
Model = Annotated[str, _MODEL]
Family = Annotated[str | None, typer.Option("--family", help="generic, for a model that no family describes.")]
Adapter = Annotated[str | None, typer.Option("--adapter", help="The folder or hub id of a LoRA adapter.")]
Methods = Annotated[
    str, typer.Option("--method", help="Methods, separated by commas; options as in attnlrp:composite=vit.")
]
GradientMethod = Annotated[str, typer.Option("--method", help="A method of one backward pass, such as attnlrp.")]
Truncate = Annotated[bool, typer.Option("--truncate", help="Shorten texts that are too long.")]
Columns = Annotated[
    list[str] | None,
    typer.Option("--column", metavar="text=NAME", help="The file's name of text, target, label, id, ..."),
]
Dtype = Annotated[str, typer.Option("--dtype", help="float32 | float64 | bfloat16 | float16")]
Explanation = Annotated[str | None, typer.Option("--explanation", help="contrastive | target | log_prob")]
Device = Annotated[str, typer.Option("--device", help="cpu, cuda, cuda:1, ...; auto: a GPU if there is one.")]


def grouped(command: Callable[..., Any]) -> Callable[..., Any]:
    """`command` in the form that typer needs: a parameter that is a dataclass becomes an option for each of its fields.

    `--help` shows these options in one panel, titled by the dataclass's docstring.
    """
    flat: list[Parameter] = []
    records: dict[str, type] = {}
    hints = get_type_hints(command, include_extras=True)
    for parameter in signature(command).parameters.values():
        kind = hints[parameter.name]
        if is_dataclass(kind) and isinstance(kind, type):
            records[parameter.name] = kind
            flat += _options_of(kind)
        else:
            flat.append(parameter.replace(annotation=kind, kind=Parameter.KEYWORD_ONLY))

    def called(**values: Any) -> Any:
        made = {}
        for name, kind in records.items():
            made[name] = kind(**{field.name: values.pop(field.name) for field in fields(kind)})
        return command(**values, **made)

    called.__name__, called.__doc__ = command.__name__, command.__doc__
    called.__signature__ = Signature(flat)  # type: ignore[attr-defined]
    called.__annotations__ = {parameter.name: parameter.annotation for parameter in flat}
    return called


def _options_of(record: type) -> Iterator[Parameter]:
    """A keyword parameter for each field of the dataclass `record`; `--help` shows them in a panel of their own."""
    hints = get_type_hints(record, include_extras=True)
    for field in fields(record):
        kind, *notes = get_args(hints[field.name])
        shown = [copy(note) for note in notes]
        for note in shown:
            if isinstance(note, ParameterInfo):
                note.rich_help_panel = (record.__doc__ or "").removesuffix(".")
        default = Parameter.empty if field.default is MISSING else field.default
        yield Parameter(field.name, Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, *shown])


@dataclass(frozen=True)
class RunOptions:
    """The run."""

    config: Annotated[
        str | None,
        typer.Option(
            "--config",
            "-c",
            help="A name in jobs/conf (demo, own, smoke, real, paper, attnlrp, normxlogit) or a path; "
            "else that of --root, else demo, or own if --set gives `tasks`.",
            show_default=False,
        ),
    ] = None
    root: Annotated[
        str | None, typer.Option("--root", help="The folder of all results: a path, s3:// or gs:// URL.")
    ] = None
    set: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a config key; repeatable.")
    ] = None

    def load(self, is_made: bool | None = None) -> tuple[RunConfig, Store]:
        """The configuration and the store of the run. Called before slow imports, so that mistakes show at once.

        `is_made`: raise UserError if the root holds no run; None: if only `root` is given.
        """
        from closelook.jobs.config.kept import holds_run, load

        loaded, store = load(self.config, self.root, self.set or ())
        if is_made is None:
            is_made = self.root is not None and self.config is None
        if is_made and not holds_run(store):
            raise UserError(
                f"there is no run in {store.root}: check the path, or start one there with `closelook run --root "
                f"{store.root} --config CONFIG`"
            )
        return loaded, store


@dataclass(frozen=True)
class WaitingOptions:
    """Other commands on the same run."""

    wait: Annotated[
        float, typer.Option("--wait", metavar="SECONDS", help="How long to wait for another run of this root.")
    ] = 0


@dataclass(frozen=True)
class ModelOptions:
    """The model."""

    model: Annotated[str | None, _MODEL] = None
    family: Family = None
    adapter: Adapter = None
    decoder_tokenizer: Annotated[
        str | None, typer.Option("--decoder-tokenizer", help="The tokenizer of an encoder-decoder's answers.")
    ] = None
    dtype: Dtype = "float32"
    device: Device = "auto"

    def check(self, reads: str = "text") -> None:
        """Raise UserError if no model is given; `reads` is the word for what it would read."""
        if self.model is None:
            raise UserError(f"no model is given to read the {reads}: add --model demo/gpt2, a hub id or a directory")

    def open(self) -> Opened:
        """The model, without its weights yet. Raises as :func:`open_model` does."""
        from closelook.explaining.opening import open_model
        from closelook.jobs.commands.init import name_of
        from closelook.jobs.config import ModelConfig
        from closelook.jobs.plan.checkpoints import fetch_weights, read_config
        from closelook.jobs.store.retry import HUB_PATIENCE_S, retried
        from closelook.lrp_core.families.generic import GENERIC

        self.check()
        model = str(self.model)
        family: Literal["generic"] | None = "generic" if self.family == GENERIC else None
        location, _ = read_config(ModelConfig(name=name_of(model), id=model, family=family))
        if not Path(location).is_dir():
            retried(lambda: fetch_weights(location, None), HUB_PATIENCE_S)
        return open_model(
            self.model,
            self.dtype,
            self.device,
            family=self.family,
            adapter=self.adapter,
            decoder_tokenizer=self.decoder_tokenizer,
        )


@dataclass(frozen=True)
class QuestionOptions:
    """The explained prediction."""

    target: Annotated[
        str | None, typer.Option("--target", help="The word to explain; default: the model's prediction.")
    ] = None
    foil: Annotated[str | None, typer.Option("--foil", help="The word or label to contrast the target with.")] = None
    label: Annotated[str | None, typer.Option("--label", help="A classifier's label; default: the predicted one.")] = (
        None
    )
    second: Annotated[str | None, typer.Option("--second", help="The second text of a pair.")] = None
    explanation: Explanation = None


@dataclass(frozen=True)
class ShownOptions:
    """The neurons that are shown."""

    method: GradientMethod = "attnlrp"
    top: Annotated[int, typer.Option("--top", help="The number of neurons.", min=0)] = 10
    json: Json = None


def named_columns(entries: Iterable[str] | None) -> dict[str, str]:
    """The file's column name by known column, from texts like `text=NAME`. Raises UserError for any other text."""
    columns = {}
    for text in entries or ():
        known, equals, name = text.partition("=")
        if not (known and equals and name):
            raise UserError(f"--column must be written text=NAME, not {text!r}")
        columns[known] = name
    return columns


#: Arguments of the Python functions that commands have as options; errors name them in backticks.
_OPTIONS = (
    "target",
    "foil",
    "label",
    "second",
    "method",
    "explanation",
    "prefix",
    "generate",
    "truncate",
    "words",
    "messages",
    "answer",
    "spans",
    "family",
    "adapter",
    "decoder_tokenizer",
    "dtype",
    "device",
)


@contextmanager
def naming_options() -> Iterator[None]:
    """Let errors that are raised inside the block name options (--target) instead of Python's arguments (`target`)."""
    try:
        yield
    except UserError as error:
        error.args = (as_options(str(error)),)
        raise


def as_options(text: str) -> str:
    """A message in which options of the command line replace arguments of Python.

    >>> as_options("`truncate` reads a part of it")
    '--truncate reads a part of it'
    """
    return re.sub(f"`({'|'.join(_OPTIONS)})`", lambda argument: f"--{argument[1].replace('_', '-')}", text)


F = TypeVar("F", bound=Callable[..., Any])

app = typer.Typer(
    cls=Stoppable,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Attributions for transformers, tested against evidence and by removing tokens.",
    epilog="Begin with: closelook explain --model demo/gpt2 'The keys to the cabinet' --target are --foil is",
)

#: Headings of `closelook --help`.
TEXTS, RUNS, RESULTS, RECORDS = "Texts of your own (begin here)", "Runs", "Results of runs", "Lists and settings"


def command(heading: str, example: str, **settings: Any) -> Callable[[F], F]:
    """A decorator that adds a function to the command line, under one of the headings of `closelook --help`.

    The command has the function's name, its docstring as help, and the arguments of an `example` below it. A parameter
    that is a dataclass becomes an option for each of its fields. `settings` are arguments of typer's `command`.
    """

    def add(function: F) -> F:
        epilog = f"Example: closelook {example}"
        app.command(rich_help_panel=heading, epilog=epilog, **settings)(grouped(function))
        return function

    return add
