"""The example package: installed, its method, metric, task and family are in the tables; without it, errors name it.

Runs do without Ray, but for one on two nodes, whose workers have the package from the cluster alone.
"""

import json
import os
import re
import shutil
import subprocess
import sys

import pyarrow.parquet as pq
import pytest
import torch
from transformers import AutoModelForCausalLM

from closelook.evaluation.benchmark.demo import model_dir
from closelook.evaluation.schema import GENERIC, SCORES, VIEW
from closelook.jobs.cluster.pools import LOCAL_SETTINGS, SETTINGS
from closelook.jobs.config import RunConfig
from closelook.jobs.config.file import ConfigError
from closelook.jobs.store import Store
from closelook.jobs.store.artifacts import samples_of
from tests.jobs.forked import Forked
from tests.jobs.small import REPOSITORY, ended
from tests.patience import PATIENCE_S
from tests.shown import numbers_of

PACKAGE = REPOSITORY / "tests" / "example_package"
PAIRS = "keys to the cabinet are is\nbridge near the houses is are\n"
#: A run whose driver has the package in SITE. Workers learn of a driver's path when it joins, which is before.
DRIVER = """
import sys
import ray
address, wheel, site, *arguments = sys.argv[1:]
ray.init(address, runtime_env={"py_modules": [wheel]}, log_to_driver=False)
sys.path.insert(0, site)
from closelook.jobs.__main__ import main

@ray.remote(num_cpus=1)
def home():
    import closelook_example
    return closelook_example.__file__

for node in ray.nodes():
    if node["Resources"].get("CPU"):
        there = {"ray.io/node-id": node["NodeID"]}
        print("home", node["NodeID"], ray.get(home.options(label_selector=there).remote()))
for stage in ("prepare", "attribute"):
    sys.argv[1:] = [stage, *arguments]
    try:
        main()
    except SystemExit as end:
        if end.code:
            raise
"""
#: Which lines need the package, and what is said of them without it.
NEEDED = [
    ("tasks.pairs.source", "unknown source 'pairs'"),
    ("models.renamed.id", "no family describes 'gpt2-renamed' models"),
    ("methods", "unknown method 'open_loop'"),
    ("methods", "unknown method 'embedding_power'"),
]


@pytest.fixture
def config(tmp_path):
    return using_all(tmp_path)


def using_all(tmp_path):
    """The path of a config that uses all that the package brings, on the embedded GPT-2 under its new name."""
    folder = shutil.copytree(model_dir("gpt2"), tmp_path / "renamed")
    described = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(described | {"model_type": "gpt2-renamed", "architectures": None}))
    (tmp_path / "pairs.txt").write_text(PAIRS)
    path = tmp_path / "run.yaml"
    path.write_text(
        f"""
        name: example
        root: {tmp_path}/root
        tasks: {{pairs: {{source: pairs, path: {tmp_path}/pairs.txt}}}}
        models: [{{name: renamed, id: {folder}}}]
        methods: [lrp, open_loop, random, {{name: squared, method: embedding_power, power: 2}}]
        report: {{samples: 1, resamples: 50}}
        """
    )
    return str(path)


def pip(*arguments):
    offline = ("--quiet", "--no-index", "--no-deps", "--disable-pip-version-check")
    command, *rest = map(str, arguments)
    subprocess.run([sys.executable, "-m", "pip", command, *offline, *rest], check=True)


def built(folder):
    """The package's wheel."""
    source = shutil.copytree(PACKAGE, folder / "source")  # building leaves traces
    pip("wheel", "--no-build-isolation", "--wheel-dir", folder, source)
    (wheel,) = folder.glob("*.whl")
    return wheel


def installed(folder):
    """The package as pip installs it, in a folder of its own, without a network."""
    pip("install", "--target", folder / "site", built(folder))
    return folder / "site"


def entropies_of(store):
    """The entropy of the stock model's prediction, by sample."""
    model = AutoModelForCausalLM.from_pretrained(model_dir("gpt2"))
    entropies = {}
    for path in store.files("benchmark/views", recursive=True):
        if "/rejects/" not in path:
            for row in store.read(path, VIEW).to_pylist():
                logits = model(input_ids=torch.tensor([row["input_ids"]])).logits[0, row["position"]]
                entropies[row["sample_id"]] = torch.distributions.Categorical(logits=logits).entropy().item()
    return entropies


