"""`closelook.explain`: texts, a model and methods in; explanations that show themselves out."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from numbers import Integral
from os import PathLike
from typing import Any, Literal

from pydantic import ValidationError

from jobs.commands.answers import answers, answers_of_batches
from jobs.commands.opened import Opened, open_model
from jobs.commands.question import Question
from jobs.config import MethodConfig
from jobs.config.methods import bound
from jobs.notebook.explanation import Explanation, Explanations
from jobs.typed import typed
from lrp_core.method import Method
from lrp_core.types import UserError

MethodLike = str | Mapping[str, Any] | Method
Words = Literal["single", "first_difference", "each", "sum"]


def explain(
    text: str | Sequence[str],
    target: str | int | Sequence[str | int | None] | None = None,
    foil: str | int | Sequence[str | int | None] | None = None,
    *,
    model: str | PathLike[str] | Opened,
    method: MethodLike | Sequence[MethodLike] = "attnlrp",
    label: str | Sequence[str | None] | None = None,
    second: str | Sequence[str | None] | None = None,
    words: Words = "single",
    generate: int = 1,
    explanation: str | None = None,
    dtype: str = "float32",
    device: str = "cpu",
    family: str | None = None,
    adapter: str | PathLike[str] | None = None,
    decoder_tokenizer: str | PathLike[str] | None = None,
    batch: int = 8,
) -> Explanation | Explanations:
    """Explain by which tokens of `text` the model prefers `target` over `foil`.

    `text` is one text or a list of them, of which `batch` are explained in a pass; `target`, `foil`, `label` and
    `second` are then one for all, or a list. `___` marks the place of the target, which follows the text otherwise.
    Target and foil are words or numbers of tokens; without a target, what the model predicts is explained, and
    with `generate` N predictions in turn. Of words of several tokens `words="first_difference"` explains the first that
    differs, `"each"` every token of the target in turn, and `"sum"` all of them together: the sum of their logits, by
    one forward and one backward. Of a classifier, `label` is explained, or its prediction.

    `model` is `demo/gpt2`, a hub id, a folder, or what `closelook.open_model` gave, which keeps the weights for
    the next call; `dtype`, `device`, `family`, `adapter` and `decoder_tokenizer`, which writes an encoder-decoder's
    answer where another reads its text, say how to open it. `method` names methods, or is `{NAME: {option: value}}` as
    in a config, or a `Method`. `explanation` is contrastive, target or log_prob.

    Raises UserError, one line that says what to do, for whatever cannot be explained.
    """
    several = isinstance(method, Sequence) and not isinstance(method, str)
    methods = tuple(map(_bound, method if several else [method]))  # type: ignore[arg-type, list-item]
    if not methods:
        raise UserError("method names no method: give at least one, such as attnlrp")
    names = [info.name for info in methods]
    if len(set(names)) < len(names):
        raise UserError(f"methods have different names: {', '.join(names)}; give them with `name`, as in a config")
    if not isinstance(text, str | Iterable):
        raise UserError(f"text is a string or a list of them, not {text!r}")
    texts = [text] if isinstance(text, str) else list(text)
    asked = {"target": target, "foil": foil, "label": label, "second": second}
    lists = {name: _of_each(name, value, len(texts)) for name, value in asked.items()}
    generate, size = _plain(generate), _plain(batch)
    questions = []
    for at, sentence in enumerate(texts):
        words_of_text = {name: values[at] for name, values in lists.items()}
        questions.append(Question(sentence, **words_of_text, explanation=explanation, generate=generate, words=words))
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise UserError(f"batch is how many texts are explained in a pass, at least 1, not {batch!r}")
    opened = model
    if not isinstance(opened, Opened):
        opened = open_model(opened, dtype, device, family, adapter, decoder_tokenizer)
    if isinstance(text, str) or generate > 1 or words in ("each", "sum"):
        answered = [tuple(answers(question, opened, methods)) for question in questions]
    else:
        answered = [(answer,) for answer in answers_of_batches(questions, opened, methods, size)]
    explanations = [
        Explanation(question, opened, methods, of) for question, of in zip(questions, answered, strict=True)
    ]
    return explanations[0] if isinstance(text, str) else Explanations(explanations)


def _bound(method: MethodLike) -> Method:
    """The method with its options. Raises UserError for one that does not exist, or options that do not fit."""
    if isinstance(method, Method):
        return method
    if isinstance(method, str):
        return typed(method)
    try:
        return bound(MethodConfig.model_validate(method))
    except ValidationError as error:
        reason = error.errors()[0]["msg"].removeprefix("Value error, ")
        raise UserError(f"method {method!r}: {reason}") from None


def _of_each(name: str, value: Any, count: int) -> list[Any]:
    """One value for all of `count` texts, or one for each. Raises UserError for another number of them."""
    if isinstance(value, str) or not isinstance(value, Collection):
        return [_plain(value)] * count
    if len(value) != count:
        raise UserError(f"{name} has {len(value)} entries for {count} texts: give one for all, or one for each")
    return list(map(_plain, value))


def _plain(value: Any) -> Any:
    """`value`, or the Python number of one of numpy's."""
    return int(value) if isinstance(value, Integral) and not isinstance(value, bool) else value
