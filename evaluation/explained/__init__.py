"""Explained texts as tables of words and tokens, and what is computed from these tables."""