def test_what_an_installed_package_brings_is_computed_and_in_the_tables_until_it_is_removed(tmp_path, config):
    site = installed(tmp_path)

    def run(*arguments):
        return ended(Forked(*arguments, PYTHONPATH=str(site)))

    code, out, err = run("run", "--config", config)
    assert code == 0, out + err
    store = Store(str(tmp_path / "root"))
    assert store.read(samples_of("pairs").folder, GENERIC)["source"].to_pylist() == ["pairs"] * 2
    rows = {row["value"] for row in store.read("scores", SCORES).to_pylist() if row["metric"] == "chosen"}
    assert min(rows) >= 4
    for label in ("Embedding norm (power=2.0)", "AttnLRP, constant softmax"):
        chosen = {"task": "pairs", "model": "renamed", "method": label, "group": "Chosen", "label": "tokens"}
        assert numbers_of(store, "table1_random", **chosen)
    shards = [pq.read_table(path) for path in sorted((tmp_path / "root" / "entropy").rglob("*.parquet"))]
    entropies = {row["sample_id"]: row["entropy"] for shard in shards for row in shard.to_pylist()}
    assert entropies == pytest.approx(entropies_of(store), rel=1e-5)
    assert numbers_of(store, "entropy", task="pairs", model="renamed", label="entropy")
    assert re.search(r"renamed +pairs +float32 +entropy +1\b", run("status", "--config", config)[1])
    assert re.search(r"renamed +pairs +float32 +entropy +1 +0 +0 +0\.0 s", run("plan", "--config", config)[1])
    code, out, err = run("export", "--config", config, "--to", str(tmp_path / "out"))
    assert code == 0, err
    card = (tmp_path / "out" / "README.md").read_text()
    assert "Samples of words in pairs (pairs), with the words" in card
    assert "Pairs, <https://example.org>, CC0" in card
    for listing, line in (("methods", "embedding_power"), ("tasks", "pairs"), ("models", "gpt2-renamed")):
        assert re.search(rf"^ *{line}\b", run(listing)[1], re.MULTILINE)

    shutil.rmtree(site)
    code, out, err = run("status", "--config", config)
    assert (code, out) == (2, "")
    assert err.startswith("error: config key 'tasks.pairs.source': ")


def test_without_the_package_the_error_names_every_line_that_needs_it(config):
    with pytest.raises(ConfigError) as caught:
        RunConfig.load(config)
    named = re.findall(r"config key '(\S+)': ([^;(]*[^;(\s])", str(caught.value))
    assert named == NEEDED


@pytest.fixture
def two_nodes(one_start, monkeypatch):
    """The address of a head without CPUs and two nodes with one each, in the zones `a` and `b`."""
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("PATH", f"{os.path.dirname(sys.executable)}{os.pathsep}{os.environ['PATH']}")  # their pip
    for name, value in (SETTINGS | LOCAL_SETTINGS).items():
        monkeypatch.setenv(name, value)
    with one_start():
        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
        for zone in "ab":
            cluster.add_node(num_cpus=1, labels={"zone": zone})
        cluster.wait_for_nodes()
    yield cluster.address
    cluster.shutdown()


@pytest.mark.nightly
@pytest.mark.ray
def test_workers_on_two_nodes_have_the_package_from_the_wheel_that_the_job_ships(tmp_path, config, two_nodes):
    words = ["keys", "bridge", "cabinet", "houses", "doors", "rooms"]
    (tmp_path / "pairs.txt").write_text("".join(f"{word} near the {word} are is\n" for word in words))
    model = re.search(r"name: renamed, (id: \S+)}", (tmp_path / "run.yaml").read_text())[1]
    of_zones = [f"{{name: {zone}, {model}, labels: {{zone: {zone}}}}}" for zone in "ab"]
    driver = tmp_path / "driver" / "driver.py"  # in a folder of its own, which workers learn of, too
    driver.parent.mkdir()
    driver.write_text(DRIVER)
    site = installed(tmp_path)
    (wheel,) = tmp_path.glob("*.whl")
    settings = ("shard_rows=2", "methods=[open_loop]", f"models=[{', '.join(of_zones)}]")
    arguments = ("--config", config, *(word for setting in settings for word in ("--set", setting)))
    process = subprocess.run(
        [sys.executable, driver, two_nodes, wheel, site, *arguments], capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert process.returncode == 0, process.stdout + process.stderr
    homes = dict(re.findall(r"^home (\w+) (\S+)$", process.stdout, re.MULTILINE))
    assert len(homes) == 2
    assert all("py_modules_files" in home for home in homes.values()), homes
    store = Store(str(tmp_path / "root"))
    logs = (tmp_path / "root" / "logs").rglob("*.jsonl")
    records = [json.loads(line) for log in logs for line in log.read_text().splitlines()]
    nodes = {line["worker"].partition("/")[0] for line in records if line.get("unit", "").startswith("entropy.")}
    assert nodes == homes.keys(), "units of the product were computed on both nodes"
    for zone in "ab":
        shards = [pq.read_table(path) for path in (tmp_path / "root" / "entropy" / f"model={zone}").rglob("*.parquet")]
        entropies = {row["sample_id"]: row["entropy"] for shard in shards for row in shard.to_pylist()}
        assert len(entropies) == len(words)
        assert entropies == pytest.approx(entropies_of(store), rel=1e-5)
