"""The command line and a small model, as tests of jobs have them."""

from tests.jobs.conftest import closelook, inline, model

__all__ = ["closelook", "inline", "model"]
