"""The plan of a run: models resolved, inputs read, nodes keyed, units cut."""
