"""Does what a page says, letter by letter: `python reader.py PAGE PRINTED MARK ...`, in the current folder.

Blocks that have one of the marks run in the page's order: commands in a shell, Python in one session, SQL in DuckDB.
The file PRINTED gets a JSON list of what each of them printed. Ends with the first block that fails.
"""

import io
import json
import re
import subprocess
import sys
from contextlib import redirect_stdout
from pathlib import Path

#: A block with the comment in the line before it, and what it prints where the page shows that right below it.
BLOCK = re.compile(
    r"(?:^<!-- (?P<mark>[^\n]+) -->\n)?^```(?P<language>\w+)(?: (?P<path>\S+))?\n(?P<code>.*?)^```$"
    r"(?:\n\n^```text\n(?P<shown>.*?)^```$)?",
    re.S | re.M,
)


def blocks(page: Path, *marks: str) -> list[re.Match[str]]:
    """The page's blocks that have one of the marks."""
    return [block for block in BLOCK.finditer(page.read_text(encoding="utf-8")) if block["mark"] in marks]


def run(language: str, code: str, session: dict) -> str:
    """What the block prints; Python changes the names of the `session`. Exits with the code of a shell that fails."""
    if language == "sql":
        import duckdb

        return str(duckdb.sql(code))
    if language == "python":
        printed = io.StringIO()
        with redirect_stdout(printed):
            exec(compile(code, "<page>", "exec"), session)
        return printed.getvalue()
    done = subprocess.run(["bash", "-euc", code], stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(f"{code}\n{done.stdout}\nexit code {done.returncode}")
    return done.stdout


if __name__ == "__main__":
    page, printed, *marks = sys.argv[1:]
    session = {"__name__": "__main__"}
    done = [run(block["language"], block["code"], session) for block in blocks(Path(page), *marks)]
    Path(printed).write_text(json.dumps(done))
