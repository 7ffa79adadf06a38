"""Files of texts, explained without a run: read, computed in parts, joined to tidy tables."""
