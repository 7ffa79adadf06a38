"""`python -m tests.recompute ROOT` recomputes the numbers of a report from what its root stores."""
