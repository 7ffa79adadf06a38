"""The configuration of a run: frozen records, read from YAML files and ``--set``."""

from jobs.config.blocks import (
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
from jobs.config.file import ConfigError
from jobs.config.methods import configured, defined_options, left_open
from jobs.config.models import MethodConfig, ModelConfig
from jobs.config.neurons import CorpusConfig
from jobs.config.run import RunConfig
from jobs.config.settings import FINER_KEYS

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
