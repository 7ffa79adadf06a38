"""Public functions of `import closelook`: explanations that show themselves, and what a run left in its root."""
