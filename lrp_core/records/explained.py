"""The number that is explained, as a function of one row's logits or of the directions that logits are read along.

No torch here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lrp_core.records.types import Relevance, Request, UnsupportedMethod, UserError

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Explained:
    """A choice of the explained number. A linear one applies to logits and to hidden states alike."""

    name: str
    label: str
    needs_foil: bool
    combine: Callable[[Tensor], Tensor]  # of target and foil, the axis after the batch's: [B, 2, ...] to [B, ...]
    linear: bool = True  # False: the logarithm of the sum over the vocabulary is subtracted
    version: int = 1  # raised when its numbers change, so that stored ones are computed anew

    def of(self, pair: Tensor, others: Tensor | None = None) -> Tensor:
        """The explained number [B, ...] from target and foil [B, 2, ...] ([B, 1, ...] without foils).

        `others` [B] is the logarithm of the summed exponentials of all logits but the target's, which only what is not
        linear needs: of a target that is certain, the sum over all would leave nothing but rounding.
        Raises UserError for a missing foil.
        """
        if self.needs_foil and pair.shape[1] == 1:
            free = " or ".join(repr(other.name) for other in EXPLAINED.values() if not other.needs_foil)
            raise UserError(f"a {self.name} explanation needs foil_ids; ask for explanation={free} without them")
        if self.linear:
            return self.combine(pair)
        assert others is not None
        against = others - self.combine(pair)
        return -against.logaddexp(against.new_zeros(()))


#: Why the target rather than the foil (Yin & Neubig 2022; Close Look 5.1). The difference itself is explained, since
#: differences of finished relevances would cancel in half precision.
CONTRASTIVE = Explained("contrastive", "target − foil", needs_foil=True, combine=lambda pair: pair[:, 0] - pair[:, 1])
TARGET = Explained("target", "target", needs_foil=False, combine=lambda pair: pair[:, 0])
#: Of one token. The contrast of two is that of their logits.
LOG_PROB = Explained(
    "log_prob", "log-probability", needs_foil=False, combine=lambda pair: pair[:, 0], linear=False, version=2
)
EXPLAINED = {explained.name: explained for explained in (CONTRASTIVE, TARGET, LOG_PROB)}
LINEAR = tuple(explained.name for explained in EXPLAINED.values() if explained.linear)  # what every method can explain
EVERY = tuple(EXPLAINED)  # those that are not linear in logits included
NONE = "none"  # of methods that do not know the choice
NO_CHOICE = (NONE,)  # of an explanation or an embedding
EXPLANATIONS = (*EXPLAINED, NONE)


def versions(names: Iterable[str]) -> dict[str, dict[str, int]]:
    """The versions of these explanations above the first, as a keyword of the key of stored numbers."""
    raised = {name: EXPLAINED[name].version for name in names if name in EXPLAINED and EXPLAINED[name].version > 1}
    return {"explained": raised} if raised else {}


def whichever(has_foil: bool) -> Explained:
    """The explanation by default: contrastive if there is a foil, else the target."""
    return CONTRASTIVE if has_foil else TARGET


def needs_foil(name: str) -> bool:
    """True if the explanation `name`, which may be NONE, needs a foil."""
    return name in EXPLAINED and EXPLAINED[name].needs_foil


def explained_by(name: str) -> Explained:
    """Raises UnsupportedMethod for an explanation that does not exist."""
    if name not in EXPLAINED:
        raise UnsupportedMethod(f"no explanation {name!r}; choose {' or '.join(map(repr, EXPLAINED))}")
    return EXPLAINED[name]


def explanations_of(requests: Iterable[Request]) -> tuple[str, ...]:
    """The explanations of these requests, each once, in the order in which they come."""
    return tuple(dict.fromkeys(request.explanation for request in requests))


def relevance_of(tokens: Tensor, logits: Tensor, explained: Tensor, **rest: Any) -> Relevance:
    """Relevance of `tokens` [B, T] from logits [B, 2] of target and foil ([B, 1] without foils), free of any graph."""
    logits = logits.detach()
    foil = logits[:, 1] if logits.shape[1] == 2 else None
    return Relevance(tokens, explained.detach(), logits[:, 0], foil, **rest)


def without_sum(tokens: Tensor, logits: Tensor, **rest: Any) -> Relevance:
    """Relevance of a method that promises no sum, from tokens [B, T] and logits [B, 2] (or [B, 1] without foils)."""
    return relevance_of(tokens, logits, whichever(logits.shape[1] == 2).of(logits.detach()), conserves=False, **rest)
