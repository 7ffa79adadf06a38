"""Capabilities of models that methods may need, as records that a family has or lacks. No torch here."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Capability:
    """A property of models that methods may need. `says` follows "needs" in an error message."""

    name: str
    says: str
    stands_in: bool = True  # whether the error for a model that lacks it may propose the method's `instead`


POSITIONS = Capability("positions", "position and segment embeddings that are described")
GRADIENTS = Capability("gradients", "embeddings that take gradients")
ATTENTION = Capability("attention", "attention weights that can be read", stands_in=False)
NEURONS = Capability("neurons", "feed-forward layers that are described", stands_in=False)
STATES = Capability("states", "hidden states and a head that applies to any token", stands_in=False)
ONE_STACK = Capability("stack", "one stack of blocks, rather than an encoder and a decoder", stands_in=False)
PRE_NORM = Capability("pre_norm", "blocks that normalise their inputs (pre-norm)")
POST_NORM = Capability("post_norm", "blocks that normalise after the sum (post-norm)")
#: Post-norm models are always given this capability: methods that need it need pre-norm blocks anyway.
PLAIN_SUMS = Capability(
    "sums",
    "logits that are sums of what blocks add (no norm behind attention or MLP, no transform or cap before the logits)",
    stands_in=False,
)
#: Pre-norm models are always given this capability: methods that need it need post-norm blocks anyway.
PLAIN_MLPS = Capability("mlps", "feed-forward layers without gates", stands_in=False)
MASKING = Capability("masking", "a mask token where the model predicts, which can stand in a token's place")
DELETION = Capability("deletion", "text from which tokens can be deleted")
UNCENTRED = Capability("uncentred", "norms that keep the mean (RMSNorm): after others a gradient sums to 0; or pixels")
