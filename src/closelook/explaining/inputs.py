"""Reads what callers pass as `text`: texts, chats, token ids and pictures, each alone or several together.

Containers with names or without order are refused: a data frame would give the names of its columns, a dictionary its
keys, a set its texts in any order.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from numbers import Integral
from pathlib import Path
from typing import Any

from jinja2 import TemplateError
from PIL import Image

from closelook.evaluation.benchmark.encoding import encoding_of_ids
from closelook.evaluation.benchmark.pictures import file_of
from closelook.explaining.opening import Opened
from closelook.explaining.question import Input, Part, marked
from closelook.lrp_core.records.types import UserError

PICTURE = "picture in memory"  # stands for its path
ASSISTANT = "assistant"  # the role of a chat whose messages are the model's answers
_KINDS = "a string, a list of messages, a list of token ids or a picture"
_ANOTHER = "\ue000\ue001"  # replaces a message's content, to find it; private-use characters, which no text has

Message = Mapping[str, Any]


def display_form(value: Any) -> Any:
    """A text as the caller gave it; of a picture, a few words."""
    return PICTURE if _is_picture(value) else value


def read_input(
    value: Any, opened: Opened, has_question: bool, has_answer: bool, **further: Any
) -> tuple[Input, str | None]:
    """(what the model reads, the answer that a chat ends with, or None); `further` are fields of Input.

    If the last message of a chat is the assistant's, it is the answer to explain unless `has_question`. In a text,
    `___` marks the target's place unless `has_answer`. Raises UserError for a value that the model cannot read.
    """
    answer = None
    if _is_picture(value):
        if opened.tokenizer is not None:
            raise UserError(f"{opened.id} reads texts, not pictures: give a string")
        return Input(PICTURE, PICTURE, picture=file_of(value), **further), None
    if is_chat(value):
        messages, goes_on = list(value), not opened.kind.labels
        if goes_on and not has_question and len(messages) > 1 and messages[-1].get("role") == ASSISTANT:
            answer = messages.pop().get("content")
        _check_texts(opened)
        text, parts = rendered(messages, opened.tokenizer, goes_on)
        return Input(text, text, parts=parts, **further), answer
    if _are_numbers(value):
        ids, text = _ids(value, opened)
        return Input(text, text, ids=ids, **further), None
    if has_answer and isinstance(value, str):
        return Input(value, value, **further), None
    return marked(value, **further), None


def inputs(text: Any) -> tuple[list[Any], bool]:
    """(the texts, True if the caller passed a list of texts rather than one). Raises UserError for anything else."""
    if not (_is_array(text) and text.ndim > 1):  # a batch of pictures stays an array
        text = plain(text)
    if _is_picture(text) or isinstance(text, str) or _are_numbers(text) or is_chat(text):
        return [text], False
    _check_order("text", text, "a list of texts")
    if isinstance(text, bytes) or not isinstance(text, Iterable):
        raise UserError(f"`text` must be {_KINDS}, or a list of these, not {text!r:.80}")
    return [entry if _is_picture(entry) else plain(entry) for entry in text], True


def of_each(name: str, value: Any, count: int) -> list[Any]:
    """A list with the value of the argument `name` for each of `count` texts.

    A single value is repeated. Raises UserError for a list of another length, and for containers that have names or no
    order.
    """
    value = plain(value)
    _check_order(name, value, "one value for all texts, or a list of one for each")
    if isinstance(value, str | bytes) or not isinstance(value, Collection):
        return [value] * count
    if len(value) != count:
        raise UserError(f"`{name}` has {len(value)} entries for {count} texts: give one for all, or one for each")
    return list(map(plain, value))


def _check_order(name: str, value: Any, expected: str) -> None:
    """Raise UserError for a container whose entries have names or no order."""
    kind = type(value).__name__
    if isinstance(value, Mapping | Set) or kind == "DataFrame":
        raise UserError(f"`{name}` is a {kind}: give {expected}")


def _is_picture(value: Any) -> bool:
    """True for an image of Pillow, and for an array or tensor of two or three axes of numbers."""
    if isinstance(value, Image.Image):
        return True
    return _is_array(value) and value.ndim in (2, 3) and getattr(value.dtype, "kind", "u") in "biuf"


def _is_array(value: Any) -> bool:
    """True for an array of numpy or a tensor of torch."""
    return type(value).__name__ in ("Tensor", "ndarray")


def is_chat(value: Any) -> bool:
    """True for a non-empty list of mappings, the form in which chat templates take messages."""
    is_list = isinstance(value, Sequence) and not isinstance(value, str)
    return is_list and len(value) > 0 and all(isinstance(message, Mapping) for message in value)


def _are_numbers(value: Any) -> bool:
    """True for a sequence of at least one number, as token ids are."""
    is_list = isinstance(value, Sequence) and not isinstance(value, str | bytes)
    return is_list and len(value) > 0 and all(isinstance(entry, int | float) for entry in value)


def plain(value: Any) -> Any:
    """`value`, converted to plain Python if it is an integer, array or tensor of numpy or torch."""
    if isinstance(value, Integral) and not isinstance(value, bool):
        return int(value)
    return value.tolist() if _is_array(value) else value


def _check_texts(opened: Opened) -> None:
    """Raise UserError for a model of images."""
    if opened.tokenizer is None:
        raise UserError(f"{opened.id} reads images: give the path of an image as the text")


def _ids(value: Sequence[Any], opened: Opened) -> tuple[tuple[int, ...], str]:
    """(`value` as token ids, the text that they spell). Raises UserError unless the tokenizer has them."""
    _check_texts(opened)
    size, tokenizer = len(opened.tokenizer), opened.tokenizer
    for token in value:
        if isinstance(token, bool) or not isinstance(token, Integral):
            raise UserError(f"token ids must be integers, not {token!r}")
        if not 0 <= int(token) < size:
            raise UserError(f"`text` contains token {token}, but the tokenizer has {size:,} tokens, numbered from 0")
    ids = tuple(map(int, value))
    if tokenizer.pad_token_id in (ids[0], ids[-1]) and tokenizer.pad_token_id != tokenizer.eos_token_id:
        raise UserError("token ids begin or end with padding: give the tokens of each text alone")
    _, text = encoding_of_ids(ids, tokenizer)
    return ids, text


def chat_in(path: Path) -> Any:
    """The messages in a JSON file. Raises UserError if it cannot be read or holds no list of messages."""
    try:
        messages = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"`messages`: {path} cannot be read: {error}") from None
    except ValueError as error:
        raise UserError(f"`messages`: {path} is not JSON ({error}): it must hold a list of messages") from None
    if not is_chat(messages):
        raise UserError(f"`messages`: {path} must hold a JSON list of messages, each with a role and a content")
    return messages


def rendered(messages: Sequence[Message], tokenizer: Any, goes_on: bool = True) -> tuple[str, tuple[Part, ...]]:
    """(the text of a chat, a part for each message). With `goes_on`, the text ends where the model's answer begins.

    A part is named by the message's role, with a number if several messages have that role. Raises UserError for a
    tokenizer without a chat template, and for messages that the template refuses or changes.
    """
    for number, message in enumerate(messages, start=1):
        if not isinstance(message.get("role"), str) or not isinstance(message.get("content"), str):
            raise UserError(f"message {number} needs a role and a content, both strings: it is {dict(message)!r:.80}")
    if tokenizer.chat_template is None:
        raise UserError("the tokenizer has no chat template: give the prompt as text, or the tokenizer of a chat model")
    text = _render(messages, tokenizer, goes_on)
    roles, parts = [message["role"] for message in messages], []
    for number, (role, message) in enumerate(zip(roles, messages, strict=True)):
        name = f"{role} {1 + roles[:number].count(role)}" if roles.count(role) > 1 else role
        other = [*messages[:number], {**message, "content": _ANOTHER}, *messages[number + 1 :]]
        start, end = _differing(text, _render(other, tokenizer, goes_on))
        if message["content"].strip() != text[start:end].strip():
            raise UserError(f"the chat template changes the content of message {number + 1}: give the prompt as text")
        parts.append(Part(name, start, end))
    return text, tuple(parts)


def _render(messages: Sequence[Message], tokenizer: Any, goes_on: bool) -> str:
    """The text of messages by the chat template. Raises UserError if the template refuses them."""
    try:
        text: str = tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=goes_on)
    except (TemplateError, TypeError, ValueError) as error:
        raise UserError(f"the chat template refuses these messages: {' '.join(str(error).split())}") from None
    return text


def _differing(text: str, other: str) -> tuple[int, int]:
    """The characters [start, end) in which `text` differs from `other`, without their common beginning and end."""
    shorter = min(len(text), len(other))
    start = next((at for at in range(shorter) if text[at] != other[at]), shorter)
    behind = next((at for at in range(shorter - start) if text[-1 - at] != other[-1 - at]), shorter - start)
    return start, len(text) - behind
