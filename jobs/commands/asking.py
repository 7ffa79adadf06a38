"""Commands that ask a model themselves: explain a prediction, look at and change the neurons behind it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from jobs.commands import terminal
from jobs.commands.options import Config, Root, Wait
from lrp_core.types import UserError

Model = Annotated[str, typer.Option("--model", "-m", help="demo/gpt2, a hub id or a directory.")]
Target = Annotated[str | None, typer.Option("--target", help="The word to explain; else the model's own.")]
Foil = Annotated[str | None, typer.Option("--foil", help="The word or label it is contrasted with.")]
Label = Annotated[str | None, typer.Option("--label", help="A classifier's label; else what it predicts.")]
Second = Annotated[str | None, typer.Option("--second", help="The other text of a pair.")]
Explanation = Annotated[str | None, typer.Option("--explanation", help="contrastive | target | log_prob")]
Numbers = Annotated[Path | None, typer.Option("--json", help="Also write every number as JSON.")]
Dtype = Annotated[str, typer.Option("--dtype", help="float32 | float64 | bfloat16 | float16")]
Device = Annotated[str, typer.Option("--device", help="cpu, cuda, cuda:1, ...")]

# of neurons alone
Text = Annotated[str | None, typer.Argument(help="Without it: the stage.", show_default=False)]
OptionalModel = Annotated[str | None, typer.Option("--model", "-m", help="demo/gpt2, a hub id or a directory.")]
Top = Annotated[int, typer.Option("--top", help="So many neurons.", min=0)]
Absolute = Annotated[bool, typer.Option("--absolute", help="The largest by magnitude.")]
Values = Annotated[
    list[str] | None, typer.Option("--set", metavar="L.N=V", help="Give it this value; L.E.N=V of an expert's.")
]
Factors = Annotated[list[str] | None, typer.Option("--scale", metavar="L.N=F", help="Multiply its activation.")]
Last = Annotated[bool, typer.Option("--last", help="Change it where the model predicts, not everywhere.")]
GoOn = Annotated[int, typer.Option("--generate", help="Tokens to go on with, before and after.")]
Normed = Annotated[bool, typer.Option("--normed", help="Fold the final norm's weight into what is written.")]
Neuron = Annotated[str | None, typer.Option("--neuron", metavar="L.N", help="Its best contexts; L.E.N of an expert's.")]
Corpus = Annotated[Path | None, typer.Option("--corpus", help="A text file, a text a line.")]


def add_to(app: typer.Typer) -> None:
    """Give `app` these commands."""
    app.command()(explain)
    app.command()(neurons)


def explain(
    sentence: Annotated[str, typer.Argument(help="The text (___ marks the target's place), or a picture's file.")],
    model: Model,
    target: Target = None,
    foil: Foil = None,
    label: Label = None,
    second: Second = None,
    method: Annotated[
        str, typer.Option("--method", help="Methods, separated by commas; options as in attnlrp:composite=vit.")
    ] = "attnlrp",
    explanation: Explanation = None,
    prefix: Annotated[str | None, typer.Option("--prefix", help="The answer so far, of an encoder-decoder.")] = None,
    generate: Annotated[int, typer.Option("--generate", help="Tokens to predict and explain in turn.")] = 1,
    family: Annotated[str | None, typer.Option("--family", help="generic: a model that no family describes.")] = None,
    adapter: Annotated[str | None, typer.Option("--adapter", help="A LoRA adapter's folder or hub id.")] = None,
    decoder_tokenizer: Annotated[
        str | None, typer.Option("--decoder-tokenizer", help="The tokenizer of an encoder-decoder's answers.")
    ] = None,
    words: Annotated[bool, typer.Option("--words", help="Sum the pieces of a word.")] = False,
    layers: Annotated[bool, typer.Option("--layers", help="Also what becomes of relevance layer by layer.")] = False,
    html: Annotated[Path | None, typer.Option("--html", help="Also write a page.")] = None,
    json: Numbers = None,
    dtype: Dtype = "float32",
    device: Device = "cpu",
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
        terminal.console,
        html=html,
        json_file=json,
        by_word=words,
        layers=layers,
        dtype=dtype,
        device=device,
        family=family,
        adapter=adapter,
        decoder_tokenizer=decoder_tokenizer,
    )


def neurons(
    text: Text = None,
    model: OptionalModel = None,
    target: Target = None,
    foil: Foil = None,
    label: Label = None,
    second: Second = None,
    method: Annotated[str, typer.Option("--method", help="Of the gradient family.")] = "attnlrp",
    explanation: Explanation = None,
    top: Top = 10,
    absolute: Absolute = False,
    set: Values = None,
    scale: Factors = None,
    last: Last = False,
    generate: GoOn = 1,
    normed: Normed = False,
    json: Numbers = None,
    dtype: Dtype = "float32",
    device: Device = "cpu",
    neuron: Neuron = None,
    corpus: Corpus = None,
    config: Config = None,
    root: Root = None,
    wait: Wait = 0,
) -> None:
    """The neurons that matter for a prediction, what each writes, and what is predicted when some are changed.

    With --neuron and --corpus, or --root: where in a text file, or in a run's corpus, one neuron is most active, and
    which tokens make it so. Without any of them it is a stage of the run: the corpus is read, and neurons are knocked
    out, by what methods say of them.
    """
    if corpus is not None:
        return _contexts_of(neuron, text, model, corpus, method, top, dtype, device)
    if neuron is not None:
        return _contexts_kept(neuron, text, model, config, root, method, top, device)
    if text is None:
        if model is not None:
            raise UserError("give a text that the model is to go on with, or leave --model out to run the stage")
        return terminal.run_stages(("neurons",), config, root, set, wait)
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
        terminal.console,
        top=top,
        generate=generate,
        steering=Steering.of(set or (), scale or (), last),
        normed=normed,
        absolute=absolute,
        json_file=json,
        dtype=dtype,
        device=device,
    )


_NO_TEXT = "the best contexts of a neuron need --neuron LAYER.NEURON, and no text"


def _contexts_of(
    neuron: str | None,
    text: str | None,
    model: str | None,
    corpus: Path,
    method: str,
    top: int,
    dtype: str,
    device: str,
) -> None:
    """Where in the text file `corpus` a neuron is most active."""
    if neuron is None or text is not None:
        raise UserError(_NO_TEXT)
    if model is None:
        raise UserError("say which model reads the corpus: --model demo/gpt2, a hub id or a directory")

    from jobs.commands.contexts import show_contexts

    show_contexts(model, neuron, corpus, method, terminal.console, top=top, dtype=dtype, device=device)


def _contexts_kept(
    neuron: str,
    text: str | None,
    model: str | None,
    config: str | None,
    root: str | None,
    method: str,
    top: int,
    device: str,
) -> None:
    """Where in the corpus that a run has read a neuron is most active."""
    if text is not None:
        raise UserError(_NO_TEXT)
    if config is None and root is None:
        raise UserError("say where: --corpus FILE with --model M, or --root DIR of a run that read a corpus")
    loaded, store = terminal.load_run(config, root, None, is_made=True)

    from jobs.commands.contexts import show_kept

    show_kept(loaded, store, neuron, method, terminal.console, model=model, top=top, device=device)
