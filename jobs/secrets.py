"""Keeps keys, tokens and passwords of the environment out of stored and printed texts."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

_SECRET = re.compile(r"KEY|SECRET|TOKEN|PASSWORD|PASSWD|CREDENTIAL", re.IGNORECASE)
_SHORTEST_SECRET = 8  # a shorter value occurs by chance


def without_secrets(text: str, environment: Mapping[str, str] = os.environ) -> str:
    """`text` with the values of environment variables that hold keys, tokens or passwords replaced by their names."""
    for name, value in environment.items():
        if len(value) >= _SHORTEST_SECRET and _SECRET.search(name):
            text = text.replace(value, f"[{name}]")
    return text
