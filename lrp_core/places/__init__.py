"""Relevance inside a model: of heads, neurons, projections and layer boundaries, read while the gradient passes."""
