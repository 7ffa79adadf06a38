"""What runs in the workers of a model's pool: units of rows become relevance, head relevance or pruning curves."""
