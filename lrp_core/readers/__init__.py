"""Modules that read a model while it runs: attention, feed-forward layers, predictions."""
