"""Schemas of answers under ablation of their sources, and of methods that are judged by these ablations."""

from evaluation.schema.versioned import versioned


class Ablations:
    """The numbers of a sample's answer after its ablated prompts, for each distinct mask.

    Partitioned by model, task, dtype and, as method, the way to ablate. M masks, n units, G tokens of the answer. A
    mask keeps some units of the prompt; sets of masks are lists of indices into `kept`.
    """

    sample_id: str
    kept: list[list[bool]]  # [M, n] True for units that stay
    logits: list[list[float]]  # [M, G] of each token of the answer
    log_odds: list[list[float]]  # [M, G] logit - logsumexp(other logits)
    full: int  # the mask that keeps all units
    without: list[int]  # [n] the masks without one unit, by unit
    fit: list[int]  # masks to fit methods to; a budget takes the first of them
    judge: list[int]  # masks to judge methods by
    swapped: bool  # True: all masks were run; methods are also fitted to `judge` and judged by `fit`, and averaged
    shapley: list[int]  # for Shapley values: no unit kept, one of each pair, then their complements; empty: not run
    shapley_weights: list[float]  # how often each pair was drawn
    random: list[list[int]]  # masks without random units, for each number of removed units in `random_gone`
    random_gone: list[int]


ABLATIONS = versioned("ablations", 1, Ablations)


class Sources:
    """Relevance of the units of a sample's prompt, with measures of how well it predicts the effect of removing them.

    A row for each sample, way, explanation and number of ablated prompts; partitioned by model, task, dtype and method.
    The ends of names tell what a measure is taken against: l the log-probability of the answer, f the sum of its
    logits, y its log-odds. Null: not defined (version 1).
    """

    sample_id: str
    way: str  # how units are ablated
    explanation: str  # target | log_prob, or none for methods without a choice
    ablated: int  # prompts that were run again for this relevance; 0 for relevance from tokens
    screened: bool  # True: leave-one-out for the units that the method finds most relevant, 0 for the others
    relevance: list[float]  # [n]
    lds_l: float | None
    lds_f: float | None
    infidelity_l: float | None
    infidelity_f: float | None
    drop_l: list[float]  # without the 1, 3 and 5 most relevant units; numbers below n only
    drop_f: list[float]
    drop_y: list[float]
    pg: float | None  # against evidence, over units
    mrr: float | None
    ap: float | None
    parts: list[list[float]] | None  # relevance for each sentence of the answer; only of samples in the report


SOURCES = versioned("sources", 1, Sources)
