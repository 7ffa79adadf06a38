"""The benchmark, its metrics and its report."""
