"""The files of `integrations/deploy` are valid, their commands are those of the tool, and what has
to be equal in two places is. `e2e/deploy.py` runs the pod with the real engine."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

yaml = pytest.importorskip("yaml", reason="SKIPPED: PyYAML is not installed")

DEPLOY = Path(__file__).parent.parent / "deploy"
POD = DEPLOY / "vllm-pod.yaml"
COMPOSE = DEPLOY / "vllm-compose.yaml"
# The versions of Kubernetes whose schemas are tried: the newest one, and the oldest that the page
# names.
KUBERNETES = ("1.37", "1.30")


def documents() -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(POD.read_text()))


def document(kind: str, name: str = "run7") -> dict[str, Any]:
    (found,) = [
        one for one in documents() if one["kind"] == kind and one["metadata"]["name"] == name
    ]
    return found


def pod() -> dict[str, Any]:
    found: dict[str, Any] = document("Deployment")["spec"]["template"]["spec"]
    return found


def containers() -> dict[str, dict[str, Any]]:
    """The containers of the pod by their names, sidecars included."""
    return {one["name"]: one for one in pod()["initContainers"] + pod()["containers"]}


def scheduled(name: str) -> dict[str, Any]:
    """The container of a CronJob."""
    job = document("CronJob", f"run7-{name}")
    (found,) = job["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"]
    return dict(found)


def services() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = yaml.safe_load(COMPOSE.read_text())["services"]
    return found


def option(command: list[str], name: str) -> str:
    """The value of an option."""
    return command[command.index(name) + 1]


# ---- Schemas -----------------------------------------------------------------------------------


@pytest.mark.parametrize("version", KUBERNETES)
def test_the_pod_fits_the_schemas_of_kubernetes(version: str) -> None:
    schemas = pytest.importorskip(
        "kubernetes_validate", reason="SKIPPED: kubernetes-validate is not installed"
    )
    for one in documents():
        schemas.validate(one, version, strict=True)
    # The schemas refuse what they do not know.
    one = document("Deployment")
    one["spec"]["template"]["spec"]["initContainers"][0]["restartPolice"] = "Always"
    with pytest.raises(schemas.ValidationError):
        schemas.validate(one, version, strict=True)


def test_the_compose_file_fits_the_specification() -> None:
    specification = pytest.importorskip(
        "compose_spec", reason="SKIPPED: compose-spec is not installed"
    )
    text = COMPOSE.read_text()
    specification.PyCompose.from_yaml(text).validate()
    with pytest.raises(ValueError):
        specification.PyCompose.from_yaml(text.replace("cap_drop", "cap_drip")).validate()


# ---- Commands ----------------------------------------------------------------------------------


def commands() -> dict[str, list[str]]:
    """The command lines of both files that call the tool."""
    found = {f"pod-{name}": one["command"] for name, one in containers().items()}
    found |= {f"cron-{name}": scheduled(name)["command"] for name in ("mirror", "prune")}
    found |= {f"compose-{name}": one["command"] for name, one in services().items()}
    return {name: words for name, words in found.items() if words[0] == "deltachain"}


def run(words: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Runs a command of the tool with a bucket that cannot be reached, a port that is in use, and
    folders below another one."""
    words = [re.sub(r"^/(models|scratch)", rf"{folder}/\1", word) for word in words[1:]]
    words += ["--store", "retries=0"]
    if words[0] == "mirror":
        words += ["--to", "retries=0"]
    (folder / "scratch").mkdir(exist_ok=True)
    (folder / "models").mkdir(exist_ok=True)
    # Nothing listens at this port, which only root could open.
    environment = {
        "AWS_ENDPOINT_URL": "http://127.0.0.1:1",
        "AWS_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "COPY_ACCESS_KEY_ID": "key",
        "COPY_SECRET_ACCESS_KEY": "secret",
    }
    with socket.create_server(("127.0.0.1", 0)) as used:
        address = f"127.0.0.1:{used.getsockname()[1]}"
        words = [word.replace("0.0.0.0:9465", address) for word in words]
        return subprocess.run(
            [sys.executable, "-m", "deltachain", *words],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            cwd=folder,
            env={**os.environ, **environment},
        )


