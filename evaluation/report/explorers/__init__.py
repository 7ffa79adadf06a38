"""Explorers: pages with a list and filters over more records than one page holds."""
