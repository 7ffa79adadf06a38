"""Explorers: records too many for one page, with a list and filters."""
