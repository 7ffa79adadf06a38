"""Readers of a model while it runs: attention kernels, feed-forward layers, predictions."""
