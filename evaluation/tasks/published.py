"""Tasks of published data: agreement, question answering, the next word, judged texts, images, and sources of answers.

They are those of Close Look 4.1, AttnLRP 4.1 (its prompt of question answering: appendix B.1), and NormXLogit 4 and 5.
"""

from functools import partial

from closelook.evaluation.benchmark.demo.grammar import DEMO
from closelook.evaluation.benchmark.samples import Beginning
from closelook.evaluation.benchmark.sources import agreement, geco, judged
from closelook.evaluation.benchmark.sources.generations import GENERATIONS
from closelook.evaluation.benchmark.sources.pictures import IMAGE_FOLDER, MNIST
from closelook.evaluation.benchmark.sources.squad import SQUAD, SQUAD_PASSAGES
from closelook.evaluation.benchmark.sources.text import TEXT, WIKIPEDIA, WIKITEXT
from closelook.evaluation.tasks.record import NO_EVIDENCE, Task

_judged = partial(Task, output="label", evidence=None, evidence_about=NO_EVIDENCE)

TASKS = (
    Task(
        name="ra",
        title="reflexive anaphora",
        about="The reflexive pronoun that agrees with its antecedent, against its twin of the other number.",
        sources=(agreement.BLIMP, DEMO),
        predicts="the reflexive",
        evidence="antecedent",
        evidence_about=(
            "the head token of the reflexive's antecedent, by coreference where a model is configured, else by the "
            "parse. The text ends at the slot, without the full stop."
        ),
        figure="Figure 3",
        share={"masked": "23", "causal": "35-36"},
    ),
    Task(
        name="sva",
        title="subject-verb agreement",
        about="The form of a verb that agrees with its subject, against the form of the other number.",
        sources=(agreement.LGD, DEMO),
        predicts="the verb form",
        evidence="subject",
        evidence_about=(
            "the head token of the verb's subject, by a dependency parse of the full sentence, through auxiliaries, "
            "copulas, passives, conjoined verbs and inversion; a relative pronoun stands for its antecedent, "
            "existential *there* for what there is. Where the parse has no subject, or contradicts itself, the sentence"
            " is left out: never a guess."
        ),
        figure="Figure 4",
        main_figure="Figure 2",
        share={"masked": "5", "causal": "15"},
    ),
    Task(
        name="qa",
        title="question answering",
        about="The first token of the answer to a question about a passage, against that of another answer.",
        sources=(SQUAD, DEMO),
        predicts="the first token of the answer",
        answer=True,
        words="first_difference",
        evidence="source",
        evidence_about=(
            "the answer's span in the context, and no other occurrence of its text (`meta.occurrences` counts them). "
            "The prompt is AttnLRP's (appendix B.1). The target is the first of the annotators' answers. The foil, "
            "which Close Look does not state, is the answer of another question of the same paragraph, else of the "
            "article, that begins differently: the next one in published order."
        ),
        scope="context",
        figure="Figure 5",
        share={"masked": "1", "causal": "1"},
    ),
    Task(
        name="next_word",
        title="next word",
        about="The token that a model predicts after the beginning of an article.",
        sources=(WIKIPEDIA, WIKITEXT, TEXT, DEMO),
        predicts="the next token",
        beginning=Beginning(512, "prediction"),
        evidence=None,
        evidence_about=(
            "none: the task is for perturbation alone. The first 512 tokens of an article are read. AttnLRP does not "
            "say which token it explains; here it is the model's own prediction, or with `explains: true` the one that "
            "follows."
        ),
    ),
    Task(
        name="blimp5",
        title="agreement in five paradigms",
        about=(
            "The word of a minimal pair that agrees, against its twin: reflexives (ana), determiners (dna, dnaa) and "
            "verbs (darn, rpsv)."
        ),
        sources=(agreement.BLIMP5,),
        predicts="the word that agrees",
        evidence="sample",
        evidence_about=(
            "by paradigm and by the parse: the head token of the reflexive's antecedent, the noun of the determiner, "
            "the head token of the verb's subject. The slot is inside the sentence, and masked models read what follows"
            " it. Causal models read up to the slot: a determiner's noun follows it, so nothing that they read could "
            "tell the form, and these rows are rejects of theirs. Negative contractions are written out, as NormXLogit "
            "does (hasn't: has not); `balance` draws the singulars of rpsv with replacement until there are as many as "
            "plurals (before evidence and tokens are looked for), and `first_piece` counts the first token of an "
            "evidence word."
        ),
        parts="paradigm",
    ),
    _judged(
        name="sst2",
        title="sentiment of sentences",
        about="Whether a sentence of a film review is negative or positive.",
        sources=(judged.SST2,),
        predicts="the sentiment",
        labels=judged.SST2_LABELS,
    ),
    _judged(
        name="mnli",
        title="natural language inference",
        about="Whether a premise entails a hypothesis, contradicts it, or neither.",
        sources=(judged.MNLI,),
        predicts="the relation of premise and hypothesis",
        labels=judged.MNLI_LABELS,
        pair=True,
    ),
    _judged(
        name="qnli",
        title="question and answer inference",
        about="Whether a sentence of Wikipedia holds the answer to a question.",
        sources=(judged.QNLI,),
        predicts="whether the sentence answers the question",
        labels=judged.QNLI_LABELS,
        pair=True,
    ),
    _judged(
        name="stsb",
        title="similarity of sentences",
        about="How alike in meaning two sentences are, from 0 to 5.",
        sources=(judged.STSB,),
        predicts="the score",
        output="score",
        pair=True,
    ),
    _judged(
        name="imdb",
        title="sentiment of reviews",
        about="Whether a review of a film is negative or positive.",
        sources=(judged.IMDB,),
        predicts="the sentiment",
        labels=judged.SST2_LABELS,
    ),
    Task(
        name="geco",
        title="gender of sentences",
        about="Whether a sentence of Wikipedia is about women or about men.",
        sources=(geco.GECO,),
        predicts="the gender",
        output="label",
        labels=geco.LABELS,
        evidence="source",
        evidence_about="by construction: the words in which the two forms of a sentence differ, and no other.",
    ),
    Task(
        name="images",
        title="images",
        about="The class that a model gives an image.",
        sources=(IMAGE_FOLDER, MNIST),
        predicts="the class",
        output="label",
        image=True,
        evidence=None,
        evidence_about="none: the task is for perturbation alone. AttnLRP flips pixels of 3,200 images of ImageNet.",
    ),
)
ANSWERS = Task(
    name="sources",
    title="sources of answers",
    about="Which passages of a prompt an answer comes from; the whole answer is explained.",
    sources=(SQUAD_PASSAGES, DEMO, GENERATIONS),
    predicts="the answer",
    words="all",
    evidence="source",
    evidence_about=(
        "the passages that an answer comes from: of SQuAD the paragraph that a question is about, among others of "
        "its article in which its answer does not occur; of the demo language the passages about the persons of the"
        " question. Logged generations have none."
    ),
)
