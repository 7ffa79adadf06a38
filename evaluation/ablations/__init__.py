"""Ablations of the sources of an answer: which are run, the methods that use them, and how they judge methods."""
