"""Explained texts as rows of words and tokens, and aggregates of these."""
