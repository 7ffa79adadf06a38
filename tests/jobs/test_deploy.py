"""What is shipped for clusters is well-formed by Ray's own schema or by the shape of the custom resources."""

import copy
from pathlib import Path

import pytest
import yaml
from jsonschema import Draft202012Validator

from jobs.config import RunConfig
from jobs.config.file import CONF_DIR

REPOSITORY = Path(__file__).parents[2]
DEPLOY = REPOSITORY / "jobs" / "deploy"


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
        "securityContext": strict({"allowPrivilegeEscalation": YES, "runAsNonRoot": YES}),
        "resources": strict({"requests": TEXTS, "limits": TEXTS}),
    },
    ["name", "image"],
)
POD = strict(
    {
        "spec": strict(
            {
                "containers": {"type": "array", "items": CONTAINER, "minItems": 1},
                "nodeSelector": TEXTS,
                "restartPolicy": {"enum": ["Never", "OnFailure", "Always"]},
                "automountServiceAccountToken": YES,
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
        "rayClusterSpec": RAY_CLUSTER,
    },
    ["entrypoint", "rayClusterSpec"],
)
CRON = {"type": "string", "pattern": r"^(\S+ ){4}\S+$"}
BATCH = strict({"backoffLimit": WHOLE, "template": POD}, ["template"])
SPECS = {
    ("ray.io/v1", "RayJob"): RAY_JOB,
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


@pytest.mark.parametrize("name", sorted(path.name for path in DEPLOY.glob("*.yaml")))
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
    groups = spec["rayClusterSpec"]["workerGroupSpecs"]
    most = {group["labels"]["gpu-memory"]: group["maxReplicas"] for group in groups}
    assert {nodes.labels["gpu-memory"]: nodes.count for nodes in config.ray.nodes} == most


def test_rays_autoscaler_reads_every_group_as_nodes_with_a_gpu_and_its_label():
    from ray.autoscaler._private.kuberay.autoscaling_config import _derive_autoscaling_config_from_ray_cr

    cluster = load("rayjob.yaml")["spec"]["rayClusterSpec"]
    found = _derive_autoscaling_config_from_ray_cr(
        {"metadata": {"name": "closelook", "namespace": "default"}, "spec": cluster}
    )
    kinds = found["available_node_types"]
    assert kinds["headgroup"]["resources"]["GPU"] == 0
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
    for path in [*DEPLOY.glob("*.yaml"), REPOSITORY / "cluster.yaml"]:
        for line in path.read_text().splitlines():
            assert not ("SECRET" in line and not line.lstrip().startswith("#")), f"{path.name}: {line}"
