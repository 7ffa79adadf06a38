"""The command line. Commands are functions in jobs/commands; heavy imports wait until a command needs them."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import Annotated

import typer

from closelook.jobs.commands.options import app
from closelook.lrp_core.records.types import UserError
from closelook.terminal import complain, encodable, say

# Set before torch is imported: its threads then sleep while they wait for each other. Where other processes use the
# cores too, threads that spin instead make small models many times slower.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

#: The modules that add commands, in the order of `closelook --help`.
_COMMANDS = (
    "explain",
    "files",
    "roots.commands",
    "submit",
    "listings.commands",
)
for _module in _COMMANDS:
    import_module(f"closelook.jobs.commands.{_module}")


def _version(is_asked: bool) -> None:
    """The callback of `--version`: print all versions, closelook's first, and exit."""
    if not is_asked:
        return
    from closelook.versions import versions

    known = versions()
    for name in sorted(known, key=lambda name: name != "closelook"):
        say(f"{name} {known[name]}")
    raise typer.Exit


@app.callback()
def _every(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print versions, closelook's first.")
    ] = False,
) -> None:
    """Options of closelook itself."""


def main() -> None:
    """Run the command line.

    A foreseen error is printed in one line. The exit code is then 2 for bad input, and 1 for a run that cannot complete
    now but may later.
    """
    try:
        with encodable(sys.stdout):
            app()
    except UserError as error:
        _fail(error, error.exit_code)
    except ModuleNotFoundError as error:
        from closelook.versions import extra_of

        module = (error.name or "").partition(".")[0]
        extra = extra_of(module)
        if extra is None:
            raise
        _fail(UserError(f"this command needs {module}: pip install 'closelook[{extra}]'"), 2)
    except Exception as error:
        code = _exit_code(error)
        if code is None:
            raise
        _fail(error, code)


def _exit_code(error: Exception) -> int | None:
    """The exit code of a foreseen error; None for any other error, whose traceback is shown."""
    from closelook.evaluation.schema import SchemaMismatch
    from closelook.jobs.cluster.pools import ClusterUnreachable
    from closelook.jobs.plan.checkpoints import ModelUnavailable
    from closelook.jobs.store.lock import Locked

    if isinstance(error, SchemaMismatch):
        return 2
    foreseen = Locked | ModelUnavailable | ClusterUnreachable | OSError  # OSError: the store cannot be read or written
    return 1 if isinstance(error, foreseen) else None


def _fail(error: Exception, code: int) -> None:
    """Print the error in one line and exit with `code`."""
    complain(f"error: {' '.join(str(error).split())}", "red")
    sys.exit(code)


if __name__ == "__main__":
    main()
