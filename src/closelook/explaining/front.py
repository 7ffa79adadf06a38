"""`closelook.explain`: explains one text or many by a model and methods."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from closelook.explaining.explained import Asked, Explained, Outcome, explain_each, explain_in_turn
from closelook.explaining.explanation import Explanation, Explanations, NotExplained
from closelook.explaining.inputs import display_form, inputs, of_each, plain, read_input
from closelook.explaining.opening import Opened, open_model
from closelook.explaining.question import Answer, Input, Spans, Words, question
from closelook.lrp_core.methods.record import Method
from closelook.lrp_core.records.types import UserError
from closelook.methods import method as method_named
from closelook.methods import parse_method
from closelook.progress import shown

MethodLike = str | Mapping[str, Any] | Method


def explain(
    text: Any,
    target: Any = None,
    foil: Any = None,
    *,
    model: Any,
    method: MethodLike | Sequence[MethodLike] = "attnlrp",
    label: Any = None,
    second: Any = None,
    prefix: Any = None,
    answer: Any = None,
    spans: Spans = None,
    generate: int = 1,
    words: Words = "single",
    explanation: str | None = None,
    truncate: bool = False,
) -> Explanation | Explanations:
    """Explain by which tokens of `text` the model predicts `target` rather than `foil`.

    >>> import closelook
    >>> closelook.explain("The keys to the cabinet", target="are", foil="is", model="demo/gpt2").tokens
    ['The', ' key', 's', ' to', ' the', ' cabin', 'et']

    `text` is a string, a chat (messages with a role and a content, formatted by the tokenizer's template) or token ids;
    of a model of images, the path of a file, an image of Pillow or an array [height, width, channels] of uint8. A list
    of any of these, such as a column of a data frame, gives `Explanations`. For a list, `target`, `foil`, `label`,
    `second`, `prefix` and `answer` are a value for all or a list, and an entry that cannot be explained becomes a
    `NotExplained` with its error. `truncate` shortens texts that are too long: causal models read the end of a text,
    others its beginning.

    `___` marks the position of the target; without it, the target follows the text. Target and foil are words or token
    ids. Without a target, the model's own prediction is explained, and with `generate` N predictions in turn. If words
    have several tokens, `words="first_difference"` explains the first token that differs, and `"each"` every token of
    the target in turn. For a classifier, `label` (its name or number) or its prediction is explained. `prefix` is the
    beginning of an encoder-decoder's answer.

    An `answer`, a text or token ids, is explained as a whole: the sum of its tokens' logits, by one forward and one
    backward pass. `spans` are parts of it that are explained each as a whole: "sentence", "token" or characters
    [(start, end), ...]; with spans, `generate` is the largest number of tokens of an answer that the model generates.

    `model` is `demo/gpt2`, a hub id, a folder, a model in memory (of transformers, a `pipeline` or a `ModelView`), or
    what `closelook.open_model` returns, which has the options for opening one. `method` is a name, with options as in
    "integrated_gradients:steps=50" or {"integrated_gradients": {"steps": 50}}, a `Method`, or several of these.
    `explanation` is contrastive, target or log_prob. Relevance by layer, head and neuron, and checkpoints that save
    memory, are arguments of the methods themselves: `closelook.METHODS["attnlrp"](view, batch, boundaries=True)`.

    Raises UserError, one line that says what to do, if nothing can be explained.
    """
    methods = _methods(method)
    entries, is_list = inputs(text)
    several = {"target": target, "foil": foil, "label": label, "second": second, "prefix": prefix}
    lists = {name: of_each(name, value, len(entries)) for name, value in several.items()}
    lists["answer"] = of_each("answer", answer, len(entries)) if is_list else [plain(answer)]
    settings = {"words": words, "generate": plain(generate), "spans": spans, "explanation": explanation}
    with shown() as tell, open_model(model).in_use() as opened:
        asked: dict[int, Asked] = {}
        errors: dict[int, UserError] = {}
        for at, entry in enumerate(entries):
            arguments = {name: values[at] for name, values in lists.items()} | settings
            try:
                asked[at] = ask(entry, opened, truncate=truncate, **arguments)
            except UserError as error:
                errors[at] = error
        if not asked and errors:
            raise errors[0]
        if not is_list:
            item, single = asked[0]
            answers = tuple(explain_in_turn(item, single, opened, methods))
            return explanation_of(item, opened, answers)
        outcomes: dict[int, Outcome] = dict(errors)
        for at, outcome in explain_each(asked, opened, methods):
            outcomes[at] = outcome
            tell("texts", len(outcomes), len(entries))
        every: list[Explanation | NotExplained] = []
        for at, entry in enumerate(entries):
            result = outcomes[at]
            if isinstance(result, UserError):
                every.append(NotExplained(display_form(entry), result))
            else:
                every.append(explanation_of(asked[at].item, opened, result))
    return Explanations(every)


def ask(
    entry: Any,
    opened: Opened,
    *,
    second: Any = None,
    prefix: Any = None,
    answer: Any = None,
    truncate: bool = False,
    **arguments: Any,
) -> Asked:
    """The question about an entry; `arguments` are those of `question`. Raises UserError if they do not fit."""
    asks_for_word = arguments.get("target") is not None or arguments.get("generate", 1) > 1
    is_answer = answer is not None or arguments.get("spans") is not None
    further = {"second": second, "prefix": prefix, "truncate": truncate}
    item, from_chat = read_input(entry, opened, asks_for_word or answer is not None, is_answer, **further)
    asked = question(opened, answer=from_chat if answer is None else answer, **arguments)
    if isinstance(asked, Answer) and second is not None:
        raise UserError("an answer takes the place of `second`: leave `second` out")
    return Asked(item, asked)


def explanation_of(item: Input, opened: Opened, answers: tuple[Explained, ...]) -> Explanation:
    """The explanation of an input, from its explained predictions."""
    prompt = None if opened.kind.labels else item.text_read(opened)
    return Explanation(opened.model, item.text, prompt, answers)


def _methods(method: MethodLike | Sequence[MethodLike]) -> tuple[Method, ...]:
    """The methods that `method`, one or a sequence, describes. Raises UserError for none, and for equal names."""
    several = isinstance(method, Sequence) and not isinstance(method, str)
    methods = tuple(map(_method, method if several else [method]))  # type: ignore[arg-type, list-item]
    if not methods:
        raise UserError("`method` names no method: give at least one, such as attnlrp")
    names = [info.name for info in methods]
    if len(set(names)) < len(names):
        raise UserError(
            f"several methods have the same name ({', '.join(names)}): `METHODS[...].configured` renames one"
        )
    return methods


def _method(method: MethodLike) -> Method:
    """The method that a name, {NAME: {option: value}} or a Method describes. Raises UserError if there is none."""
    if isinstance(method, Method):
        return method
    if isinstance(method, str):
        return parse_method(method)
    if not isinstance(method, Mapping) or len(method) != 1:
        raise UserError(f"`method` must be a name, {{NAME: {{option: value}}}} or a Method, not {method!r:.80}")
    [(name, options)] = method.items()
    return method_named(name).configured(name, **(options or {}))
