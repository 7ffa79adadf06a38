"""What becomes of a prediction as heads, tokens or neurons go in the order of their relevance."""

from __future__ import annotations

import pyarrow as pa

from evaluation.schema.versioned import BOOL, FLOAT, INT, STR, versioned

#: One point of a pruning curve; partitioned by model, task and dtype. `pruned_heads` are those removed at this step
#: (layer * H + head); `area` is that under the whole curve, accuracy against the share of heads removed.
PRUNING = versioned(
    "pruning",
    1,
    [
        ("method", STR, False),
        ("pooling", STR, False),
        ("order", STR, False),  # least_first | most_first | random
        ("seed", INT, True),
        ("step", INT, False),
        ("pruned_heads", pa.list_(pa.int32()), False),
        ("accuracy", FLOAT, False),
        ("n", pa.int64(), False),  # samples; those without finite logits are left out
        ("area", FLOAT, False),
    ],
)

#: A curve of one sample as its tokens go; partitioned by model, task, dtype and method. Lists have an entry for each
#: state; values are NaN (`correct` null) where relevance or logits are not finite. Of two kinds (version 2): areas, as
#: tokens go one after the other, and shares, where first no token is gone, then the shares of tokens in `percent`.
CURVES = versioned(
    "curves",
    2,
    [
        ("sample_id", STR, False),
        ("explanation", STR, False),
        ("embedding", STR, False),
        ("perturbation", STR, False),  # zero | mask | delete
        # Areas: morf, the most relevant token goes first | lerf, the same order reversed.
        # Shares: without_top, so many of the most relevant tokens are gone | top_only, all others are.
        ("order", STR, False),
        ("target_id", INT, False),  # the token or label whose logit is followed
        ("percent", pa.list_(pa.int32()), True),  # of the tokens that may go; null for areas
        ("removed", pa.list_(pa.int32()), False),  # how many tokens are gone; of areas, from 0 to all that may go
        ("logit", pa.list_(pa.float32()), False),
        ("probability", pa.list_(pa.float32()), True),  # null for a score
        # Target above foil or, without a foil, above every other token; with a gold label, that above every other.
        ("correct", pa.list_(BOOL), True),  # null for a score
        ("area", FLOAT, True),  # under the logit, over the share of tokens that are gone; null for shares
    ],
)

#: The areas of one sample's curves under every trial of a method: sets of options, in the order of the manifest, that a
#: choice is made among; partitioned by model, task, dtype and method. NaN where a trial has no finite curves.
TRIALS = versioned(
    "trials",
    1,
    [
        ("sample_id", STR, False),
        ("area_morf", pa.list_(FLOAT), False),
        ("area_lerf", pa.list_(FLOAT), False),
    ],
)

#: The explained number of one sample without the first neurons of a ranking, which are zero at all positions;
#: partitioned by model, task, dtype and what ranks: a method, or `random` or `activation`.
KNOCKOUTS = versioned(
    "knockouts",
    1,
    [
        ("sample_id", STR, False),
        ("explanation", STR, False),
        ("ranking", STR, False),
        ("removed", pa.list_(pa.int32()), False),  # how many neurons are gone, from 0
        ("explained", pa.list_(pa.float32()), False),  # NaN where logits are not finite
    ],
)
