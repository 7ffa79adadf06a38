"""Neurons of feed-forward layers: their activity, their logit lens, the contexts where they are most active."""
