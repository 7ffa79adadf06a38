"""`closelook.explain`: explains one text or many by a model and methods."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any, Literal

from pydantic import ValidationError

from closelook.evaluation.benchmark.encoding import Segmenter
from closelook.jobs.commands.questions.answers import answers, finer_arguments
from closelook.jobs.commands.questions.many import Outcome, each_answered
from closelook.jobs.commands.questions.opened import AUTO, Opened, open_model
from closelook.jobs.commands.questions.question import Question, Words, segmenter_of
from closelook.jobs.config import MethodConfig
from closelook.jobs.config.methods import bound
from closelook.jobs.notebook.explanation import Explanation, Explanations, NotExplained
from closelook.jobs.notebook.inputs import Item, items, of_each, plain
from closelook.lrp_core.methods.record import Method
from closelook.lrp_core.records.types import UserError
from closelook.methods import parse_method
from closelook.progress import shown

MethodLike = str | Mapping[str, Any] | Method
Spans = Literal["sentence", "token"] | Sequence[tuple[int, int]]


def explain(
    text: Any = None,
    target: str | int | Sequence[str | int | None] | None = None,
    foil: str | int | Sequence[str | int | None] | None = None,
    *,
    model: Any,
    tokenizer: Any = None,
    messages: Any = None,
    input_ids: Any = None,
    method: MethodLike | Sequence[MethodLike] = "attnlrp",
    label: str | int | Sequence[str | int | None] | None = None,
    second: str | Sequence[str | None] | None = None,
    words: Words = "single",
    generate: int = 1,
    answer: Any = None,
    spans: Spans | None = None,
    hops: int = 0,
    reasoning: tuple[int, int] | None = None,
    prefix: str | Sequence[str | None] | None = None,
    truncate: bool = False,
    layers: bool = False,
    checkpoint: bool = False,
    explanation: str | None = None,
    segmenter: str | Segmenter | None = None,
    dtype: str | None = None,
    device: str = AUTO,
    family: str | None = None,
    adapter: str | PathLike[str] | None = None,
    decoder_tokenizer: Any = None,
    batch: int | None = None,
    progress: bool | None = None,
) -> Explanation | Explanations:
    """Explain by which tokens of `text` the model predicts `target` rather than `foil`.

    >>> import closelook
    >>> closelook.explain("The keys to the cabinet", target="are", foil="is", model="demo/gpt2").tokens
    ['The', ' key', 's', ' to', ' the', ' cabin', 'et']

    `text` is a string; of a model of images, the path of a file, an image of Pillow or an array [height, width,
    channels] of uint8. Instead of it, `messages`, each with a role and a content, are formatted by the tokenizer's chat
    template, and `input_ids` are used unchanged. A list of any of these is explained in batches of `batch`, by default
    of texts of like length, up to 4,096 tokens, with `progress` if it takes long. Of a data frame, a data set or
    dictionaries, `text` is read, and `text_pair` as `second`. For a list, `target`, `foil`,
    `label`, `second` and `prefix` are a value for all or a list, and an entry that cannot be explained becomes a
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
    With `hops`, the answer's part `reasoning` (start, end) is explained in turn, so that only the prompt has relevance.

    `model` is `demo/gpt2`, a hub id, a folder, the result of `closelook.open_model`, or a model in memory (of
    transformers, a `pipeline` or a `ModelView`), which is left unchanged. `tokenizer` replaces the model's own; for a
    model of images in memory it is the image processor. `dtype` is float32 by default; `device` "auto" is a GPU if
    there is one. `family`, `adapter` and `decoder_tokenizer` (the tokenizer of an encoder-decoder's answers, if it
    differs from that of its texts) are options for opening a model. `method` is a name, several names,
    `{NAME: {option: value}}` as in a config, or a `Method`. `explanation` is contrastive, target or log_prob. `layers`
    adds relevance layer by layer, and `checkpoint` recomputes blocks in the backward pass, to save memory.

    Words of scripts without spaces, such as Chinese, are the tokenizer's pieces, or what `segmenter` returns: a
    function from a text to a list of its words, or its name, such as "jieba:lcut".

    Raises UserError, one line that says what to do, if nothing can be explained.
    """
    methods = _methods(method)
    entries, is_list = items(text, messages, input_ids)
    several = {"target": target, "foil": foil, "label": label, "second": second, "prefix": prefix}
    lists = {name: of_each(name, value, len(entries)) for name, value in several.items()}
    lists["answer"] = of_each("answer", answer, len(entries)) if is_list else [plain(answer)]
    settings = {"words": words, "generate": plain(generate), "explanation": explanation, "truncate": truncate}
    settings |= {"spans": spans, "hops": hops, "reasoning": reasoning, "segmenter": segmenter_of(segmenter)}
    size = _batch_size(batch)
    opened = open_model(model, dtype, device, family, adapter, decoder_tokenizer, tokenizer)
    finer = finer_arguments(layers, checkpoint)
    with opened.in_use(), shown(progress) as tell:
        questions, errors = _questions(entries, opened, lists, settings)
        if not is_list and questions:
            return Explanation(questions[0], opened, methods, tuple(answers(questions[0], opened, methods, **finer)))
        if errors and not questions:
            raise errors[0]
        outcomes: dict[int, Outcome] = dict(errors)
        for at, outcome in each_answered(questions, opened, methods, size, **finer):
            outcomes[at] = outcome
            tell("texts", len(outcomes), len(entries))
    every: list[Explanation | NotExplained] = []
    for at, entry in enumerate(entries):
        outcome = outcomes[at]
        if isinstance(outcome, UserError):
            every.append(NotExplained(entry.shown, outcome))
        else:
            every.append(Explanation(questions[at], opened, methods, outcome))
    return Explanations(every)


def _batch_size(batch: Any) -> int | None:
    """The number of texts of a batch; None if it is left open. Raises UserError for anything else."""
    size = plain(batch)
    if size is not None and (isinstance(size, bool) or not isinstance(size, int) or size < 1):
        raise UserError(f"`batch` must be a number of texts to explain in one pass, at least 1, not {batch!r}")
    return size


def _questions(
    entries: Sequence[Item], opened: Opened, lists: Mapping[str, Sequence[Any]], settings: Mapping[str, Any]
) -> tuple[dict[int, Question], dict[int, UserError]]:
    """(the questions about entries, the errors of entries without a question), by the index of the entry.

    `lists` have a value for each entry, `settings` one for all.
    """
    questions, errors = {}, {}
    for at, entry in enumerate(entries):
        try:
            of_entry = {name: values[at] for name, values in lists.items()}
            questions[at] = entry.question(opened, **of_entry, **settings)
        except UserError as error:
            errors[at] = error
    return questions, errors


def _methods(method: MethodLike | Sequence[MethodLike]) -> tuple[Method, ...]:
    """The methods that `method`, one or a sequence, describes. Raises UserError for none, and for equal names."""
    several = isinstance(method, Sequence) and not isinstance(method, str)
    methods = tuple(map(_bound, method if several else [method]))  # type: ignore[arg-type, list-item]
    if not methods:
        raise UserError("`method` names no method: give at least one, such as attnlrp")
    names = [info.name for info in methods]
    if len(set(names)) < len(names):
        raise UserError(
            f"several methods have the same name ({', '.join(names)}): give each a `name` of its own, as in a config"
        )
    return methods


def _bound(method: MethodLike) -> Method:
    """The method that a name, a mapping as in a config, or a Method describes. Raises UserError if there is none."""
    if isinstance(method, Method):
        return method
    if isinstance(method, str):
        return parse_method(method)
    try:
        return bound(MethodConfig.model_validate(method))
    except ValidationError as error:
        reason = error.errors()[0]["msg"].removeprefix("Value error, ")
        raise UserError(f"`method` {method!r}: {reason}") from None
