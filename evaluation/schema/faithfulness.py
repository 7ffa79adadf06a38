"""Schemas of predictions as heads, tokens or neurons are removed in the order of their relevance."""

from evaluation.schema.versioned import Long, Single, versioned


class Pruning:
    """One point of a pruning curve; partitioned by model, task and dtype.

    `pruned_heads` are those removed at this step (layer * H + head); `area` is that under the whole curve, accuracy
    against the share of heads removed. Heads are ranked and evaluated on all samples, or ranked on one `half` of them
    and evaluated on the other (version 2). Of the first point `samples` are those that are evaluated, with the
    `areas` under their own curves, of which `area` is the mean.
    """

    method: str
    pooling: str
    order: str  # least_first | most_first | random
    seed: int | None
    step: int
    pruned_heads: list[int]
    accuracy: float
    n: Long  # samples; those without finite logits are left out
    area: float
    half: int | None
    samples: list[str] | None
    areas: list[float] | None


PRUNING = versioned("pruning", 2, Pruning)


class Curves:
    """A curve of one sample as its tokens go; partitioned by model, task, dtype and method.

    Lists have an entry for each state; values are NaN (`correct` null) where relevance or logits are not finite. Of
    two kinds (version 2): areas, as tokens go one after the other, and shares, where first no token is gone, then the
    shares of tokens in `percent`.
    """

    sample_id: str
    explanation: str
    embedding: str
    # The part of the input whose relevance ranks (version 3): tokens, their embeddings without positions | positions,
    # the sum with those | pixels | any, of methods that tell no parts apart.
    ranked: str
    perturbation: str  # zero | black | mask | delete | resample, whose curves are means over draws
    # Areas: morf, the most relevant token goes first | lerf, the same order reversed.
    # Shares: without_top, so many of the most relevant tokens are gone | top_only, all others are.
    order: str
    # The number that `logit` and `area` follow (version 3): target, its logit | contrast, that minus the foil's.
    score: str
    target_id: int  # the token or label whose logit is followed
    percent: list[int] | None  # of the tokens that may go; null for areas
    removed: list[int]  # how many tokens are gone; of areas, from 0 to all that may go
    logit: list[Single]
    probability: list[Single] | None  # null for a score
    # Target above foil or, without a foil, above every other token; with a gold label, that above every other.
    # Of several draws: in more than half of them.
    correct: list[bool] | None  # null for a score
    area: float | None  # under the logit, over the share of tokens that are gone; null for shares


CURVES = versioned("curves", 3, Curves)


class Trials:
    """The areas of one sample's curves under every trial of a method; partitioned by model, task, dtype and method.

    Trials are the sets of options, in the order of the manifest, that a choice is made among. NaN where a trial has
    no finite curves.
    """

    sample_id: str
    area_morf: list[float]
    area_lerf: list[float]


TRIALS = versioned("trials", 1, Trials)


class Knockouts:
    """The explained number of one sample without the first neurons of a ranking, which are zero at all positions.

    Partitioned by model, task, dtype and what ranks: a method, or `random` or `activation`.
    """

    sample_id: str
    explanation: str
    ranking: str
    removed: list[int]  # how many neurons are gone, from 0
    explained: list[Single]  # NaN where logits are not finite


KNOCKOUTS = versioned("knockouts", 1, Knockouts)
