"""What `import closelook` gives users of Python: explanations that show themselves, and what a run left in its root."""
