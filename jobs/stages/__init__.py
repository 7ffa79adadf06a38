"""The stages of a run, a file or folder each; what runs in a stage's workers lies beside it."""
