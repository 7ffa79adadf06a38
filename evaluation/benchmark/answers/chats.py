"""Chats as a text: the contents of their messages joined, so that spans of characters are the same for every tokenizer.

`turns` locate the messages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from evaluation.benchmark.samples import Malformed

SEPARATOR = "\n\n"

Turn = tuple[str, int, int]  # the role of a message, and where its content starts and ends


def chat_of(messages: Sequence[Mapping[str, Any]]) -> tuple[str, list[Turn]]:
    """(the joined contents of a chat's messages, the turns that locate them in this text).

    Raises Malformed for a message without text as `role` and `content`, and for a chat without messages.

    >>> chat_of([{"role": "user", "content": "Hello?"}, {"role": "assistant", "content": "Yes."}])
    ('Hello?\\n\\nYes.', [('user', 0, 6), ('assistant', 8, 12)])
    """
    text, turns = "", list[Turn]()
    for message in messages:
        if not isinstance(message, Mapping) or not all(isinstance(message.get(k), str) for k in ("role", "content")):
            raise Malformed("a message without text as `role` and `content`", repr(message)[:80])
        text += SEPARATOR if turns else ""
        turns.append((message["role"], len(text), len(text) + len(message["content"])))
        text += message["content"]
    if not turns:
        raise Malformed("no messages")
    return text, turns
