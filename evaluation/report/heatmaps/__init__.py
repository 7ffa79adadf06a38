"""Tokens and pictures coloured by relevance."""
