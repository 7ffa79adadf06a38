"""Checks of a model on this machine: `closelook verify`, and `closelook.verify` in Python."""
