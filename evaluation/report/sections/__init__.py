"""Sections of the report: the tables and figures of one kind of result."""
