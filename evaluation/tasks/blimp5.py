"""Agreement in five paradigms of BLiMP, with the evidence on either side of the slot (NormXLogit, section 5)."""

from evaluation.benchmark.sources import blimp
from evaluation.tasks.record import Task

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