@pytest.mark.parametrize("name", sorted(commands()))
def test_the_tool_takes_the_command(name: str, tmp_path: Path) -> None:
    ran = run(commands()[name], tmp_path)
    # The port or the bucket. 2 would be the usage.
    assert ran.returncode == 1, ran.stdout + ran.stderr
    assert "127.0.0.1:" in ran.stdout + ran.stderr


def test_the_tool_refuses_another_command(tmp_path: Path) -> None:
    ran = run([*commands()["pod-follower"], "--max-lags", "3"], tmp_path)
    assert ran.returncode == 2, ran.stdout + ran.stderr


def test_all_commands_of_the_tool_are_there() -> None:
    both = {"follower", "mirror", "prune"}
    assert {name.partition("-")[2] for name in commands()} == both
    assert len(commands()) == 2 * len(both)


# ---- The pod -----------------------------------------------------------------------------------


def test_follower_and_server_share_a_directory_and_a_user() -> None:
    follower, server = containers()["follower"], containers()["server"]
    (theirs,) = follower["volumeMounts"]
    (its,) = server["volumeMounts"]
    assert its == {**theirs, "readOnly": True}
    (volume,) = [one for one in pod()["volumes"] if one["name"] == theirs["name"]]
    assert volume["emptyDir"]["medium"] == "Memory"
    for one in (follower, server):
        assert not {"runAsUser", "runAsGroup"} & set(one["securityContext"])
    assert pod()["securityContext"]["runAsUser"] == pod()["securityContext"]["runAsGroup"] > 0
    directory = follower["command"][3]
    assert directory.startswith(theirs["mountPath"] + "/")
    assert f"{directory}/current" in server["command"]
    settings = json.loads(option(server["command"], "--additional-config"))["deltachain"]
    assert settings["host_copy"] == directory


def test_the_follower_is_a_sidecar_that_decides_about_readiness() -> None:
    follower, server = containers()["follower"], containers()["server"]
    assert pod()["initContainers"][0] == follower
    assert follower["restartPolicy"] == "Always"
    assert follower["readinessProbe"]["httpGet"]["path"] == "/ready"
    # The start must not wait for the server, which starts later, nor a restart for the bucket.
    assert "httpGet" not in follower["startupProbe"]
    assert follower["livenessProbe"]["httpGet"]["path"] == "/metrics"
    assert "readinessProbe" not in server


@pytest.mark.parametrize("name", ["follower", "gate", "server"])
def test_probes_name_ports_that_exist(name: str) -> None:
    container = containers()[name]
    ports = {one["name"]: one["containerPort"] for one in container.get("ports", [])}
    for kind in ("startupProbe", "readinessProbe", "livenessProbe"):
        probe = container.get(kind, {})
        for way in ("httpGet", "tcpSocket"):
            if way in probe:
                assert probe[way]["port"] in ports
    words = container["command"]
    if name == "follower":
        assert option(words, "--listen") == f"0.0.0.0:{ports['follower']}"
        address = f"http://127.0.0.1:{option(containers()['server']['command'], '--port')}"
        assert option(words, "--server") == address
    if name == "server":
        # The kubelet does not reach it, so its probes are commands in the container.
        assert option(words, "--host") == "127.0.0.1" and not ports
        for kind in ("startupProbe", "livenessProbe"):
            assert f":{option(words, '--port')}/health" in container[kind]["exec"]["command"][-1]
    if name == "gate":
        assert (
            f"listen {ports['gate']};" in document("ConfigMap", "run7-gate")["data"]["nginx.conf"]
        )


