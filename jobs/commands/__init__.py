"""Commands that look at a run and compute nothing: status, cost, garbage, audit, and one explained sentence."""
