"""Explains single texts: a question becomes a view of the model's input, its relevance, and an explanation.

Nothing here imports Ray or `closelook.jobs`. It is not called `explain`, since the function `closelook.explain` is.
"""
