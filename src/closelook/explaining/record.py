"""Explained predictions as plain data: shares of the parts of the input, and what `closelook explain --json` writes.

The first token is a part of its own, since many models attend to it whatever it is. So is what no token has: what the
biases of blocks and the softmax of attention keep, and the rest.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from closelook.evaluation.benchmark.encoding import START
from closelook.explaining.answer import OWN
from closelook.explaining.explained import Explained
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


def shares_of_all(explained: Sequence[Explained]) -> list[dict[str, Any]]:
    """One row for each span, method and part: index and text of the span, the method's name, and fields of `Share`."""
    rows = []
    for at, each in enumerate(explained):
        for method in each.methods:
            facts = {"answer": at, "target": each.target, "method": method.name}
            rows += [{**facts, **asdict(share)} for share in shares(each, method)]
    return rows


def shares(explained: Explained, method: Method) -> list[Share]:
    """The share of each part of the input in a method's relevance, in the order of the text; last what no token has.

    The first token is a part of its own: of an encoder-decoder, the first of the decoder. What no token has is left out
    for methods that promise no sum.
    """
    relevance = explained.relevance[method.name]
    values = relevance.tokens[0].tolist()
    names = list(explained.view.part_names or ())
    if explained.decoder is None:
        names[0] = FIRST
    elif relevance.decoder_tokens is not None:
        values += relevance.decoder_tokens[0].tolist()
        names += [FIRST if piece == START else OWN for piece in explained.decoder.tokens]
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
    """The relevance that no token has, by what keeps it: REASONS inside blocks where they are known, and REST."""
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


def prediction(explained: Explained) -> dict[str, Any]:
    """An explained prediction as plain data; `words` holds the tokens [start, end) of each word."""
    view, span = explained.view, explained.span
    plain: dict[str, Any] = {"target": explained.target}
    if explained.token is not None:
        plain["target_token"] = explained.token
    plain["foil"] = explained.foil
    plain |= {name: getattr(view, name) for name in ("target_id", "foil_id", "position", "input_ids", "special_mask")}
    if view.decoder_input_ids is not None:
        plain["decoder_input_ids"] = view.decoder_input_ids
    if view.span is not None and span is not None:
        plain["target_ids"] = [token for _, token, _ in view.span]
        plain |= {"span": [span.start, span.end], "part_names": view.part_names}
    words = [[word.tokens[0], word.tokens[-1] + 1] for word in explained.text.words]
    plain |= {"tokens": explained.tokens, "words": words, "logit_target": explained.logits[0]}
    plain["logit_foil"] = explained.logits[1] if explained.foil is not None else None
    return {**plain, "methods": [_of_method(explained, method) for method in explained.methods]}


def _of_method(explained: Explained, method: Method) -> dict[str, Any]:
    """The relevance by one method as plain data."""
    relevance = explained.relevance[method.name]
    plain: dict[str, Any] = {"method": method.name, "explained": float(relevance.explained[0])}
    plain["residual"] = None if relevance.residual is None else float(relevance.residual[0])
    plain["relevance"] = relevance.tokens[0].tolist()
    if relevance.decoder_tokens is not None:
        plain["decoder_relevance"] = relevance.decoder_tokens[0].tolist()
    if relevance.pixels is not None:
        plain["pixels"] = relevance.pixels[0].tolist()
    if explained.answer is not None:
        plain["shares"] = [asdict(share) for share in shares(explained, method)]
    return plain
