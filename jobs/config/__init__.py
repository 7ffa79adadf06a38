"""What a run is: frozen records, read from YAML files and ``--set``."""

from jobs.config.models import MethodConfig, ModelConfig
from jobs.config.perturb import PerturbConfig
from jobs.config.run import (
    BenchConfig,
    NodesConfig,
    PruneConfig,
    RayConfig,
    ReportConfig,
    RunConfig,
    TaskConfig,
)
from jobs.config.select import SelectConfig

__all__ = [
    "BenchConfig",
    "MethodConfig",
    "ModelConfig",
    "NodesConfig",
    "PerturbConfig",
    "PruneConfig",
    "RayConfig",
    "ReportConfig",
    "RunConfig",
    "SelectConfig",
    "TaskConfig",
]
