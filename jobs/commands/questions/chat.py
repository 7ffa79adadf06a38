"""Messages of a chat as the text that a model reads, by its tokenizer's template, and which characters are whose."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import TemplateError

from lrp_core.records.types import UserError

_ANOTHER = "\ue000\ue001"  # stands in for a message's content; of characters that no text has

Message = Mapping[str, Any]


class Part(NamedTuple):
    """A named part of a text: characters [start, end)."""

    name: str
    start: int
    end: int


def is_chat(value: Any) -> bool:
    """True for a list of messages, as chat templates take them."""
    is_list = isinstance(value, Sequence) and not isinstance(value, str)
    return is_list and bool(len(value)) and all(isinstance(message, Mapping) for message in value)


def chat_in(path: Path) -> Any:
    """The messages in a file. Raises UserError for a file that cannot be read, or holds something else."""
    try:
        messages = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"`messages`: {path} cannot be read: {error}") from None
    if not is_chat(messages):
        raise UserError(f"`messages`: {path} is a list of messages, each with a role and a content, in JSON")
    return messages


def rendered(messages: Sequence[Message], tokenizer: Any, goes_on: bool = True) -> tuple[str, tuple[Part, ...]]:
    """The text of a chat and the parts of it that messages are; where the model `goes_on`, up to where it answers.

    A part is named by its role, with a number where several messages have it. Raises UserError for a tokenizer without
    a template, and for messages that its template refuses.
    """
    for number, message in enumerate(messages, start=1):
        if not isinstance(message.get("role"), str) or not isinstance(message.get("content"), str):
            raise UserError(f"message {number} needs a role and a content, both strings, not {dict(message)!r:.80}")
    if tokenizer.chat_template is None:
        raise UserError("the tokenizer has no chat template: give the prompt as text, or a tokenizer of a chat model")
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
            raise UserError(f"the chat template does not show message {number + 1} as it is: give the prompt as text")
        parts.append(Part(name, start, end))
    return text, tuple(parts)


def _render(messages: Sequence[Message], tokenizer: Any, goes_on: bool) -> str:
    try:
        text: str = tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=goes_on)
    except (TemplateError, TypeError, ValueError) as error:
        raise UserError(f"the chat template refuses these messages: {' '.join(str(error).split())}") from None
    return text


def _differing(text: str, other: str) -> tuple[int, int]:
    """The characters [start, end) of `text` between the beginning and the end that it shares with `other`."""
    shorter = min(len(text), len(other))
    start = next((at for at in range(shorter) if text[at] != other[at]), shorter)
    behind = next((at for at in range(shorter - start) if text[-1 - at] != other[-1 - at]), shorter - start)
    return start, len(text) - behind
