"""Loaded models as methods use them: from batches to hidden states and logits, a module for each kind of model."""
