"""Functions and results of `import closelook` for notebooks: `explain`, `compare` and what they return."""
