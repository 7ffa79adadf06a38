"""A metric: among how many tokens the evidence was looked for."""

from closelook.evaluation.scoring.metrics import Metric

CHOSEN = Metric("chosen", "Chosen", lambda block: block.count, unit="tokens")
