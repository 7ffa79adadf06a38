"""Commands that ask a model themselves: explain a prediction, look at and change the neurons behind it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from jobs.commands.app import MODEL, Config, Json, Root, Wait
from jobs.commands.runs import load_run, run_stages
from lrp_core.types import UserError

Target = Annotated[str | None, typer.Option("--target", help="The word to explain; else the model's own.")]
Foil = Annotated[str | None, typer.Option("--foil", help="The word or label it is contrasted with.")]
Label = Annotated[str | None, typer.Option("--label", help="A classifier's label; else what it predicts.")]
Second = Annotated[str | None, typer.Option("--second", help="The other text of a pair.")]
Explanation = Annotated[str | None, typer.Option("--explanation", help="contrastive | target | log_prob")]
Dtype = Annotated[str, typer.Option("--dtype", help="float32 | float64 | bfloat16 | float16")]
Device = Annotated[str, typer.Option("--device", help="cpu, cuda, cuda:1, ...")]


def explain(
    sentence: Annotated[str, typer.Argument(help="The text (___ marks the target's place), or a picture's file.")],
    model: Annotated[str, MODEL],
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
    layers: Annotated[bool, typer.Option("--layers", help="Also show relevance layer by layer.")] = False,
    html: Annotated[Path | None, typer.Option("--html", help="Also write a page.")] = None,
    json: Json = None,
    dtype: Dtype = "float32",
    device: Device = "cpu",
) -> None:
    """Explain one prediction, or several in turn, in the terminal, coloured."""
    from jobs.typed import every_typed

    methods = every_typed(method)  # before the heavy imports: a mistyped name shows at once

    from jobs.commands.explain import explain as show
    from jobs.commands.opened import open_model
    from jobs.commands.question import Question

    question = Question(sentence, target, foil, label, second, explanation, generate, prefix=prefix)
    opened = open_model(model, dtype, device, family, adapter, decoder_tokenizer)
    show(question, opened, methods, words, layers, html, json)


def neurons(
    text: Annotated[str | None, typer.Argument(help="Without it: the stage.", show_default=False)] = None,
    model: Annotated[str | None, MODEL] = None,
    target: Target = None,
    foil: Foil = None,
    label: Label = None,
    second: Second = None,
    method: Annotated[str, typer.Option("--method", help="Of the gradient family.")] = "attnlrp",
    explanation: Explanation = None,
    top: Annotated[int, typer.Option("--top", help="So many neurons.", min=0)] = 10,
    absolute: Annotated[bool, typer.Option("--absolute", help="The largest by magnitude.")] = False,
    set: Annotated[
        list[str] | None, typer.Option("--set", metavar="L.N=V", help="Give it this value; L.E.N=V of an expert's.")
    ] = None,
    scale: Annotated[
        list[str] | None, typer.Option("--scale", metavar="L.N=F", help="Multiply its activation.")
    ] = None,
    last: Annotated[bool, typer.Option("--last", help="Change it where the model predicts, not everywhere.")] = False,
    generate: Annotated[int, typer.Option("--generate", help="Tokens to go on with, before and after.")] = 1,
    normed: Annotated[
        bool, typer.Option("--normed", help="Fold the final norm's weight into what is written.")
    ] = False,
    json: Json = None,
    dtype: Dtype = "float32",
    device: Device = "cpu",
    neuron: Annotated[
        str | None,
        typer.Option(
            "--neuron", metavar="L.N", help="Show the passages that activate this neuron most; L.E.N of an expert's."
        ),
    ] = None,
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
    if (corpus is not None and neuron is None) or (neuron is not None and text is not None):
        raise UserError("the best contexts of a neuron need --neuron LAYER.NEURON, and no text")
    if neuron is not None and corpus is None:
        if config is None and root is None:
            raise UserError("say where: --corpus FILE with --model M, or --root DIR of a run that read a corpus")
        loaded, store = load_run(config, root, None, is_made=True)

        from jobs.commands.contexts import show_kept

        return show_kept(loaded, store, neuron, method, model, top, device)
    if neuron is None and text is None:
        if model is not None:
            raise UserError("give a text that the model is to go on with, or leave --model out to run the stage")
        return run_stages(("neurons",), config, root, set, wait)
    if model is None:
        kind = "text" if neuron is None else "corpus"
        raise UserError(f"say which model reads the {kind}: --model demo/gpt2, a hub id or a directory")
    from jobs.typed import typed

    chosen = typed(method)  # before the heavy imports: a mistyped name shows at once

    from jobs.commands.opened import open_model

    if neuron is not None and corpus is not None:
        from jobs.commands.contexts import show_contexts

        return show_contexts(open_model(model, dtype, device), neuron, corpus, method, top)

    from jobs.commands.question import Question
    from jobs.commands.steering import Steering, show_neurons

    assert text is not None
    question = Question(text, target, foil, label, second, explanation)
    steering = Steering.of(set or (), scale or (), last)
    show_neurons(question, open_model(model, dtype, device), chosen, steering, top, generate, normed, absolute, json)
