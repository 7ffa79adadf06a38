"""Schemas of predictions while heads, tokens or neurons are removed in the order of their relevance."""

from evaluation.schema.versioned import Long, Single, versioned


class Pruning:
    """A point of a pruning curve; partitioned by model, task and dtype.

    `pruned_heads` are those removed at this step (layer * H + head). `area` is the area under the whole curve of
    accuracy against the share of removed heads. Heads are ranked and evaluated on all samples, or ranked on one `half`
    of them and evaluated on the other (version 2). The first point of a curve has the `samples` that are evaluated and
    the `areas` under their own curves, whose mean is `area`.
    """

    method: str
    pooling: str
    order: str  # least_first | most_first | random
    seed: int | None
    step: int
    pruned_heads: list[int]
    accuracy: float
    n: Long  # number of samples, without those whose logits are not finite
    area: float
    half: int | None
    samples: list[str] | None
    areas: list[float] | None


PRUNING = versioned("pruning", 2, Pruning)


class Curves:
    """A deletion curve of a sample; partitioned by model, task, dtype and method.

    Lists have an entry for each state, that is each number of removed tokens; values are NaN (`correct` null) where
    relevance or logits are not finite. There are two kinds (version 2): areas, where tokens are removed one after
    another, and shares, where first no token is removed, then the shares of tokens in `percent`.
    """

    sample_id: str
    explanation: str
    embedding: str
    # The relevance by which tokens are ranked (version 3): tokens, of their embeddings without positions | positions,
    # of the sum with positions | pixels | any, of methods that do not distinguish these.
    ranked: str
    perturbation: str  # zero | black | mask | delete | resample, whose curves are means over draws
    # Areas: morf, the most relevant token is removed first | lerf, the same order reversed.
    # Shares: without_top, the most relevant tokens are removed | top_only, all other tokens are.
    order: str
    # The number that `logit` and `area` follow (version 3): target, its logit | contrast, that minus the foil's.
    score: str
    target_id: int  # the token or label whose logit is followed
    percent: list[int] | None  # of the tokens that may be removed; null for areas
    removed: list[int]  # numbers of removed tokens; of areas, from 0 to all that may be removed
    logit: list[Single]
    probability: list[Single] | None  # null for a score
    # True if the target's logit is above the foil's or, without a foil, above every other; with a gold label, if this
    # label's logit is above every other. Over several draws: if it is so in more than half of them.
    correct: list[bool] | None  # null for a score
    area: float | None  # under the curve, over the share of removed tokens; null for shares


CURVES = versioned("curves", 3, Curves)


class Trials:
    """The areas under a sample's curves for every trial of a method; partitioned by model, task, dtype and method.

    A trial is a set of options that may be chosen; trials are in the order of the manifest. NaN where curves are not
    finite.
    """

    sample_id: str
    area_morf: list[float]
    area_lerf: list[float]


TRIALS = versioned("trials", 1, Trials)


class Knockouts:
    """The explained number of a sample after ablation of the first neurons of a ranking at all positions.

    Partitioned by model, task, dtype and ranking: a method, `random` or `activation`.
    """

    sample_id: str
    explanation: str
    ranking: str
    removed: list[int]  # numbers of ablated neurons, from 0
    explained: list[Single]  # NaN where logits are not finite


KNOCKOUTS = versioned("knockouts", 1, Knockouts)
