"""An engineer explains a file of decisions without a configuration, loses the process, and answers for single cases.

Ten thousand decisions in life, some hundred here: with repeated texts, a bad row, and the file's own column names.
"""

import csv
import itertools
import os
import shlex
import signal
import subprocess
import time
from pathlib import Path

import pandas as pd

import closelook

assert "site-packages" in closelook.__file__
print("closelook comes from the wheel")
RUN = shlex.split(os.environ.get("CLOSELOOK", "closelook"))
ADJECTIVES = ("famous", "lucky", "golden", "horrible")
NOUNS = ("telescope", "ship", "wolf", "uncle", "waitress", "box", "map", "door")
WORDS = ("dull", "fine", "boring", "brilliant")
HOW = ("very", "never", "quite", "so", "hardly")
TEXTS = [f"The {a} {n} looked {h} {w}." for a, n, w, h in itertools.product(ADJECTIVES, NOUNS, WORDS, HOW)]
assert len(TEXTS) > 600, "more than one part"


def say(*arguments, code=0):
    """The output of a command, which must end with this exit code."""
    done = subprocess.run([*RUN, *map(str, arguments)], text=True, capture_output=True)
    assert done.returncode == code, f"{arguments}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


with open("decisions.csv", "w", newline="") as stream:
    writer = csv.writer(stream, delimiter=";")
    writer.writerow(["case", "letter", "clerk"])
    writer.writerows([f"C-{at}", text, "x"] for at, text in enumerate(TEXTS))
    writer.writerow(["C-again", TEXTS[0], "y"])
    writer.writerow(["C-empty", "", "z"])

ASKED = ("decisions.csv", "why.parquet", "--model", "demo/bert-sentiment", "--method", "attnlrp,lrp")
assert "name its column with --column text=NAME" in say("explain-file", *ASKED, code=2)
COMMAND = ("explain-file", *ASKED, "--column", "text=letter", "--column", "id=case")

process = subprocess.Popen([*RUN, *COMMAND], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
while process.poll() is None and not list(Path("why.run").glob("relevance/**/*.parquet")):
    time.sleep(0.01)
process.send_signal(signal.SIGKILL)
process.wait()
printed = say(*COMMAND)
assert f"{len(TEXTS):,} texts explained\n" in printed
assert "empty text" in printed
written = Path("why.parquet").read_bytes()
say(*COMMAND)
assert Path("why.parquet").read_bytes() == written

words = pd.read_parquet("why.parquet")
assert set(words["id"]) == {f"C-{at}" for at in range(len(TEXTS))} | {"C-again"}
for name in ("id", "start", "end", "word", "relevance", "method", "decision", "probability", "explained"):
    assert name in words, name
inside = words[words["start"].notna()]
for row in inside.sample(200, random_state=0).itertuples():
    text = TEXTS[0] if row.id == "C-again" else TEXTS[int(row.id[2:])]
    assert text[int(row.start) : int(row.end)] == row.word
same = [words[words["id"] == name]["relevance"].tolist() for name in ("C-0", "C-again")]
assert same[0] == same[1]
single = closelook.explain(TEXTS[7], model="demo/bert-sentiment", method="attnlrp").to_frame()
tokens = pd.read_parquet("why.tokens.parquet").query("id == 'C-7' and method == 'attnlrp'")
assert abs(single["relevance"].to_numpy() - tokens["relevance"].to_numpy()).max() < 1e-4

say("decisions", "why.parquet", "C-7", "C-7.html")
sheet = Path("C-7.html").read_text()
assert "The model decided: " in sheet
assert "with a probability of " in sheet
assert "has no case 'C-x'" in say("decisions", "why.parquet", "C-x", "C-x.html", code=2)
assert len(sheet) < 1_000_000
