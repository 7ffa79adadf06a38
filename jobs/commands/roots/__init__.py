"""Commands about roots: the cost of a run, its state, its removable files, and how it differs from another."""
