"""Every method by name, as `closelook.jobs.methods.METHODS`."""

from closelook.methods import METHODS, applicable, method, refuse_planted

__all__ = ["METHODS", "applicable", "method", "refuse_planted"]
