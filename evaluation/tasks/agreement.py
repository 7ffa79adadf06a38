"""Agreement: of reflexives and verbs (Close Look 4.1), and in five paradigms of BLiMP (NormXLogit, section 5)."""

from evaluation.benchmark.sources import blimp
from evaluation.benchmark.sources.generated import DEMO
from evaluation.benchmark.sources.lgd import LGD
from evaluation.tasks.record import Task

RA = Task(
    name="ra",
    title="reflexive anaphora",
    about="The reflexive pronoun that agrees with its antecedent, against its twin of the other number.",
    sources=(blimp.BLIMP, DEMO),
    predicts="the reflexive",
    evidence="antecedent",
    evidence_about=(
        "the head token of the reflexive's antecedent, by coreference where a model is configured, else by the parse. "
        "The text ends at the slot, without the full stop."
    ),
    figure="Figure 3",
    published=(1000, 8),
    share={"masked": "23", "causal": "35-36"},
)
SVA = Task(
    name="sva",
    title="subject-verb agreement",
    about="The form of a verb that agrees with its subject, against the form of the other number.",
    sources=(LGD, DEMO),
    predicts="the verb form",
    evidence="subject",
    evidence_about=(
        "the head token of the verb's subject, by a dependency parse of the full sentence, through auxiliaries, "
        "copulas, passives, conjoined verbs and inversion; a relative pronoun stands for its antecedent, existential "
        "*there* for what there is. Where the parse has no subject, or contradicts itself, the sentence is left out: "
        "never a guess."
    ),
    figure="Figure 4",
    main_figure="Figure 2",
    published=(30_000, 30),
    share={"masked": "5", "causal": "15"},
)
BLIMP5 = Task(
    name="blimp5",
    title="agreement in five paradigms",
    about=(
        "The word of a minimal pair that agrees, against its twin: reflexives (ana), determiners (dna, dnaa) and verbs "
        "(darn, rpsv)."
    ),
    sources=(blimp.BLIMP5,),
    predicts="the word that agrees",
    evidence="sample",
    evidence_about=(
        "by paradigm and by the parse: the head token of the reflexive's antecedent, the noun of the determiner, the "
        "head token of the verb's subject. The slot is inside the sentence, and masked models read what follows it. "
        "Causal models read up to the slot: a determiner's noun follows it, so nothing that they read could tell the "
        "form, and these rows are rejects of theirs. Negative contractions are written out, as NormXLogit does "
        "(hasn't: has not); `balance` draws the singulars of rpsv with replacement until there are as many as plurals "
        "(before evidence and tokens are looked for), and `first_piece` counts the first token of an evidence word."
    ),
    parts="paradigm",
    published=(5000, 9),
)
