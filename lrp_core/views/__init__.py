"""Loaded models as methods see them: from rows to states and logits, by kind of model."""
