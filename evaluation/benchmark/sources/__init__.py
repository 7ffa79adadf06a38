"""Sources of samples: published data sets, the demo language, users' own files.

A new one is one file, and stands among the `sources` of the task that it feeds, which brings it into the table.
"""
