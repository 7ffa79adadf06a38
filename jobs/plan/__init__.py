"""What a run is made of: models resolved, inputs read, cells keyed, units cut."""
