"""The configuration of a run: frozen records, read from YAML files and ``--set``."""

from jobs.config.ablations import AblationsConfig
from jobs.config.controls import ControlsConfig
from jobs.config.models import MethodConfig, ModelConfig
from jobs.config.perturb import PerturbConfig, SelectConfig
from jobs.config.run import RunConfig
from jobs.config.settings import BenchConfig, NodesConfig, PruneConfig, RayConfig, ReportConfig, TaskConfig

__all__ = [
    "AblationsConfig",
    "BenchConfig",
    "ControlsConfig",
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
