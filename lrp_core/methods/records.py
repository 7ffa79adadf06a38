"""Records of methods besides those of gradients and attention maps. Imports no torch."""

from __future__ import annotations

from typing import Any

from closelook.lrp_core.methods.record import Method
from closelook.lrp_core.records.capabilities import ATTENTION, DELETION, MASKING, ONE_STACK, STATES
from closelook.lrp_core.records.explained import EVERY, NO_CHOICE
from closelook.lrp_core.records.kinds import DELETE, MASK, ZERO
from closelook.lrp_core.records.option import Option
from closelook.lrp_core.records.registry import Registry
from closelook.lrp_core.records.types import UserError

PERTURBATION = (
    Method(
        "atman",
        version=2,
        label="AtMan",
        explain="closelook.lrp_core.methods.atman:explain_many",
        spans="together",
        family="perturbation",
        options=(
            Option("suppression", 0.9, "share of an attention score that is taken away; AttnLRP's p", low=0, high=1),
            Option(
                "as_printed",
                False,
                "take the share of the score itself; by default, of its distance to the lowest score of its row",
            ),
            Option(
                "similarity",
                1.0,
                "tokens whose embeddings have at least this cosine with the suppressed one are suppressed too, in "
                "proportion to it; 1: only the token itself is",
                low=0,
                high=1,
            ),
            Option(
                "score",
                "log_prob",
                "the number of the explained token or label whose drop is measured; for a regressor always its score",
                choices=("log_prob", "logit"),
            ),
        ),
        needs=(ATTENTION,),
        embeddings=NO_CHOICE,
        conserves=False,
        forwards=lambda _, tokens: 1.2 * (tokens + 1),
        order=66,
        about="the drop when attention to a token is suppressed in all layers",
        source="Deb et al. 2023; AttnLRP A.1.5",
    ),
    Method(
        "occlusion",
        version=1,
        label="Occlusion",
        explain="closelook.lrp_core.methods.occlusion:explain_many",
        spans="together",
        family="perturbation",
        options=(
            Option(
                "how",
                ZERO,
                "how a token is removed: its embedding is set to zero, it is masked, or it is deleted",
                choices=(ZERO, MASK, DELETE),
                needs={MASK: MASKING, DELETE: DELETION},
            ),
        ),
        explanations=EVERY,
        embeddings=NO_CHOICE,
        conserves=False,
        forwards=lambda _, tokens: tokens + 1,
        instead="how 'zero'",
        order=68,
        about="the drop when a token is taken away",
        source="Zeiler & Fergus 2014",
    ),
    Method(
        "kernel_shap",
        version=2,
        label="Kernel SHAP",
        explain="closelook.lrp_core.methods.kernel_shap:explain_many",
        spans="together",
        family="perturbation",
        options=(
            Option(
                "samples",
                200,
                "sets of tokens that are run, in addition to none and all; fewer if fewer give exact values",
                low=2,
            ),
            Option(
                "units",
                False,
                "true: relevance of a prompt's units, from the sets that the run's `ablations` compute for it",
                added_later=True,
                withholds=lambda of_units: ("tokens",) if of_units else ("units",),
            ),
        ),
        gives=("tokens", "units"),
        from_ablations="closelook.lrp_core.methods.kernel_shap:of_units",
        seeded=True,
        explanations=EVERY,
        embeddings=NO_CHOICE,
        forwards=lambda values, tokens: min(values["samples"], 2.0 ** min(tokens, 64) - 2) + 2,
        order=70,
        about="Shapley values of the presence of each token: exact for short texts, else fitted to drawn sets",
        source="Lundberg & Lee 2017; Covert & Lee 2021",
    ),
)


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
        explain="closelook.lrp_core.methods.normxlogit:explain_many",
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
        explain="closelook.lrp_core.methods.value_zeroing:explain_many",
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


def _planted(name: str, label: str, **record: Any) -> Method:
    """The record of the function `name` in `baselines.py`."""
    return Method(
        name,
        version=1,
        label=label,
        explain=f"closelook.lrp_core.methods.baselines:{name}",
        family="planted",
        explanations=NO_CHOICE,
        embeddings=NO_CHOICE,
        conserves=False,
        **record,
    )


PLANTED: Registry[Method] = Registry(
    "planted method",
    _planted("position_only", "Position only", about="the number of a token in the text: the last says most"),
    _planted("constant", "Constant", about="1 for every token"),
    _planted("frequency", "Frequency", about="the logarithm of a token's id, high where a vocabulary is sorted by use"),
)
