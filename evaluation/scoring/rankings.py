"""Rankings of neurons that no method makes. No torch here."""

from evaluation.scoring.head_orders import RANDOM

ACTIVATION = "activation"  # the largest over positions

__all__ = ["ACTIVATION", "RANDOM"]
