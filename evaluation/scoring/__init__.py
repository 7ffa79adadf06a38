"""From relevance to numbers: metrics against evidence, faithfulness, controls, pruning, and their statistics."""
