"""Whether the hub of models answers."""

from __future__ import annotations

from functools import cache

PATIENCE_S = 5.0  # how long each step of asking the hub may take


@cache
def hub_reachable() -> bool:
    """True if the hub answers, through a proxy if one is set.

    Each process asks once, for all models: the hub's client would try for half a minute with each.
    """
    from huggingface_hub import constants
    from huggingface_hub.utils import get_session

    try:
        get_session().head(constants.ENDPOINT, timeout=PATIENCE_S, follow_redirects=False)
    except Exception:  # whatever stands in the way: no route, a proxy that refuses, a client told to stay offline
        return False
    return True
