"""The explained number: a logit, a difference of two logits, or a log-probability. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from closelook.lrp_core.records.types import Relevance, Request, UnsupportedMethod, UserError

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Explained:
    """A choice of the explained number. A linear one can also be applied to the rows of the unembedding."""

    name: str
    label: str
    needs_foil: bool = False
    #: From the logits of target and foil [B, 2, ...] to one number [B, ...]; by default the target's.
    combine: Callable[[Tensor], Tensor] = lambda pair: pair[:, 0]
    linear: bool = True  # linear in the logits; False: the logsumexp over the vocabulary is subtracted
    version: int = 1  # raised when its numbers change, so that stored ones are computed anew

    def of(self, pair: Tensor, others: Tensor | None = None) -> Tensor:
        """The explained number [B, ...] from target and foil [B, 2, ...] ([B, 1, ...] without foils).

        `others` [B] is the logsumexp of all logits but the target's; only a log-probability needs it. From that of all
        logits, the log-probability of a nearly certain target would be lost in rounding.
        Raises UserError for a missing foil.
        """
        if self.needs_foil and pair.shape[1] == 1:
            free = " or ".join(repr(other.name) for other in EXPLAINED.values() if not other.needs_foil)
            raise UserError(f"a {self.name} explanation needs foil_ids; without foils ask for explanation={free}")
        if self.linear:
            return self.combine(pair)
        assert others is not None
        against = others - self.combine(pair)
        return -against.logaddexp(against.new_zeros(()))


#: Why the target rather than the foil (Yin & Neubig 2022; Close Look 5.2). The difference of logits is explained as one
#: number: the difference of two relevances would lose its digits in half precision.
CONTRASTIVE = Explained("contrastive", "target − foil", needs_foil=True, combine=lambda pair: pair[:, 0] - pair[:, 1])
TARGET = Explained("target", "target")
#: Without a foil: the difference of two log-probabilities is that of the logits, which CONTRASTIVE explains.
LOG_PROB = Explained("log_prob", "log-probability", linear=False, version=2)
EXPLAINED = {explained.name: explained for explained in (CONTRASTIVE, TARGET, LOG_PROB)}
LINEAR = tuple(explained.name for explained in EXPLAINED.values() if explained.linear)  # what every method can explain
EVERY = tuple(EXPLAINED)  # LOG_PROB, which is not linear in logits, included
NONE = "none"  # the value of a request to a method without a choice of explanations (or of embeddings)
NO_CHOICE = (NONE,)
EXPLANATIONS = (*EXPLAINED, NONE)


def versions(names: Iterable[str]) -> dict[str, dict[str, int]]:
    """Versions above 1 of the explanations `names`, as {"explained": {name: version}} for the key of stored numbers."""
    raised = {name: EXPLAINED[name].version for name in names if name in EXPLAINED and EXPLAINED[name].version > 1}
    return {"explained": raised} if raised else {}


def whichever(has_foil: bool) -> Explained:
    """The explanation by default: contrastive if there is a foil, else the target."""
    return CONTRASTIVE if has_foil else TARGET


def needs_foil(name: str) -> bool:
    """True if the explanation `name`, which may be NONE, needs a foil."""
    return name in EXPLAINED and EXPLAINED[name].needs_foil


def explained_by(name: str) -> Explained:
    """The record of the explanation `name`. Raises UnsupportedMethod, listing all, if there is none."""
    if name not in EXPLAINED:
        raise UnsupportedMethod(f"no explanation {name!r}; choose {' or '.join(map(repr, EXPLAINED))}")
    return EXPLAINED[name]


def explanations_of(requests: Iterable[Request]) -> tuple[str, ...]:
    """The distinct explanations of `requests`, in order of first occurrence."""
    return tuple(dict.fromkeys(request.explanation for request in requests))


def relevance_of(tokens: Tensor, logits: Tensor, explained: Tensor, **rest: Any) -> Relevance:
    """A Relevance of `tokens` [B, T], with logits [B, 2] of target and foil ([B, 1] without foils), detached."""
    logits = logits.detach()
    foil = logits[:, 1] if logits.shape[1] == 2 else None
    return Relevance(tokens, explained.detach(), logits[:, 0], foil, **rest)


def without_sum(tokens: Tensor, logits: Tensor, **rest: Any) -> Relevance:
    """A Relevance of a method that promises no sum, from tokens [B, T] and logits [B, 2] ([B, 1] without foils)."""
    return relevance_of(tokens, logits, whichever(logits.shape[1] == 2).of(logits.detach()), conserves=False, **rest)
