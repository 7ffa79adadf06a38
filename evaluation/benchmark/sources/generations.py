"""Logged generations: a prompt and the answer that a model gave, which is not generated again; JSON Lines or the like.

Columns: `prompt`, or a chat's `messages` with `role` and `content`; `answer`, or the chat's last message where that is
the assistant's; perhaps `sources`, texts that stand in the prompt once or [start, end) spans of its characters. What
follows the prompt is the answer as it is written, so that its tokens are those that the model put out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from evaluation.benchmark.samples import Malformed, Row
from evaluation.benchmark.sources.base import Source, one_sample
from evaluation.benchmark.sources.own import answered
from evaluation.benchmark.sources.tabular import IN_FOLDERS, records

NAME = "generations"
_ASSISTANT = "assistant"


def parse(record: Any) -> Row:
    """The sample of a row. Raises Malformed."""
    if not isinstance(record, dict):
        raise Malformed("not an object", type(record).__name__)
    return answered(NAME, _with_answer(record), spaced=False)


def _with_answer(record: Mapping[str, Any]) -> dict[str, Any]:
    """The row with the last message of its chat as its answer, where it has no other."""
    messages = record.get("messages")
    if record.get("answer") is not None or not isinstance(messages, list) or not messages:
        return dict(record)
    last = messages[-1]
    if not isinstance(last, Mapping) or last.get("role") != _ASSISTANT:
        raise Malformed("no answer", "give `answer`, or end `messages` with the assistant's")
    return {**record, "messages": messages[:-1], "answer": last.get("content")}


GENERATIONS = Source(
    name=NAME,
    title="logged generations",
    url="",
    licence="the user's own",
    suffixes=IN_FOLDERS,
    records=records,
    rows=one_sample(parse),
    brings_evidence=True,
)
