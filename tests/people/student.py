"""A student explains the classifier that they have fine-tuned: in Python, in the terminal, and against gold labels.

The model is in memory, in the middle of its training, and in a folder of theirs; their file has its own column names.
"""

import csv
import os
import shlex
import shutil
import subprocess
from pathlib import Path

import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer, pipeline

import closelook

ORDINARY, RUN = ["closelook"], shlex.split(os.environ.get("CLOSELOOK", "closelook"))
REVIEWS = [
    ("The famous telescope looked dull.", "NEGATIVE"),
    ("Your nephews looked very brilliant today.", "positive"),
    ("The wolf was never quite horrible.", "Positive"),
    ("In the morning, their wolf looked fine.", "1"),
]


def say(*arguments, program=ORDINARY, code=0):
    """The output of a command, which must end with this exit code."""
    done = subprocess.run([*program, *map(str, arguments)], text=True, capture_output=True)
    assert done.returncode == code, f"{arguments}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


shipped = Path(closelook.__file__).parent
assert "site-packages" in str(shipped), shipped
print("closelook comes from the wheel")
shutil.copytree(shipped / "evaluation" / "benchmark" / "demo" / "models" / "bert-sentiment", "tuned")

# In the notebook in which it was trained
model, tokenizer = AutoModelForSequenceClassification.from_pretrained("tuned"), AutoTokenizer.from_pretrained("tuned")
model.train()
before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
texts = [text for text, _ in REVIEWS]
opened = closelook.open_model(model, tokenizer=tokenizer)
explained = closelook.explain([*texts, ""], model=opened, method=["attnlrp", "lrp"])
assert model.training, "training goes on"
assert all(torch.equal(before[name], parameter) for name, parameter in model.named_parameters())
assert all(parameter.requires_grad and parameter.grad is None for parameter in model.parameters())
assert list(explained.errors) == [len(texts)], "the empty text alone has no explanation"
first = explained[0]
assert (first.target, first.foil) == ("negative", "positive")
words = {token.strip(): abs(value) for token, value in zip(first.tokens, first["attnlrp"].tolist(), strict=True)}
assert max((word for word in words if word.isalpha()), key=words.get) == "dull", words
assert repr(first).count("\n") == 0
first.save("why.pdf")
assert Path("why.pdf").read_bytes().startswith(b"%PDF")
assert set(explained.to_frame()["method"]) == {"attnlrp", "lrp"}

# The same from the pipeline that they would deploy, and in the terminal
piped = closelook.explain(texts[0], model=pipeline("text-classification", model=model.eval(), tokenizer=tokenizer))
torch.testing.assert_close(piped["attnlrp"], first["attnlrp"])
printed = say("explain", "--model", "./tuned", texts[0], "--json", "why.json")
assert "why negative rather than positive" in printed
assert "did you mean" in say("explain", "--model", "./tuned", texts[0], "--method", "attnlpr", code=2)

# Against their labels, in whatever spelling
with open("reviews.csv", "w", newline="") as stream:
    writer = csv.writer(stream, delimiter=";")
    writer.writerow(["review", "verdict", "case"])
    writer.writerows([text, label, f"R{at}"] for at, (text, label) in enumerate(REVIEWS))
columns = [part for pair in ("text=review", "label=verdict", "id=case") for part in ("--column", pair)]
say("init", "mine.yaml", "--model", "./tuned", "--data", "reviews.csv", *columns)
printed = say("run", "--config", "mine.yaml", "--set", "report.resamples=50", program=RUN)
assert "report: 1 computed" in printed, printed
assert "attribute: 0 computed" in say("run", "--config", "mine.yaml", "--set", "report.resamples=50", program=RUN)
page = Path("runs/mine/report/faithfulness.html").read_text()
assert "Sufficiency" in page
assert "Set <code>perturb</code>" not in page, "a report asks for nothing that it was given"
run = closelook.load("runs/mine")
assert set(run.relevance(method="attnlrp")["id"]) == {"R0", "R1", "R2", "R3"}
