"""Files shipped for clusters are valid by Ray's own schema or by the schema of the custom resources."""

import copy
import json
from pathlib import Path

import pytest
import yaml
from jsonschema import Draft202012Validator

from closelook.jobs.config import RunConfig
from closelook.jobs.config.file import CONF_DIR

REPOSITORY = Path(__file__).parents[3]
DEPLOY = REPOSITORY / "jobs" / "deploy"


def load(name: str) -> dict:
    return yaml.safe_load((DEPLOY / name).read_text())


MANIFESTS = sorted({path.name for path in DEPLOY.glob("*.yaml")} - {"account.yaml"})


def submitter() -> dict:
    """The container of the CronJob."""
    (container,) = load("cronjob.yaml")["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"]
    return container


def nightly() -> RunConfig:
    """The configuration that the CronJob runs."""
    options = dict(word.removeprefix("--").split("=", 1) for word in submitter()["args"] if word.startswith("--"))
    return RunConfig.load(options["config"], options["root"], [options["set"]])


def test_the_nodes_that_the_job_counts_on_are_those_that_its_groups_can_start():
    config = nightly()
    groups = [group for group in load("raycluster.yaml")["spec"]["workerGroupSpecs"] if group["groupName"] != "cpu"]
    assert [(nodes.labels, nodes.count) for nodes in config.ray.nodes] == [
        (group["labels"], group["maxReplicas"]) for group in groups
    ]


def test_rays_autoscaler_reads_every_group_as_nodes_with_a_gpu_and_its_label():
    from ray.autoscaler._private.kuberay.autoscaling_config import _derive_autoscaling_config_from_ray_cr

    cluster = load("raycluster.yaml")["spec"]
    result = _derive_autoscaling_config_from_ray_cr(
        {"metadata": {"name": "closelook", "namespace": "default"}, "spec": cluster}
    )
    kinds = result["available_node_types"]
    assert [kinds["headgroup"]["resources"][kind] for kind in ("CPU", "GPU")] == [0, 0], "the head takes no work"
    assert kinds["cpu"]["resources"] | {"GPU": 0} == kinds["cpu"]["resources"], (
        "tasks without a GPU start no node with one"
    )
    for memory in (24, 80):
        kind = kinds[f"gpu{memory}"]
        assert (kind["resources"]["GPU"], kind["min_workers"], kind["max_workers"]) == (1, 0, 8)
        assert kind["labels"] == {"gpu-memory": f"{memory}gb"}


def test_the_cluster_file_passes_rays_own_validation():
    from ray.autoscaler._private.util import prepare_config, validate_config

    cluster = yaml.safe_load((REPOSITORY / "cluster.yaml").read_text())
    validate_config(prepare_config(copy.deepcopy(cluster)))
    misspelled = {**cluster, "max_worker": 3}
    with pytest.raises(Exception, match="max_worker"):
        validate_config(prepare_config(misspelled))


def test_every_label_that_a_model_asks_for_is_on_some_node():
    cluster = yaml.safe_load((REPOSITORY / "cluster.yaml").read_text())
    offered = [kind.get("labels", {}) for kind in cluster["available_node_types"].values()]
    for path in CONF_DIR.glob("paper.yaml"):
        for model in RunConfig.load(path).models:
            assert any(model.labels.items() <= labels.items() for labels in offered), model.name


def test_no_manifest_holds_a_secret():
    for path in [*map(DEPLOY.joinpath, MANIFESTS), REPOSITORY / "cluster.yaml"]:
        for line in path.read_text().splitlines():
            assert not ("SECRET" in line and not line.lstrip().startswith("#")), f"{path.name}: {line}"


def crd(folder: Path, kind: str) -> dict:
    """KubeRay's own schema of a kind, in which a field that it does not know is an error."""
    return closed(json.loads((folder / f"{kind.lower()}s.v1.json").read_text()))


def closed(schema: dict) -> dict:
    """The schema, and those within it, without fields that are not named."""
    if isinstance(schema, list):
        return [closed(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    known = {name: closed(value) for name, value in schema.items()}
    preserving = known.get("x-kubernetes-preserve-unknown-fields") or "additionalProperties" in known
    if isinstance(known.get("properties"), dict) and known.get("type") == "object" and not preserving:
        known["additionalProperties"] = False
    return known


def test_kuberays_own_schema_takes_the_manifest(shared):
    manifest = load("raycluster.yaml")
    schema = crd(shared / "kuberay", manifest["kind"])
    schema["properties"]["metadata"] = {"type": "object"}
    assert [error.message for error in Draft202012Validator(schema).iter_errors(manifest)] == []
    manifest["spec"]["headGroupSpek"] = {}
    assert [error.message for error in Draft202012Validator(schema).iter_errors(manifest)] != []


def test_the_cronjob_submits_to_the_cluster_that_there_is():
    (address,) = (variable["value"] for variable in submitter()["env"] if variable["name"] == "RAY_ADDRESS")
    assert address == f"http://{load('raycluster.yaml')['metadata']['name']}-head-svc:8265"


def pods() -> list[dict]:
    """Of the cluster: the head's, then a worker's of each group."""
    spec = load("raycluster.yaml")["spec"]
    return [group["template"]["spec"] for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"])]


def test_what_pods_mount_and_act_as_is_there_and_may_be_written_to():
    claims = {volume["persistentVolumeClaim"]["claimName"] for pod in pods() for volume in pod["volumes"]}
    accounts = {pod["serviceAccountName"] for pod in pods() if "serviceAccountName" in pod}
    assert claims == {load("volume.yaml")["metadata"]["name"]}
    assert accounts == {account["metadata"]["name"] for account in load("account.yaml")["items"]}
    user = {"runAsUser": 1000, "runAsGroup": 1000, "fsGroup": 1000, "runAsNonRoot": True}
    assert all(pod["securityContext"] == user for pod in pods())


def test_every_cluster_asks_for_a_token_and_its_nodes_share_what_the_hub_brings():
    launcher = yaml.safe_load((REPOSITORY / "cluster.yaml").read_text())
    options = launcher["docker"]["run_options"]
    assert "--env RAY_AUTH_MODE=token" in options
    assert launcher["file_mounts"]["/home/ray/.ray/auth_token"] == "~/.ray/auth_token"
    assert load("raycluster.yaml")["spec"]["authOptions"] == {"mode": "token"}
    (volume,) = (option.split()[1] for option in options if option.startswith("--volume"))
    host, mounted = volume.split(":")
    assert any(f":/ {host}" in command for command in launcher["initialization_commands"])
    (home,) = (option.partition("HF_HOME=")[2] for option in options if "HF_HOME" in option)
    assert home.startswith(f"{mounted}/")
    for pod in pods():
        for container in pod["containers"]:
            (home,) = (variable["value"] for variable in container["env"] if variable["name"] == "HF_HOME")
            assert any(home.startswith(f"{mount['mountPath']}/") for mount in container["volumeMounts"])
