"""Commands that open a model: explain predictions, show and change neurons, verify."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from closelook.jobs.commands.options import (
    TEXTS,
    Adapter,
    Device,
    Dtype,
    Family,
    Json,
    Methods,
    ModelOptions,
    QuestionOptions,
    RunOptions,
    ShownOptions,
    Truncate,
    WaitingOptions,
    command,
    naming_options,
)
from closelook.jobs.commands.roots.runs import run_stages
from closelook.lrp_core.records.types import UserError


def _characters(spans: str | None) -> Any:
    """The spans of an answer: a word, or pairs of characters written 0:17,18:40. Raises UserError for other text."""
    if spans is None or ":" not in spans:
        return spans
    pairs = []
    for part in spans.split(","):
        start, _, end = part.partition(":")
        if not (start.strip().isdigit() and end.strip().isdigit()):
            raise UserError(f"characters must be written START:END, as 0:17, not {part!r}")
        pairs.append((int(start), int(end)))
    return pairs


@command(TEXTS, "explain --model demo/gpt2 'The keys to the cabinet' --target are --foil is")
def explain(
    of: ModelOptions,
    asked: QuestionOptions,
    sentence: Annotated[
        str | None,
        typer.Argument(
            help="The text, with ___ at the target if it is inside, or a picture's file.", show_default=False
        ),
    ] = None,
    messages: Annotated[
        Path | None, typer.Option("--messages", help="A chat instead of the text: JSON, a list of {role, content}.")
    ] = None,
    method: Methods = "attnlrp",
    prefix: Annotated[
        str | None, typer.Option("--prefix", help="The beginning of an encoder-decoder's answer.")
    ] = None,
    answer: Annotated[
        str | None, typer.Option("--answer", help="The text of an answer; with --spans, it may be generated.")
    ] = None,
    spans: Annotated[
        str | None,
        typer.Option("--spans", help="The spans of the answer: sentence, token, or characters as 0:17,18:40."),
    ] = None,
    generate: Annotated[
        int, typer.Option("--generate", help="The number of tokens to predict and explain in turn.")
    ] = 1,
    words: Annotated[
        str, typer.Option("--words", help="Of words of several tokens, explain: single | first_difference | each.")
    ] = "single",
    by_word: Annotated[
        bool, typer.Option("--by-word", help="Sum relevance by word; mean for methods without sums.")
    ] = False,
    truncate: Truncate = False,
    html: Annotated[Path | None, typer.Option("--html", help="Also write an HTML page.")] = None,
    json: Json = None,
) -> None:
    """Explain one prediction, several in turn, or an answer, in the terminal, coloured."""
    from closelook.methods import parse_methods

    of.check()
    methods = parse_methods(method)  # before the heavy imports: a mistyped name shows at once

    from closelook.explaining.explained import explain_in_turn
    from closelook.explaining.front import ask, explanation_of
    from closelook.explaining.inputs import chat_in
    from closelook.progress import shown
    from closelook.terminal import as_json, write_file

    with naming_options():
        if (sentence is None) == (messages is None):
            raise UserError("give either a text or the file of a chat (`messages`)")
        entry = sentence if messages is None else chat_in(messages)
        opened = of.open()
        settings: dict[str, Any] = {"prefix": prefix, "answer": answer, "spans": _characters(spans), "words": words}
        item, question = ask(entry, opened, truncate=truncate, generate=generate, **settings, **vars(asked))
        with shown():
            answers = tuple(explain_in_turn(item, question, opened, methods))
        explanation = explanation_of(item, opened, answers)
        explanation.show(by_word)
        if html is not None:
            write_file(html, explanation.page(by_word))
        if json is not None:
            write_file(json, as_json(explanation.to_dict()))


Model = Annotated[str, typer.Argument(help="demo/gpt2, a hub id or a directory.")]
Checked = Annotated[str | None, typer.Option("--method", help="The methods to check, separated by commas.")]


@command(TEXTS, "verify demo/gpt2")
def verify(
    model: Model,
    method: Checked = None,
    family: Family = None,
    adapter: Adapter = None,
    json: Json = None,
    dtype: Dtype = "float32",
    device: Device = "auto",
) -> None:
    """Check on this machine that explained models predict as usual, and that relevance follows its rules.

    Exit code 1 if a check fails. Most checks then name the shortest input that fails, or the first layer that differs.
    """
    from closelook.jobs.commands.verify import show
    from closelook.jobs.commands.verify import verify as check

    names = None if method is None else [name.strip() for name in method.split(",")]
    with naming_options():
        verification = check(model, method=names, dtype=dtype, device=device, family=family, adapter=adapter)
    if not show(verification, json):
        raise typer.Exit(1)


@dataclass(frozen=True)
class ChangeOptions:
    """Change neurons, and see what is predicted."""

    set: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="L.N=V", help="Set the neuron to this value (L.E.N=V in a mixture of experts)."),
    ] = None
    scale: Annotated[
        list[str] | None,
        typer.Option("--scale", metavar="L.N=F", help="Multiply the neuron's activation by this factor."),
    ] = None
    generate: Annotated[
        int, typer.Option("--generate", help="The number of tokens to generate, without and with the change.")
    ] = 1


@dataclass(frozen=True)
class StageOptions(WaitingOptions):
    """Without a text: the stage of a run, whose keys --set overrides."""

    config: Annotated[str | None, typer.Option("--config", "-c", help="As in `closelook run`.")] = None
    root: Annotated[str | None, typer.Option("--root", help="As in `closelook run`.")] = None


Text = Annotated[str | None, typer.Argument(help="The text; without it, the stage runs.", show_default=False)]


@command(TEXTS, "neurons --model demo/llama 'The keys to the cabinet' --target are --foil is")
def neurons(
    of: ModelOptions,
    asked: QuestionOptions,
    shown: ShownOptions,
    change: ChangeOptions,
    stage: StageOptions,
    text: Text = None,
) -> None:
    """Show the most relevant neurons for a prediction, their logit lens, and the prediction after changing some.

    Without a text, run the stage `neurons` of a run: ablation of the most relevant neurons, and their max-activating
    examples in the corpus.
    """
    of_text = (of, asked, shown, replace(change, set=None))
    if text is None:
        if of_text != (ModelOptions(), QuestionOptions(), ShownOptions(), ChangeOptions()):
            raise UserError(
                "no text is given: add one; or, to run the stage neurons of a run, give only --config, --root, --set "
                "and --wait"
            )
        return run_stages(("neurons",), RunOptions(stage.config, stage.root, change.set), stage.wait)
    if stage != StageOptions():
        raise UserError("--config, --root and --wait are for the stage, not for a text: leave them out, or the text")
    of.check()

    from closelook.methods import parse_method

    chosen = parse_method(shown.method)  # before the heavy imports: a mistyped name shows at once

    from closelook.explaining.front import ask
    from closelook.explaining.neurons import changes_of, show_neurons
    from closelook.terminal import as_json, write_file

    with naming_options():
        changes = changes_of(change.set or (), change.scale or ())
        opened = of.open()
        question = ask(text, opened, **vars(asked))
        record = show_neurons(question, opened, chosen, changes, shown.top, change.generate)
        if shown.json is not None:
            write_file(shown.json, as_json(record))
