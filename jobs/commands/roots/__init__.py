"""Commands about a root: the cost of a run, its state, and its removable files."""
