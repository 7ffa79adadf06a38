"""The counter of a run's files: functions count, in every process and thread, until a worker's first forward."""

import textwrap

import pytest

from tests.journey import journey

FILES = {
    "__init__": "",
    "__main__": """
        import subprocess, sys
        from parcel import imported
        from parcel.records import RECORD

        def main():
            RECORD()
            return subprocess.run([sys.executable, "-c", "from parcel.worker import start; start()"])

        main()
        """,
    "imported": """
        def now():
            return 1

        NUMBERS = [now() for _ in range(2)]
        """,
    "records": "RECORD = lambda: 0",
    "worker": '''
        import _thread, time, torch
        from parcel import after, thread

        def start():
            """Starts a thread that the module `threading` does not know of."""
            _thread.start_new_thread(thread.work, ())
            while not after.DONE:
                time.sleep(0.01)
        ''',
    "thread": """
        import torch
        from parcel import after, deep

        def work():
            deep.prepare()
            torch.nn.Identity()(torch.zeros(1))
            after.end()
        """,
    "deep": """
        async def later(): ...

        def prepare():
            later().close()
        """,
    "after": """
        import time
        DONE = []

        def end():
            DONE.append(1)
        """,
}


@pytest.fixture
def root(tmp_path):
    """A folder with the package `parcel`."""
    (tmp_path / "parcel").mkdir()
    for name, text in FILES.items():
        (tmp_path / "parcel" / f"{name}.py").write_text(textwrap.dedent(text))
    return tmp_path


def test_files_are_counted_whose_functions_run_before_a_workers_forward(root, tmp_path_factory):
    files = journey(("-m", "parcel"), root, ("parcel",), tmp_path_factory.mktemp("records"))
    sides = {"__main__": "driver", "deep": "worker", "records": "driver", "thread": "worker", "worker": "worker"}
    assert files == {f"parcel/{name}.py": {side} for name, side in sides.items()}


def test_a_command_without_workers_says_so(root, tmp_path_factory):
    (root / "parcel" / "worker.py").write_text("def start():\n    print('nothing to do')\n")
    with pytest.raises(RuntimeError, match="nothing to do"):
        journey(("-m", "parcel"), root, ("parcel",), tmp_path_factory.mktemp("records"))
