"""Opening a model: its files, its adapter, and the view of its kind."""
