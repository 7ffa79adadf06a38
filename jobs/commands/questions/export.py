"""The record that `closelook explain --json` writes: answers as plain data, with all digits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from evaluation.benchmark.encoding import words
from jobs.commands.questions.answers import Answer
from jobs.commands.questions.opened import Opened
from jobs.commands.questions.question import Question, text_read
from jobs.commands.questions.shares import shares


def exported(question: Question, opened: Opened, answers: Sequence[Answer]) -> dict[str, Any]:
    """The record of a question and its answers; `prompt`, for models that predict words, is the tokenised string."""
    facts = opened.facts | {"text": question.sentence}
    if answers[0].said is not None:
        facts["answer"] = answers[0].said.text
    if not opened.resolved.kind.labels:
        facts["prompt"] = text_read(question, opened)
    return {**facts, "predictions": [_plain(answer) for answer in answers]}


def _plain(answer: Answer) -> dict[str, Any]:
    """An answer as plain data; `words` holds the tokens [start, end) of each word."""
    row, methods = answer.row, []
    for name, result in answer.relevance.items():
        method: dict[str, Any] = {"method": name, "explained": float(result.explained[0])}
        method["residual"] = None if result.residual is None else float(result.residual[0])
        method["relevance"] = result.tokens[0].tolist()
        if result.decoder_tokens is not None:
            method["decoder_relevance"] = result.decoder_tokens[0].tolist()
        if result.pixels is not None:
            method["pixels"] = result.pixels[0].tolist()
        if answer.said is not None:
            method["shares"] = [asdict(share) for share in shares(answer, name)]
        if name in answer.hops:
            method["hops"] = {"discarded": answer.hops[name].discarded, "left": answer.hops[name].left}
        methods.append(method)
    plain: dict[str, Any] = {"target": answer.target}
    if answer.token is not None:
        plain["target_token"] = answer.token
    plain["foil"] = answer.foil
    plain |= {key: row[key] for key in ("target_id", "foil_id", "position", "input_ids", "special_mask")}
    if row.get("decoder_input_ids") is not None:
        plain["decoder_input_ids"] = row["decoder_input_ids"]
    if row.get("span") is not None:
        plain["target_ids"] = [token for _, token, _ in row["span"]]
        plain["span"] = [row["said"].start, row["said"].end]
        plain["part_names"] = row["part_names"]
    groups = words(answer.tokens, row["special_mask"])
    plain |= {"tokens": answer.tokens, "words": [[group[0], group[-1] + 1] for group in groups]}
    plain["logit_target"] = answer.logits[0]
    plain["logit_foil"] = answer.logits[1] if answer.foil is not None else None
    return {**plain, "methods": methods}
