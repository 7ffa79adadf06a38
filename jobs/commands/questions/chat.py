"""Turns the messages of a chat into text by the tokenizer's chat template, and finds each message in that text."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import TemplateError

from lrp_core.records.types import UserError

_ANOTHER = "\ue000\ue001"  # replaces a message's content, to find it; private-use characters, which no text has

Message = Mapping[str, Any]


class Part(NamedTuple):
    """A part of a text, characters [start, end), with a name."""

    name: str
    start: int
    end: int


def is_chat(value: Any) -> bool:
    """True for a non-empty list of mappings, the form in which chat templates take messages."""
    is_list = isinstance(value, Sequence) and not isinstance(value, str)
    return is_list and bool(len(value)) and all(isinstance(message, Mapping) for message in value)


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
    several = Counter(message["role"] for message in messages)
    count: Counter[str] = Counter()
    parts = []
    for number, message in enumerate(messages):
        role = message["role"]
        count[role] += 1
        name = f"{role} {count[role]}" if several[role] > 1 else role
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
