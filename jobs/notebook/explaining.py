"""`closelook.explain`: explains one text or many by a model and methods."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from numbers import Integral
from os import PathLike
from typing import Any, Literal, NamedTuple

from pydantic import ValidationError

from evaluation.benchmark.encoding import Segmenter, encoding_of_ids
from jobs.commands.progress import shown
from jobs.commands.questions.answers import answers, finer_arguments
from jobs.commands.questions.many import Outcome, each_answered
from jobs.commands.questions.opened import AUTO, Opened, open_model
from jobs.commands.questions.question import Question, Words, is_chat, question_of, reasoning_of, segmenter_of, spans_of
from jobs.config import MethodConfig
from jobs.config.methods import bound, typed
from jobs.notebook.explanation import Explanation, Explanations, NotExplained
from lrp_core.methods.record import Method
from lrp_core.records.types import UserError

MethodLike = str | Mapping[str, Any] | Method
Spans = Literal["sentence", "token"] | Sequence[tuple[int, int]]
_KINDS = {
    "text": "a string",
    "messages": "a list of messages, each with a role and a content",
    "input_ids": "a list of token ids",
}


class Item(NamedTuple):
    """One text to explain, in one of three forms."""

    kind: str  # text (a string), messages (of a chat), or input_ids (token ids)
    value: Any

    def question(self, opened: Opened, **settings: Any) -> Question:
        """The question about this text; `settings` are the other fields of Question.

        Raises UserError for a value of another form, and for token ids that the tokenizer does not have.
        """
        if isinstance(settings.get("answer"), list):
            settings["answer"] = tuple(settings["answer"])
        settings["spans"] = spans_of(settings.get("spans"))
        settings["reasoning"] = reasoning_of(settings.get("reasoning"))
        if self.kind != "input_ids":
            return question_of(self.value, opened, **settings)
        tokenizer = opened.tokenizer
        if tokenizer is None:
            raise UserError(f"{opened.id} reads images: give the path of an image as `text`")
        ids = tuple(_ids(self.value, len(tokenizer)))
        if tokenizer.pad_token_id in (*ids[:1], *ids[-1:]) and tokenizer.pad_token_id != tokenizer.eos_token_id:
            raise UserError("`input_ids` begin or end with padding: give the tokens of each text alone")
        _, text = encoding_of_ids(ids, tokenizer)
        return Question(text, ids=ids, **settings)


def items(text: Any, messages: Any, input_ids: Any) -> tuple[list[Item], bool]:
    """(the texts, True if the caller passed a list of texts rather than one).

    `text` may also hold messages. Raises UserError unless exactly one of the three is given, in its form.
    """
    alternatives = {"text": text, "messages": messages, "input_ids": input_ids}
    named = [name for name, value in alternatives.items() if value is not None]
    if len(named) != 1:
        raise UserError(
            f"give exactly one of `text`, `messages` and `input_ids`; given: {' and '.join(named) or 'none'}"
        )
    [name] = named
    value = plain(alternatives[name])
    if is_chat(value):
        return [Item("messages", value)], False
    if name == "text" and isinstance(value, str):
        return [Item(name, value)], False
    if name == "input_ids" and _are_numbers(value):
        return [Item(name, value)], False
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise UserError(f"`{name}` must be {_KINDS[name]}, or a list of these, not {value!r:.80}")
    entries = [plain(entry) for entry in value]
    return [Item("messages" if is_chat(entry) else name, entry) for entry in entries], True


def of_each(name: str, value: Any, count: int) -> list[Any]:
    """A list with the value of the argument `name` for each of `count` texts.

    A single value is repeated. Raises UserError for a list of another length.
    """
    if isinstance(value, str) or not isinstance(value, Collection):
        return [plain(value)] * count
    if len(value) != count:
        raise UserError(f"`{name}` has {len(value)} entries for {count} texts: give one for all, or one for each")
    return list(map(plain, value))


def plain(value: Any) -> Any:
    """`value`, converted to plain Python if it is an integer, array or tensor of numpy or torch."""
    if isinstance(value, Integral) and not isinstance(value, bool):
        return int(value)
    return value.tolist() if type(value).__name__ in ("Tensor", "ndarray") else value


def _are_numbers(value: Any) -> bool:
    """True for a sequence of at least one integer."""
    return isinstance(value, Sequence) and len(value) > 0 and all(isinstance(entry, Integral) for entry in value)


def _ids(value: Any, size: int) -> list[int]:
    """`value` as token ids. Raises UserError unless they are ids of a tokenizer with `size` tokens."""
    if not _are_numbers(value):
        raise UserError(f"`input_ids` must be a list of token ids (integers, at least one), not {value!r:.80}")
    for token in value:
        if not 0 <= token < size:
            raise UserError(f"`input_ids` contain {token}, but the tokenizer has {size:,} tokens, numbered from 0")
    return [int(token) for token in value]


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
    label: str | Sequence[str | None] | None = None,
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

    `text` is a string. Instead of it, `messages`, each with a role and a content, are formatted by the tokenizer's chat
    template, and `input_ids` are used unchanged. A list of any of these is explained in batches of `batch`, by default
    of texts of like length, up to 4,096 tokens, with `progress` if it takes long. For a list, `target`, `foil`,
    `label`, `second` and `prefix` are a value for all or a list, and an entry that cannot be explained becomes a
    `NotExplained` with its error. `truncate` shortens texts that are too long: causal models read the end of a text,
    others its beginning.

    `___` marks the position of the target; without it, the target follows the text. Target and foil are words or token
    ids. Without a target, the model's own prediction is explained, and with `generate` N predictions in turn. If words
    have several tokens, `words="first_difference"` explains the first token that differs, and `"each"` every token of
    the target in turn. For a classifier, `label` or its prediction is explained. `prefix` is the beginning of an
    encoder-decoder's answer.

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
            every.append(NotExplained(entry.value, outcome))
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
        return typed(method)
    try:
        return bound(MethodConfig.model_validate(method))
    except ValidationError as error:
        reason = error.errors()[0]["msg"].removeprefix("Value error, ")
        raise UserError(f"`method` {method!r}: {reason}") from None
