"""Answers as plain data: the shares of the parts of the input, and the record that `closelook explain --json` writes.

The first token is a part of its own, since many models attend to it whatever it is. So is what no token has: what the
biases of blocks and the softmax of attention keep, and the rest.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from closelook.evaluation.benchmark.encoding import START
from closelook.jobs.commands.questions.answers import Answer
from closelook.jobs.commands.questions.opened import Opened
from closelook.jobs.commands.questions.question import Question, text_read
from closelook.jobs.commands.questions.spans import OWN
from closelook.lrp_core.methods.record import Method
from closelook.lrp_core.places.boundaries import REASONS
from closelook.lrp_core.records.types import Relevance

FIRST, REST = "first token", "rest"
OF_NO_TOKEN = (*REASONS, REST)


@dataclass(frozen=True)
class Share:
    """The share of one part of the input in an explanation."""

    part: str  # its name
    relevance: float  # sum over its tokens
    share: float  # sum of its tokens' magnitudes / sum of the magnitudes of all tokens and the residual
    share_without_first: float | None  # the same without the first token in the divisor; None for the first token


def shares_of_all(answers: Sequence[Answer]) -> list[dict[str, Any]]:
    """One row for each span, method and part: index and text of the span, the method's name, and fields of `Share`."""
    rows = []
    for at, answer in enumerate(answers):
        for method in answer.methods:
            facts = {"answer": at, "target": answer.target, "method": method.name}
            rows += [{**facts, **asdict(share)} for share in shares(answer, method)]
    return rows


def shares(answer: Answer, method: Method) -> list[Share]:
    """The share of each part of the input in a method's relevance, in the order of the text; last what no token has.

    The first token is a part of its own: of an encoder-decoder, the first of the decoder. What no token has is left out
    for methods that promise no sum.
    """
    relevance = answer.relevance[method.name]
    values = relevance.tokens[0].tolist()
    names = list(answer.row["part_names"])
    if answer.decoder is None:
        names[0] = FIRST
    elif relevance.decoder_tokens is not None:
        values += relevance.decoder_tokens[0].tolist()
        names += [FIRST if piece == START else OWN for piece in answer.decoder]
    sums, magnitudes = dict.fromkeys(names, 0.0), dict.fromkeys(names, 0.0)
    for name, value in zip(names, values, strict=True):
        sums[name] += value
        magnitudes[name] += abs(value)
    for name, value in _of_no_token(relevance).items():
        sums[name], magnitudes[name] = value, abs(value)
    total = math.fsum(magnitudes.values())
    others = total - magnitudes.get(FIRST, 0.0)
    rows = []
    for name, magnitude in magnitudes.items():
        without_first = None if name == FIRST else _ratio(magnitude, others)
        rows.append(Share(name, sums[name], _ratio(magnitude, total), without_first))
    return rows


def _of_no_token(relevance: Relevance) -> dict[str, float]:
    """The relevance that no token has, by what keeps it: REASONS inside blocks where they are known, and REST.

    Empty for methods that promise no sum.
    """
    if relevance.residual is None:
        return {}
    kept: dict[str, float] = {}
    if relevance.kept is not None:
        by_reason = relevance.kept[0].double().sum(0).tolist()
        kept = dict(zip(REASONS, by_reason, strict=True))
    missing = -float(relevance.residual[0])  # the residual is the sum of relevance minus the explained number
    return kept | {REST: missing - math.fsum(kept.values())}


def _ratio(part: float, whole: float) -> float:
    """part / whole; 0 if `whole` is 0."""
    return part / whole if whole else 0.0


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
    for method in answer.methods:
        result = answer.relevance[method.name]
        numbers: dict[str, Any] = {"method": method.name, "explained": float(result.explained[0])}
        numbers["residual"] = None if result.residual is None else float(result.residual[0])
        numbers["relevance"] = result.tokens[0].tolist()
        if result.decoder_tokens is not None:
            numbers["decoder_relevance"] = result.decoder_tokens[0].tolist()
        if result.pixels is not None:
            numbers["pixels"] = result.pixels[0].tolist()
        if answer.said is not None:
            numbers["shares"] = [asdict(share) for share in shares(answer, method)]
        if method.name in answer.hops:
            hops = answer.hops[method.name]
            numbers["hops"] = {"discarded": hops.discarded, "left": hops.left}
        methods.append(numbers)
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
    plain |= {"tokens": answer.tokens, "words": [[word.tokens[0], word.tokens[-1] + 1] for word in answer.words]}
    plain["logit_target"] = answer.logits[0]
    plain["logit_foil"] = answer.logits[1] if answer.foil is not None else None
    return {**plain, "methods": methods}
