"""A package that extends closelook: each module is one addition, named by an entry point in pyproject.toml."""