def test_only_the_proxy_can_be_reached() -> None:
    service = document("Service")["spec"]
    assert [port["targetPort"] for port in service["ports"]] == ["gate"]
    labels = document("Deployment")["spec"]["template"]["metadata"]["labels"]
    assert service["selector"] == labels
    assert [name for name, one in services().items() if "ports" in one] == ["gate"]


def test_both_proxies_are_the_same() -> None:
    in_pod = document("ConfigMap", "run7-gate")["data"]["nginx.conf"]
    here = yaml.safe_load(COMPOSE.read_text())["configs"]["gate"]["content"]
    assert here.replace("http://server:", "http://127.0.0.1:") == in_pod


def test_there_is_time_for_a_stop() -> None:
    follower, server = containers()["follower"], containers()["server"]
    sleep = server["lifecycle"]["preStop"]["sleep"]["seconds"]
    grace = pod()["terminationGracePeriodSeconds"]
    update = int(option(follower["command"], "--server-timeout"))
    assert grace > sleep + update
    assert services()["follower"]["stop_grace_period"] == f"{grace}s"


def test_secrets_are_where_they_are_needed() -> None:
    def secrets(container: dict[str, Any]) -> set[str]:
        sources = [one["valueFrom"] for one in container.get("env", []) if "valueFrom" in one]
        return {one["secretKeyRef"]["name"] for one in sources}

    assert secrets(containers()["follower"]) == {"run7-read"}
    assert secrets(containers()["server"]) == set()
    assert secrets(scheduled("mirror")) == {"run7-read", "run7-copy"}
    assert secrets(scheduled("prune")) == {"run7-write"}
    assert {name: one.get("env_file") for name, one in services().items()} == {
        "follower": "run7-read.env",
        "server": None,
        "gate": None,
        "mirror": ["run7-read.env", "run7-copy.env"],
        "prune": "run7-write.env",
    }


def test_prune_is_run_at_the_source() -> None:
    chain = containers()["follower"]["command"][2]
    for command in (scheduled("prune")["command"], services()["prune"]["command"]):
        assert command[:3] == ["deltachain", "prune", chain]
    for command in (scheduled("mirror")["command"], services()["mirror"]["command"]):
        assert command[2] == chain != command[3]
    for name in ("mirror", "prune"):
        assert document("CronJob", f"run7-{name}")["spec"]["concurrencyPolicy"] == "Forbid"


# ---- The compose file --------------------------------------------------------------------------


def test_compose_shares_the_directory_and_the_user_too() -> None:
    follower, server = services()["follower"], services()["server"]
    assert [f"{one}:ro" for one in follower["volumes"]] == server["volumes"]
    assert follower["user"] == server["user"]
    volumes = yaml.safe_load(COMPOSE.read_text())["volumes"]
    assert volumes["models"]["driver_opts"]["type"] == "tmpfs"
    assert follower["user"].partition(":")[0] in volumes["models"]["driver_opts"]["o"]
    ours = containers()["server"]["command"]
    its = server["command"]
    assert [word.replace("0.0.0.0", "127.0.0.1") for word in its] == ours
    theirs = [word.replace("//server:", "//127.0.0.1:") for word in follower["command"]]
    assert theirs == containers()["follower"]["command"]
    assert server["depends_on"]["follower"]["condition"] == "service_healthy"
    for name in ("mirror", "prune"):
        assert services()[name]["command"] == [
            word for word in scheduled(name)["command"] if word not in ("--scratch", "/scratch")
        ]


def test_all_programs_of_the_packages_are_one_image() -> None:
    images = {one["image"] for one in containers().values() if one["command"][0] != "nginx"}
    images |= {scheduled(name)["image"] for name in ("mirror", "prune")}
    images |= {one["image"] for one in services().values() if one["command"][0] != "nginx"}
    (image,) = images
    base = re.search(
        r"^ARG BASE=vllm/vllm-openai:v(\S+)$", (DEPLOY / "Dockerfile").read_text(), re.M
    )
    assert base is not None
    assert image == f"deltachain-vllm:{base[1]}"
