"""Roots of whole runs that tests change, and commands on copies of them. Runs do without Ray."""

import json
import re
from pathlib import Path
from typing import Any

from closelook.jobs.config import RunConfig
from closelook.jobs.stages import run as stages
from closelook.jobs.store import Store
from tests.jobs.inline import without_ray

SETTINGS = {
    "name": "small",
    "tasks": {"sva": {"source": "demo", "limit": 30}},
    "models": [{"name": "gpt2", "id": "demo/gpt2"}],
    "methods": ["gradient_x_input", "random"],
    "shard_rows": 8,
    "token_budget": 4096,
    "perturb": {"samples": 8, "explanations": ["target"], "embeddings": ["full"]},
    "heads": {"sva": 8},
    "prune": {"methods": ["gradient_x_input"], "random_runs": 1},
    "report": {"samples": 1, "resamples": 20},
}
PRODUCTS = ("benchmark", "relevance", "heads", "curves", "pruning", "scores", "scores_samples")
VIEWS, SAMPLES = "benchmark/views/*/*", "benchmark/generic/*"


def computed_in(folder: Path, settings: dict[str, Any] = SETTINGS) -> Path:
    """Make the root of a whole run in a new folder; returns it."""
    root = folder / "root"
    config = RunConfig.model_validate({**settings, "root": str(root)})
    store = Store(config.root)
    store.create()
    with without_ray():
        assert all(summary.complete for summary in stages.run(config, store))
    return root


class Root:
    """A copy of that root, and commands on it: (exit code, what was printed, errors included)."""

    def __init__(self, folder: Path, closelook, settings: dict[str, Any] = SETTINGS) -> None:
        self.folder, self._closelook = folder, closelook
        self._config = folder.parent / "small.yaml"
        self._config.write_text(json.dumps({**settings, "root": str(folder)}))

    def command(self, name: str, *more: str) -> tuple[int, str]:
        code, out, err = self._closelook(name, "--config", str(self._config), *more)
        return code, out + err

    def files(self, pattern: str) -> list[Path]:
        return sorted(self.folder.glob(f"{pattern}/*.parquet"))

    def contents(self) -> dict[str, bytes]:
        """All that was computed."""
        paths = (path for product in PRODUCTS for path in (self.folder / product).rglob("*.parquet"))
        return {str(path.relative_to(self.folder)): path.read_bytes() for path in paths}

    def manifests(self) -> list[Path]:
        return sorted((self.folder / "manifest").glob("*.json"))

    def assert_made_again(self, before: dict[str, bytes], **computed: int) -> None:
        """A run computes so many artifacts of these stages and nothing else; all is as it was."""
        code, printed = self.command("run")
        assert code == 0, printed
        counts = {stage: int(count) for stage, count in re.findall(r"^(\w+): (\d+) computed", printed, re.MULTILINE)}
        assert {stage: count for stage, count in counts.items() if count and stage != "report"} == computed
        assert self.contents() == before
        assert self.command("status")[0] == 0
        assert self.command("audit")[0] == 0
