"""Logged generations: prompts and the answers that a model gave, in files of rows such as JSON Lines.

Columns are those of users' own answers (see :mod:`own`); the answer may be the last message of the chat, if it is the
assistant's. It follows the prompt as it is written, without a space added, so that its tokens are the model's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from closelook.evaluation.benchmark.samples import Malformed, Row
from closelook.evaluation.benchmark.sources.base import Source, one_sample
from closelook.evaluation.benchmark.sources.files import IN_FOLDERS, records
from closelook.evaluation.benchmark.sources.own import answered

NAME = "generations"
_ASSISTANT = "assistant"


def parse(record: Any) -> Row:
    """The sample of a row. Raises Malformed for a row without a prompt and an answer."""
    if not isinstance(record, dict):
        raise Malformed("not an object", type(record).__name__)
    return answered(NAME, _with_answer(record), spaced=False)


def _with_answer(record: Mapping[str, Any]) -> dict[str, Any]:
    """The row; if it has no `answer`, with the last message of its chat, the assistant's, as its answer."""
    messages = record.get("messages")
    if record.get("answer") is not None or not isinstance(messages, list) or not messages:
        return dict(record)
    last = messages[-1]
    if not isinstance(last, Mapping) or last.get("role") != _ASSISTANT:
        raise Malformed("no answer", "give `answer`, or end `messages` with a message of the assistant")
    return {**record, "messages": messages[:-1], "answer": last.get("content")}


GENERATIONS = Source(
    name=NAME,
    title="logged generations",
    suffixes=IN_FOLDERS,
    records=records,
    rows=one_sample(parse),
    brings_evidence=True,
)
