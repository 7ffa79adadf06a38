"""Neurons of feed-forward layers: their activations, their logit lens, and their max-activating examples (contexts)."""
