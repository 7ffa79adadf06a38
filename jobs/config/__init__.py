"""The configuration of a run: frozen records, read from YAML files and ``--set``."""

from closelook.jobs.config.blocks import (
    AblationsConfig,
    BenchConfig,
    ControlsConfig,
    NodesConfig,
    PerturbConfig,
    PruneConfig,
    RayConfig,
    ReportConfig,
    SelectConfig,
    TaskConfig,
)
from closelook.jobs.config.file import ConfigError
from closelook.jobs.config.methods import configured, defined_options, left_open
from closelook.jobs.config.models import MethodConfig, ModelConfig
from closelook.jobs.config.neurons import CorpusConfig
from closelook.jobs.config.run import RunConfig
from closelook.jobs.config.settings import FINER_KEYS

__all__ = [
    "FINER_KEYS",
    "AblationsConfig",
    "BenchConfig",
    "ConfigError",
    "ControlsConfig",
    "CorpusConfig",
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
    "configured",
    "defined_options",
    "left_open",
]
