"""Faithfulness: a model's scores while tokens are removed, and statistics of these."""
