"""Containers of manifests run on this machine: command, user, groups, mounts and environment are those written there.

Of the scheduled run, the head and a worker of two groups start as KubeRay starts them, a GPU being what the worker says
it has, and the CronJob's pod submits to them. Only the config is another, `smoke`, and the store a server of this test.
"""

import shlex

import pytest

from tests.jobs.cluster.test_deploy import load, submitter
from tests.jobs.pods import USER, Container, Pods

pytestmark = pytest.mark.ray
BAKED = "models--biu-nlp--f-coref"
SERVICE = "closelook-head-svc"
#: Of the secret that the manifests name; the store is the server below.
SECRET = {
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_ENDPOINT_URL": "http://store:5000",
    "RAY_AUTH_TOKEN": "0123456789" * 4,
}
TOKEN = {"RAY_AUTH_MODE": "token"}  # what KubeRay makes of authOptions
NOBODY = {"runAsUser": USER, "runAsGroup": USER}  # the image's user
BUCKET = "wget --quiet --tries=60 --retry-connrefused --method=PUT --output-document=- http://store:5000/closelook"
UP = "Ray runtime started."


@pytest.fixture
def pods(network_namespaces, tmp_path):
    """With an S3 server that the name `store` stands for."""
    made = Pods(tmp_path / "pods", [SERVICE, "store", "head"])
    made.start(["python", "-m", "moto.server", "-H", "0.0.0.0", "-p", "5000"], {}, NOBODY)
    yield made
    made.close()


def environment_of(container: dict) -> dict[str, str]:
    variables = {variable["name"]: variable["value"] for variable in container.get("env", ())}
    return (SECRET if "envFrom" in container else {}) | variables


def started(pods: Pods, group: dict, *arguments: str) -> Container:
    """A pod of the cluster: its volumes, its initContainers one after the other, then Ray as KubeRay starts it."""
    pod = group["template"]["spec"]
    claims = {volume["name"]: volume["persistentVolumeClaim"]["claimName"] for volume in pod["volumes"]}
    for container in (*pod["initContainers"], *pod["containers"]):
        for mount in container["volumeMounts"]:
            pods.mount(claims[mount["name"]], mount["mountPath"], pod["securityContext"]["fsGroup"])
    for container in pod["initContainers"]:
        command = [*container["command"], *container["args"]]
        assert pods.start(command, environment_of(container), pod["securityContext"]).ended() == (0, "")
    (container,) = pod["containers"]
    options = {"num-gpus": container["resources"]["limits"].get("nvidia.com/gpu", "0"), **group["rayStartParams"]}
    words = [f"--{name}={value}" for name, value in options.items()]
    if "labels" in group:
        words.append("--labels=" + ",".join(f"{name}={value}" for name, value in group["labels"].items()))
    command = ["ray", "start", "--block", *arguments, *words]
    ray = pods.start(command, environment_of(container) | TOKEN, pod["securityContext"])
    ray.says(UP)
    return ray


@pytest.mark.nightly
def test_the_scheduled_run_as_the_manifests_say_it(pods):
    pods.write(f"/opt/huggingface/hub/{BAKED}/config.json", "{}")
    assert pods.start(shlex.split(BUCKET), SECRET, NOBODY).ended()[0] == 0
    spec = load("raycluster.yaml")["spec"]
    head = started(pods, spec["headGroupSpec"], "--head", "--dashboard-host=0.0.0.0", "--disable-usage-stats")
    groups = {group["groupName"]: group for group in spec["workerGroupSpecs"]}
    workers = []
    for port, name in enumerate(("cpu", "gpu24"), start=52_366):  # on one machine, agents cannot share a port
        joining = (f"--address={SERVICE}:6379", f"--dashboard-agent-listen-port={port}", "--num-cpus=1")
        workers.append(started(pods, groups[name], *joining))
    seen = ["sh", "-c", f"cat /cache/huggingface/hub/{BAKED}/config.json && touch /cache/huggingface/written"]
    user = spec["headGroupSpec"]["template"]["spec"]["securityContext"]
    assert pods.start(seen, {}, user).ended() == (0, "{}"), "weights of the image, beside what the user writes"

    cron = load("cronjob.yaml")["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    container = submitter()
    words = [word.replace("--config=paper", "--config=smoke") for word in container["args"]]
    assert words != container["args"]

    def submitted(*more: str) -> tuple[int, str]:
        command = [*container["command"], *words, *more]
        variables = environment_of(container) | TOKEN
        return pods.start(command, variables, cron["securityContext"], container["workingDir"]).ended()

    code, out = submitted("--set=methods=[atnlrp]")
    assert (code, "unknown method 'atnlrp'" in out) == (2, True), out
    code, out = submitted()
    assert code == 0, out
    assert "open s3://closelook/paper/report/index.html" in out
    assert [pod.process.poll() for pod in (head, *workers)] == [None] * 3
