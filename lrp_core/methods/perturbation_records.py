"""Records of methods that run the model again with tokens, or attention to tokens, removed. Imports no torch."""

from __future__ import annotations

from lrp_core.methods.record import Method
from lrp_core.records.capabilities import ATTENTION, DELETION, MASKING
from lrp_core.records.explained import EVERY, NO_CHOICE
from lrp_core.records.kinds import DELETE, MASK, ZERO
from lrp_core.records.option import Option

PERTURBATION = (
    Method(
        "atman",
        version=2,
        label="AtMan",
        explain="lrp_core.methods.atman:explain_many",
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
        explain="lrp_core.methods.occlusion:explain_many",
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
        explain="lrp_core.methods.kernel_shap:explain_many",
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
        from_ablations="lrp_core.methods.kernel_shap:of_units",
        seeded=True,
        explanations=EVERY,
        embeddings=NO_CHOICE,
        forwards=lambda values, tokens: min(values["samples"], 2.0 ** min(tokens, 64) - 2) + 2,
        order=70,
        about="Shapley values of the presence of each token: exact for short texts, else fitted to drawn sets",
        source="Lundberg & Lee 2017; Covert & Lee 2021",
    ),
)
