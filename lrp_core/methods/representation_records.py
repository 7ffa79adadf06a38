"""Records of methods that read hidden states: their norms, the head applied to them, how they move. No torch here."""

from __future__ import annotations

from typing import Any

from lrp_core.methods.record import Method
from lrp_core.records.capabilities import ATTENTION, ONE_STACK, STATES
from lrp_core.records.explained import NO_CHOICE
from lrp_core.records.option import Option
from lrp_core.records.types import UserError

EMBEDDING_OUTPUT, WORD = "embedding_output", "word"
TARGET, FOIL = "target", "foil"  # values of the option `word`
_NORM = Option(
    "norm",
    EMBEDDING_OUTPUT,
    "the l2 norm of the input of the first block, as in the authors' code, or of the word embedding alone",
    choices=(EMBEDDING_OUTPUT, WORD),
    per_request=True,
)
_REVERSE = Option(
    "reverse",
    False,
    "for a score: tokens whose states give a number close to the prediction rank first, as the paper's text says; its "
    "formula ranks them last",
    per_request=True,
)


def _word(value: Any) -> str:
    """The word without surrounding blanks. Raises UserError for a value that is no text or blank."""
    if not isinstance(value, str) or not value.strip():
        raise UserError(f"it must be a word, {TARGET!r} or {FOIL!r}, not {value!r}")
    return value.strip()


_WORD = Option(
    "word",
    TARGET,
    "the word whose logit is read: target, foil (target and foil then change places), or any other word, such as "
    "plural (if it is several tokens, the first)",
    reads=_word,
    per_request=True,
)


def _of_states(name: str, label: str, **record: Any) -> Method:
    """The record of a method that reads hidden states in the plain forward pass that all such methods share."""
    return Method(
        name,
        version=1,
        label=label,
        explain="lrp_core.methods.normxlogit:explain_many",
        spans="summed",
        family="representation",
        embeddings=NO_CHOICE,
        conserves=False,
        needs=(STATES,),
        passes="states",
        forwards=1.1,
        **record,
    )


REPRESENTATION = (
    Method(
        "value_zeroing",
        version=1,
        label="Value Zeroing",
        explain="lrp_core.methods.value_zeroing:explain_many",
        spans="summed",
        family="representation",
        needs=(ATTENTION, ONE_STACK),
        gives=("tokens", "layers"),
        explanations=NO_CHOICE,
        embeddings=NO_CHOICE,
        conserves=False,
        forwards=lambda _, tokens: tokens + 2.0,
        order=65,
        about="how far states move when a token's value vectors are zeroed, layer by layer, multiplied over layers",
        source="Mohebbi et al. 2023; NormXLogit 5",
    ),
    _of_states(
        "embedding_norm",
        "Embedding norm",
        options=(_NORM,),
        gives=("tokens", "layers"),
        explanations=NO_CHOICE,
        order=86,
        about="the norm of the input, the same for every target; by layer, the norm of the layer's states",
        source="Oyama et al. 2023; NormXLogit 3",
    ),
    _of_states(
        "logat",
        "LogAt",
        options=(_REVERSE, _WORD),
        gives=("tokens", "layers"),
        order=87,
        about="the explained number that the head gives when it reads a token's last state",
        source="NormXLogit equations 2 and 3",
    ),
    _of_states(
        "normxlogit",
        "NormXLogit",
        options=(_NORM, _REVERSE),
        gives=("tokens", "layers"),
        order=88,
        about="logat times the norm of the input; signs stay, so a negative logit with a large norm ranks last",
        source="NormXLogit equation 4",
    ),
)
