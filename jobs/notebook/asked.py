"""Turns the arguments of `closelook.explain` into questions, one for each text, chat or list of token ids."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from numbers import Integral
from typing import Any, NamedTuple

from evaluation.benchmark.encoding import encoding_of_ids
from jobs.commands.questions.chat import is_chat
from jobs.commands.questions.opened import Opened
from jobs.commands.questions.question import Question, question_of, reasoning_of, spans_of
from lrp_core.records.types import UserError


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


_KINDS = {
    "text": "a string",
    "messages": "a list of messages, each with a role and a content",
    "input_ids": "a list of token ids",
}


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
