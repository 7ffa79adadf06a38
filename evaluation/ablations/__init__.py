"""Ablations of the sources of an answer: their choice, methods that are made of them, and the judgement of methods."""
