"""`python -m benchmarks NAME`: `closelook bench NAME` where neither typer nor pydantic is installed."""

import sys
from importlib import import_module

from benchmarks import BENCHES

if len(sys.argv) < 2 or sys.argv[1] not in BENCHES:
    sys.exit(f"usage: python -m benchmarks NAME: {', '.join(BENCHES)}")
import_module(f"benchmarks.{sys.argv[1]}").main(sys.argv[2:])
