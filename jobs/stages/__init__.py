"""The stages of a run, a file or folder each."""
