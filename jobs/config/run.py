"""The configuration of a run, as it is read from a file or raw keys, and checked."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from closelook.jobs.config.file import ConfigError, describe, read
from closelook.jobs.config.known import check, check_paths
from closelook.jobs.config.settings import Settings
from closelook.jobs.tasks import tasks as tasks_by_name


class RunConfig(Settings):
    """All settings of a run, with the constructor `load`."""

    def completed_by_files(self) -> RunConfig:
        """A copy in which the columns of users' own files decide the settings of tasks that the config leaves out."""
        tasks = dict(self.tasks)
        for name, settings in self.tasks.items():
            if name not in tasks_by_name():
                tasks[name] = settings.completed_by_file()
        return self.model_copy(update={"tasks": tasks})

    @classmethod
    def load(
        cls, source: str | Path | dict[str, Any], root: str | None = None, overrides: Sequence[str] = ()
    ) -> RunConfig:
        """The configuration `source` (a name in ``jobs/conf``, a path or raw keys) after ``key=value`` overrides.

        `root` replaces its root. Raises ConfigError, in one line, that names the config keys at fault.
        """
        raw = read(source, root, overrides)
        try:
            config = cls.model_validate(raw)
        except ValidationError as error:
            raise ConfigError(describe(error, raw, cls)) from None
        check_paths(config)
        config = config.completed_by_files()
        check(config)
        return config
