"""Answers after ablated prompts, and the sources of answers by every method."""
