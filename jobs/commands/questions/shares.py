"""The share of each part of the input in an explanation: prompt by role, template, earlier answer.

The first token is a part of its own, since many models attend to it whatever it is, and so is what no token has: what
biases absorb, under rules that say so.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from jobs.commands.questions.answers import Answer
from jobs.commands.questions.spans import OWN
from lrp_core.records.capabilities import RULES

FIRST, BIASES, REST = "first token", "biases", "rest"


@dataclass(frozen=True)
class Share:
    """A part of what was read, and its share of an explanation."""

    part: str
    relevance: float  # the sum over its tokens
    share: float  # of the magnitudes of all tokens' relevance and of what none has, those of its tokens
    share_without_first: float | None  # the same where the first token counts for nothing; None of that token itself


def shares_of_all(answers: Sequence[Answer]) -> list[dict[str, Any]]:
    """A row for each span, method and part: the number and the text of the span, the method, and fields of `Share`."""
    rows = []
    for at, answer in enumerate(answers):
        for method in answer.methods:
            facts = {"answer": at, "target": answer.target, "method": method.name}
            rows += [{**facts, **asdict(share)} for share in shares(answer, method.name)]
    return rows


def shares(answer: Answer, method: str) -> list[Share]:
    """The share of each part in the order of the text, and last the residual if the method has one."""
    relevance = answer.relevance[method]
    values = relevance.tokens[0].tolist()
    names = list(answer.row["part_names"])
    if answer.decoder is None:
        names[0] = FIRST
    elif relevance.decoder_tokens is not None:
        values += relevance.decoder_tokens[0].tolist()
        names += [FIRST] + [OWN] * (len(answer.decoder) - 1)
    sums, magnitudes = dict.fromkeys(names, 0.0), dict.fromkeys(names, 0.0)
    for name, value in zip(names, values, strict=True):
        sums[name] += value
        magnitudes[name] += abs(value)
    if relevance.residual is not None:
        ruled = any(RULES in record.needs for record in answer.methods if record.name == method)
        name, rest = BIASES if ruled else REST, -float(relevance.residual[0])
        sums[name], magnitudes[name] = rest, abs(rest)
    total = math.fsum(magnitudes.values())
    others = total - magnitudes.get(FIRST, 0.0)
    rows = []
    for name, part in magnitudes.items():
        without_first = None if name == FIRST else _ratio(part, others)
        rows.append(Share(name, sums[name], _ratio(part, total), without_first))
    return rows


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
