"""Schemas of answers whose sources are ablated, and of methods that are judged by it."""

from evaluation.schema.versioned import versioned


class Ablations:
    """The answer of one sample after its prompt without some of its units, for every mask that is run, each once.

    Partitioned by model, task, dtype and, as method, the way in which units go. M masks, n units, G tokens of the
    answer; the numbers of sets are indices of masks.
    """

    sample_id: str
    kept: list[list[bool]]  # [M, n] which units stay
    logits: list[list[float]]  # [M, G] of each token of the answer
    log_odds: list[list[float]]  # [M, G] logit - logsumexp(other logits)
    full: int  # every unit stays
    without: list[int]  # [n] one unit goes, unit by unit
    fit: list[int]  # masks that methods may be fitted to; budgets are beginnings
    judge: list[int]  # masks that methods are judged by
    swapped: bool  # all masks were run, half of them to fit: roles are swapped, too, and results averaged
    shapley: list[int]  # of Shapley values: no unit, a set of each pair, then their complements; empty: not run
    shapley_weights: list[float]  # of the pairs
    random: list[list[int]]  # random units that go together: of each number of them in `random_gone`
    random_gone: list[int]


ABLATIONS = versioned("ablations", 1, Ablations)


class Sources:
    """Relevance of the units of a sample's prompt, with measures of how well it predicts the effect of removing them.

    A row a sample, way, explanation and number of ablated prompts; partitioned by model, task, dtype and method.
    Numbers end with what they are taken against: l, the log-probability of the answer, or f, its summed logits; y are
    its log-odds. Null: not defined (version 1).
    """

    sample_id: str
    way: str  # in which units go
    explanation: str  # target | log_prob, or none of methods that know no choice
    ablated: int  # prompts that were run again for this relevance; 0 of relevance of tokens
    screened: bool  # leave-one-out of the units that the method finds most relevant, 0 for the others
    relevance: list[float]  # [n]
    lds_l: float | None
    lds_f: float | None
    infidelity_l: float | None
    infidelity_f: float | None
    drop_l: list[float]  # without the 1, 3, 5 most relevant units, as far as fewer than n
    drop_f: list[float]
    drop_y: list[float]
    pg: float | None  # against evidence, over units
    mrr: float | None
    ap: float | None
    parts: list[list[float]] | None  # of each of several sentences of the answer, of samples that the report shows


SOURCES = versioned("sources", 1, Sources)
