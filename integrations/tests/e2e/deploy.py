"""The pod of integrations/deploy/vllm-pod.yaml without Kubernetes: this program starts its
containers as processes, and is the kubelet. It kills them at random instants, while versions are
published and a client sends requests all the time. `run.py` starts this.

Commands, environment, mounts and probes are those of the file. The only differences: volumes are
folders, ports are other ones, the bucket is one of s3s-fs, the server gets the settings that the
small model needs on a CPU, a container that has ended is started again at once, and all processes
have the user of this program.

python deploy.py DIR OUT --s3 PROGRAM [--kills N]"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

import deltachain as dc
from models import tensors_of
from server import PROMPTS, Server, fresh
from store import Store, surroundings

FILE = Path(__file__).resolve().parents[2] / "deploy" / "vllm-pod.yaml"
CHAIN = "s3://models/run7"
MODEL = "run7"
# Numbers of the weights that versions have in turn.
WEIGHTS = (2, 3, 4)
# Arguments of the server for the small model, as in `server.py`.
SMALL = ["--dtype", "bfloat16", "--max-model-len", "256", "--max-num-seqs", "4", "--enforce-eager"]
SMALL_ENVIRONMENT = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1"}
# Makes a folder read-only for a command: a mount that no other process sees.
READ_ONLY = 'mount --bind "$0" "$0" && mount --options remount,bind,ro "$0" && exec "$@"'
# Maximum seconds until the pod is ready.
LONGEST = 300
# The processes to kill, each with its share of the kills.
KINDS = {
    "follower, SIGKILL": 8,
    "follower, SIGTERM": 3,
    "server, SIGKILL": 5,
    "pod, SIGTERM in its order": 4,
}


class Bucket(Store):
    """A bucket that goes away and comes back."""

    def go_away(self) -> None:
        self._process.kill()
        self._process.wait()

    def come_back(self) -> None:
        self._process = subprocess.Popen(
            self._process.args, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        self.__enter__()


class Container:
    """A container of the pod, as processes of this machine.

    Args:
        pod: the pod.
        spec: its part of the file.
    """

    def __init__(self, pod: Pod, spec: dict[str, Any]) -> None:
        self.pod, self.spec = pod, spec
        self.name: str = spec["name"]
        self.log = pod.folder / f"{self.name}.log"
        self.is_started = False
        self._process: subprocess.Popen[bytes] | None = None

    def _environment(self) -> dict[str, str]:
        """The variables of the container. Secrets are those of the stand-in."""
        found = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
        for entry in self.spec.get("env", []):
            source = entry.get("valueFrom")
            if source is None:
                found[entry["name"]] = entry["value"]
            else:
                found[entry["name"]] = self.pod.secrets[source["secretKeyRef"]["key"]]
        if self.name == "follower":
            found["AWS_ENDPOINT_URL"] = self.pod.secrets["AWS_ENDPOINT_URL"]
        if self.name == "server":
            found |= SMALL_ENVIRONMENT
        return found

    def start(self) -> None:
        """Starts the command of the file."""
        words = [self.pod.here(self.spec, word) for word in self.spec["command"]]
        if self.name == "server":
            words += SMALL
        for mount in self.spec["volumeMounts"]:
            # Only root can mount.
            if mount.get("readOnly") and self.pod.is_memory(mount["name"]) and os.geteuid() == 0:
                folder = str(self.pod.volumes[mount["name"]])
                words = ["unshare", "--mount", "sh", "-c", READ_ONLY, folder, *words]
        self.is_started = False
        self._process = subprocess.Popen(
            words,
            stdout=self.log.open("ab"),
            stderr=subprocess.STDOUT,
            env=self._environment(),
            start_new_session=True,
        )

    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def until_started(self) -> None:
        """Waits until the startup probe succeeds. A container that ends before is started again."""
        end = time.monotonic() + LONGEST
        while not self.probe("startupProbe"):
            if not self.is_running() or time.monotonic() > end:
                said = self.log.read_text(errors="replace")[-3000:]
                raise RuntimeError(f"{self.name} does not start:\n{said}")
            time.sleep(0.1)
        self.is_started = True

    def probe(self, name: str) -> bool:
        """Returns whether a probe succeeds, or the container has none of this kind."""
        probe = self.spec.get(name)
        if probe is None:
            return True
        if "exec" in probe:
            words = [self.pod.here(self.spec, word) for word in probe["exec"]["command"]]
            return subprocess.run(words, capture_output=True, check=False).returncode == 0
        port = self.pod.ports[self.port((probe.get("httpGet") or probe["tcpSocket"])["port"])]
        with suppress(OSError):
            if "tcpSocket" in probe:
                socket.create_connection(("127.0.0.1", port), timeout=5).close()
                return True
            address = f"http://127.0.0.1:{port}{probe['httpGet']['path']}"
            with urllib.request.urlopen(address, timeout=probe["timeoutSeconds"]) as response:
                return bool(response.status == 200)
        return False

    def port(self, name: str) -> int:
        """The number of a port, given its name in the file."""
        (found,) = [port for port in self.spec["ports"] if port["name"] == name]
        number: int = found["containerPort"]
        return number

    def kill(self) -> None:
        """Kills all processes, as the end of a container's first process does."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def pre_stop(self) -> None:
        """Runs the command that the file has for the beginning of a stop."""
        command = self.spec.get("lifecycle", {}).get("preStop", {}).get("exec", {}).get("command")
        if command is None or self._process is None or self._process.poll() is not None:
            return
        # The first process of a container has the number 1 there.
        words = [word.replace("kill(1,", f"kill({self._process.pid},") for word in command]
        subprocess.run(words, check=True)

    def stop(self, end: float) -> int:
        """Sends SIGTERM to the first process, and waits for its end until `end`. Returns its exit
        code."""
        assert self._process is not None
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        try:
            code = self._process.wait(max(0.0, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            code = -signal.SIGKILL
        self.kill()
        return code


class Pod:
    """The pod of the file, which ends with the block.

    Args:
        folder: the folder for logs and volumes.
        secrets: the content of the secrets, by key.
    """

    def __init__(self, folder: Path, secrets: dict[str, str]) -> None:
        documents = list(yaml.safe_load_all(FILE.read_text()))
        (deployment,) = [one for one in documents if one["kind"] == "Deployment"]
        self._maps = {
            one["metadata"]["name"]: one["data"] for one in documents if one["kind"] == "ConfigMap"
        }
        self.spec = deployment["spec"]["template"]["spec"]
        self.folder, self.secrets = folder, secrets
        self.memory = Path("/dev/shm/deltachain-deploy")
        self.volumes: dict[str, Path] = {}
        for volume in self.spec["volumes"]:
            where = self.memory if self.is_memory(volume["name"]) else folder / "volumes"
            self.volumes[volume["name"]] = where / volume["name"]
        # The ports of the file, and those here. The server's is in its command alone.
        self.ports = {port: free_port() for port in (8000, 8080, 9465)}
        self.has_proxy = shutil.which("nginx") is not None
        self.sidecars = [
            Container(self, one)
            for one in self.spec["initContainers"]
            if one["name"] != "gate" or self.has_proxy
        ]
        (spec,) = self.spec["containers"]
        self.server = Container(self, spec)
        self.follower = self.sidecars[0]
        self.containers = [*self.sidecars, self.server]
        for container in self.containers:
            container.log.unlink(missing_ok=True)

    def is_memory(self, name: str) -> bool:
        """True if the volume is in memory."""
        (volume,) = [one for one in self.spec["volumes"] if one["name"] == name]
        return bool((volume.get("emptyDir") or {}).get("medium") == "Memory")

    def here(self, spec: dict[str, Any], text: str) -> str:
        """Replaces the paths of mounts and the ports in a text of a container."""
        folders = {
            mount["mountPath"]: str(self.volumes[mount["name"]]) for mount in spec["volumeMounts"]
        }
        # In one pass, since folders of this machine may contain such paths.
        paths = "|".join(map(re.escape, folders))
        text = re.sub(rf"(?<![\w/.])({paths})(?![\w.])", lambda found: folders[found[1]], text)
        ports = "|".join(map(str, self.ports))
        return re.sub(
            rf"(?<=[: ])({ports})\b|^({ports})$",
            lambda found: str(self.ports[int(found[0])]),
            text,
        )

    def start(self) -> None:
        """Makes empty volumes, and starts the containers in their order."""
        for volume in self.spec["volumes"]:
            folder = self.volumes[volume["name"]]
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            if "configMap" in volume:
                (gate,) = [one for one in self.spec["initContainers"] if one["name"] == "gate"]
                for name, text in self._maps[volume["configMap"]["name"]].items():
                    (folder / name).write_text(self.here(gate, text))
        for container in self.containers:
            container.start()
            if container is not self.server:
                container.until_started()

    def is_ready(self) -> bool:
        """True if a service would send requests: all containers run, have started and are ready."""
        for container in self.containers:
            if not container.is_running():
                return False
            if not container.is_started and not container.probe("startupProbe"):
                return False
            container.is_started = True
            if not container.probe("readinessProbe"):
                return False
        return True

    def stop(self) -> tuple[float, dict[str, int]]:
        """Stops the pod as a deletion does. Returns the seconds, and the exit codes."""
        begin = time.monotonic()
        end = begin + self.spec["terminationGracePeriodSeconds"]
        for container in self.containers:
            container.pre_stop()
        time.sleep(self.server.spec["lifecycle"]["preStop"]["sleep"]["seconds"])
        codes = {}
        for container in (self.server, *reversed(self.sidecars)):
            codes[container.name] = container.stop(end)
        return time.monotonic() - begin, codes

    def __enter__(self) -> Pod:
        return self

    def __exit__(self, *_: object) -> None:
        for container in self.containers:
            container.kill()
        shutil.rmtree(self.memory, ignore_errors=True)


class Running(Server):
    """The server of the pod, which the pod starts."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"


class Client:
    """Sends requests all the time, in a thread, and judges the answers.

    Args:
        pod: the pod.
        right: the answer of a fresh server, by the number of a version.
    """

    def __init__(self, pod: Pod, right: Callable[[int], Any]) -> None:
        self.pod, self._right = pod, right
        self.server = Running(pod.ports[8000])
        # Requests of users go through the proxy.
        self.outside = Running(pod.ports[8080 if pod.has_proxy else 8000])
        self.judged = {"exact": 0, "across": 0, "mixed": 0, "wrong": 0, "cut": 0, "refused": 0}
        self.wrong: list[str] = []
        # The number of kills, the newest published version, and the newest that was served.
        self.kills = 0
        self.newest = -1
        self.served = 0
        # False while the pod is stopped.
        self.is_sent = True
        self.end = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def start(self) -> None:
        self._thread.start()

    def join(self) -> None:
        self.end.set()
        self._thread.join()

    def name(self) -> str:
        """What the server says of its version; empty without a server."""
        with suppress(OSError):
            return self.server.named()
        return ""

    def _run(self) -> None:
        while not self.end.is_set():
            if not self.is_sent:
                time.sleep(0.05)
                continue
            kills, was_ready, before = self.kills, self.pod.is_ready(), self.name()
            try:
                answer = self.outside.complete(PROMPTS[1], model=MODEL)
            except OSError as error:
                # Kubernetes sends no requests to pods that are not ready.
                is_cut = self.kills != kills or not was_ready
                self.judged["cut" if is_cut else "refused"] += 1
                if not is_cut:
                    self.wrong.append(f"refused while the pod was ready: {error}")
                time.sleep(0.05)
                continue
            self._judge(before, answer, self.name())

    def _judge(self, before: str, answer: list[Any], after: str) -> None:
        """Compares an answer with those of the versions that may have been served meanwhile."""
        if before == after and "@" in before:
            number = int(before.partition("@")[0])
            self.served = max(self.served, number)
            if answer == self._right(number):
                self.judged["exact"] += 1
            else:
                self.judged["wrong"] += 1
                self.wrong.append(f"not the answer of {before}: {answer}")
            return
        # An update, or a server that the follower has not yet named. It has no older version.
        rights = [self._right(number) for number in range(self.served, self.newest + 1)]
        if answer in rights:
            self.judged["across"] += 1
        elif any(answer[1][0] == right[1][0] for right in rights):
            self.judged["mixed"] += 1
        else:
            self.judged["wrong"] += 1
            self.wrong.append(f"of no version from {self.served} on: {answer}")


class Proof:
    """The checks.

    Args:
        folder: the folder of the models.
        pod: the pod, which runs nothing yet.
        bucket: the bucket of the chain.
    """

    def __init__(self, folder: Path, pod: Pod, bucket: Bucket) -> None:
        self.folder, self.pod, self.bucket = folder, pod, bucket
        self.rows: list[list[Any]] = []
        answers = {number: fresh(folder, number, plain=False) for number in WEIGHTS}
        assert len({json.dumps(said[1]) for said in answers.values()}) == len(WEIGHTS)
        self._answers = answers
        # The publisher's settings. Containers get what the file gives them.
        options = {
            "endpoint": pod.secrets["AWS_ENDPOINT_URL"],
            "region": pod.secrets["AWS_REGION"],
            "access_key_id": pod.secrets["AWS_ACCESS_KEY_ID"],
            "secret_access_key": pod.secrets["AWS_SECRET_ACCESS_KEY"],
        }
        self._store = dc.Store(CHAIN, storage_options=options)
        self.client = Client(pod, lambda version: self.right(version)[1])
        self.newest: dc.reports.PublishReport | None = None
        # The longest seconds until the pod was ready and until it served the newest version, by
        # what was killed.
        self.times: dict[str, list[tuple[float, float]]] = {kind: [] for kind in KINDS}
        self.problems: list[str] = []
        # Seconds that each stop of the pod took.
        self.stops: list[float] = []

    def right(self, version: int) -> list[Any]:
        """The answers of a fresh server with this version."""
        found: list[Any] = self._answers[WEIGHTS[version % len(WEIGHTS)]]
        return found

    def publish(self) -> None:
        """Publishes the next version."""
        number = WEIGHTS[(self.client.newest + 1) % len(WEIGHTS)]
        # Before it is published, so that no answer comes too early.
        self.client.newest += 1
        with dc.Publisher(self._store, like=self.folder / "base") as publisher:
            self.newest = publisher.publish(tensors_of(self.folder / f"saved-{number}"))
        assert self.newest.version == self.client.newest

    def is_newest(self) -> bool:
        """True if the server says that it has the newest version."""
        assert self.newest is not None
        return self.client.name() == f"{self.newest.version}@{self.newest.digest[:12]}"

    def until(self, condition: Callable[[], bool], since: float) -> float:
        """Waits for a condition. Returns the seconds since an instant."""
        while not condition():
            if time.monotonic() - since > LONGEST:
                raise RuntimeError("the pod has not come back")
            for container in self.pod.containers:
                if not container.is_running():
                    # A container that has ended by itself.
                    self.problems.append(f"{container.name} has ended by itself")
                    if len(self.problems) > 5:
                        raise RuntimeError("; ".join(self.problems))
                    container.start()
            time.sleep(0.1)
        return time.monotonic() - since

    def begin(self) -> None:
        """The first start, from an empty directory."""
        self.publish()
        since = time.monotonic()
        self.pod.start()
        self.until(self.pod.is_ready, since)
        seconds = self.until(self.is_newest, since)
        good = self.client.outside.answers(MODEL) == self.right(0)
        self.rows.append(["first version", good, f"{seconds:.1f} s after the pod was made"])
        self.proxy()

    def proxy(self) -> None:
        """The proxy passes nothing of the developer mode."""
        if not self.pod.has_proxy:
            print("SKIPPED: the proxy: nginx is not installed")
            return
        refusals = {}
        for method, path in (
            ("POST", "/pause?mode=keep"),
            ("POST", "/collective_rpc"),
            ("GET", "/weight_info"),
            ("POST", "/v1/../pause"),
            ("POST", "/v1/%2e%2e/pause"),
            ("POST", "/v1/..%2fpause"),
            ("POST", "//pause"),
        ):
            try:
                self.client.outside.ask(method, path, {})
                refusals[path] = 200
            except urllib.error.HTTPError as error:
                refusals[path] = error.code
        good = set(refusals.values()) == {404} and not self.is_paused()
        self.rows.append(["the proxy passes the API alone", good, str(refusals)])

    def is_paused(self) -> bool:
        return bool(self.client.server.ask("GET", "/is_paused")["is_paused"])

    def away(self, seconds: float) -> None:
        """The bucket is away: the pod stays ready, and nothing is restarted."""
        self.bucket.go_away()
        end = time.monotonic() + seconds
        is_ready = is_alive = True
        while time.monotonic() < end:
            is_ready = is_ready and self.pod.is_ready()
            is_alive = is_alive and self.pod.follower.probe("livenessProbe")
            time.sleep(0.5)
        self.bucket.come_back()
        self.publish()
        took = self.until(self.is_newest, time.monotonic())
        good = is_ready and is_alive
        said = f"ready: {is_ready}, alive: {is_alive}; the next version {took:.1f} s after it"
        self.rows.append(["the bucket is away for a while", good, said])

    def kill(self, kind: str) -> None:
        """Kills something, and starts it again as the kubelet does."""
        pod = self.pod
        self.client.kills += 1
        if kind == "follower, SIGKILL":
            pod.follower.kill()
            pod.follower.start()
        elif kind == "follower, SIGTERM":
            end = time.monotonic() + pod.spec["terminationGracePeriodSeconds"]
            code = pod.follower.stop(end)
            with suppress(OSError):
                if self.is_paused():
                    self.problems.append("a follower that was told to stop left the server paused")
            if code != 0:
                self.problems.append(f"the follower ended with {code} after SIGTERM")
            pod.follower.start()
        elif kind == "server, SIGKILL":
            pod.server.kill()
            pod.server.start()
        else:
            # The pod gets no requests from now on.
            self.client.is_sent = False
            seconds, codes = pod.stop()
            print(f"  stopped in {seconds:.1f} s, exit codes {codes}", flush=True)
            self.stops.append(seconds)
            if seconds > pod.spec["terminationGracePeriodSeconds"]:
                self.problems.append(f"the pod took {seconds:.1f} s to stop")
            if codes["follower"] != 0:
                self.problems.append(f"the follower ended with {codes['follower']} in a stop")
            pod.start()
            self.client.is_sent = True
        # Requests that were cut by the kill may fail later than it.
        self.client.kills += 1

    def run_kills(self, count: int) -> None:
        """Kills at random instants, with versions that are published meanwhile."""
        chance = random.Random(0)
        kinds = [kind for kind, share in KINDS.items() for _ in range(share)]
        chance.shuffle(kinds)
        self.client.start()
        try:
            for number in range(count):
                kind = kinds[number % len(kinds)]
                self.publish()
                time.sleep(chance.uniform(0.0, 2.0))
                since = time.monotonic()
                self.kill(kind)
                if number + 1 < count and chance.random() < 0.25:
                    # The next kill comes while this one is repaired.
                    print(f"kill {number + 1}: {kind}; the next one comes meanwhile", flush=True)
                    time.sleep(chance.uniform(0.0, 15.0))
                    continue
                ready = self.until(self.pod.is_ready, since)
                newest = self.until(self.is_newest, since)
                self.times[kind].append((ready, newest))
                print(
                    f"kill {number + 1}: {kind}: ready {ready:.1f} s, newest {newest:.1f} s",
                    flush=True,
                )
            self.until(self.pod.is_ready, time.monotonic())
            self.client.join()
        finally:
            self.client.end.set()
        good = self.is_newest() and self.pod.is_ready() and not self.is_paused()
        good = good and self.client.outside.answers(MODEL) == self.right(self.client.newest)
        said = f"version {self.client.name()}, of {self.client.newest} the newest"
        self.rows.append([f"the newest version and ready, after {count} kills", good, said])
        said = "; ".join(self.problems) or f"{max(self.stops, default=0.0):.1f} s at most for a pod"
        self.rows.append(["what was told to stop has stopped well", not self.problems, said])
        judged = self.client.judged
        good = not judged["wrong"] and not judged["refused"] and judged["exact"] > 0
        said = ", ".join(f"{number} {name}" for name, number in judged.items())
        self.rows.append(
            [f"answers during {count} kills", good, said + "".join(self.client.wrong[:3])]
        )
        self.rows.append([f"times of {count} kills", True, self.table(count)])

    def table(self, count: int) -> str:
        """The longest times of each kind of kill."""
        lines = ["", "| killed | kills | longest until ready | longest until the newest |"]
        for kind, times in self.times.items():
            ready = max((one for one, _ in times), default=0.0)
            newest = max((one for _, one in times), default=0.0)
            lines.append(f"| {kind} | {len(times)} | {ready:.1f} s | {newest:.1f} s |")
        counted = sum(map(len, self.times.values()))
        lines.append(f"| before another was repaired | {count - counted} | | |")
        return "\n".join(lines)


def free_port() -> int:
    """A port that is free now."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


def proof(folder: Path, s3: Path, kills: int) -> list[list[Any]]:
    """Returns rows of a name, whether the check passed, and a text."""
    here = folder / "deploy"
    shutil.rmtree(here, ignore_errors=True)
    here.mkdir()
    with Bucket(s3, here / "buckets") as bucket:
        secrets = surroundings(bucket.port)
        with Pod(here, secrets) as pod:
            checks = Proof(folder, pod, bucket)
            checks.begin()
            checks.away(20)
            checks.run_kills(kills)
    return checks.rows


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--s3", type=Path, required=True)
    parser.add_argument("--kills", type=int, default=sum(KINDS.values()))
    given = parser.parse_args()
    rows = proof(given.folder, given.s3, given.kills)
    for name, good, said in rows:
        print("ok" if good else "FAILED", name, said, sep=": ")
    given.out.write_text(json.dumps(rows))


if __name__ == "__main__":
    main()
