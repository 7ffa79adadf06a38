"""From relevance to numbers: metrics, their statistics, pruning curves, runtimes."""
