"""Training of the models that ship with the demo: `python -m tools.demo_models.train`."""
