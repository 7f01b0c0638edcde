"""The client with which trainers update servers of vLLM, by the calls of vLLM's own interface, and
updates over another client with this interface. Without vLLM."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from test_publisher import tensors

import deltachain as dc
from deltachain_integrations._vllm_client import end_update, send
from deltachain_integrations.vllm import DeltachainWeightSyncClient
from stand_in import UPDATE, StandIn

STATE = UPDATE[0]


@pytest.fixture
def servers() -> Iterator[list[StandIn]]:
    with StandIn() as one, StandIn() as two, StandIn() as three:
        yield [one, two, three]


@pytest.fixture
def versions(tmp_path: Path) -> list[dc.reports.PublishReport]:
    with dc.Publisher(tmp_path / "chain") as publisher:
        return [publisher.publish(tensors(step)) for step in range(3)]


def begun(servers: list[StandIn], **settings: Any) -> DeltachainWeightSyncClient:
    """Makes a client that has sent its servers their settings."""
    client = DeltachainWeightSyncClient([one.url for one in servers], timeout=60, **settings)
    client.init_weight_transfer_engine({"host_copy": "/dev/shm/run7"})
    for one in servers:
        one.taken()
    return client


def says(published: dc.reports.PublishReport) -> str:
    return f"{published.version}@{published.digest[:12]}"


def serves(server: StandIn, published: dc.reports.PublishReport) -> bool:
    holds = server.holds == (published.version, published.digest) and server.version == says(
        published
    )
    return holds and not server.is_paused and not server.is_open


def update(client: DeltachainWeightSyncClient, published: dc.reports.PublishReport) -> None:
    send(client, published)
    client.resume()


def test_each_call_is_one_step_with_all_servers(
    servers: list[StandIn], versions: list[dc.reports.PublishReport]
) -> None:
    with begun(servers) as client:
        for published in versions:
            client.init_weight_transfer_engine({"host_copy": "/dev/shm/run7"})
            assert [one.taken() for one in servers] == [[], [], []]
            told = {"version": published.version, "digest": published.digest}
            steps: list[tuple[Any, list[Any], list[str]]] = [
                (client.start_weight_update, [], UPDATE[:7]),
                (client.update_weights, [told], UPDATE[7:8]),
                (client.finish_weight_update, [], UPDATE[8:]),
                (client.resume, [], ["/resume"]),
                (client.resume, [], []),
            ]
            for call, arguments, paths in steps:
                call(*arguments)
                assert [[path for path, _ in one.taken()] for one in servers] == [paths] * 3
            assert all(serves(one, published) for one in servers)
        assert all(one.owner is not None for one in servers)
    assert all(one.owner is None for one in servers)


def test_a_version_may_have_another_name(
    servers: list[StandIn], versions: list[dc.reports.PublishReport]
) -> None:
    client = begun(servers)
    client.start_weight_update()
    client.update_weights({"version": 0, "digest": versions[0].digest})
    client.finish_weight_update("mine")
    client.resume()
    assert [one.version for one in servers] == ["mine"] * 3
    client.close()


@pytest.mark.parametrize("path", UPDATE)
def test_one_of_several_drops_out_and_the_others_get_the_version(
    servers: list[StandIn], versions: list[dc.reports.PublishReport], path: str
) -> None:
    client = begun(servers)
    update(client, versions[0])
    bad, *good = servers
    bad.fails_once, bad.tears = {path}, False
    client.start_weight_update()
    client.update_weights({"version": 1, "digest": versions[1].digest})
    with pytest.raises(dc.IoError, match="the engine says why") as raised:
        client.finish_weight_update(says(versions[1]))
    assert raised.value.file == bad.url
    assert all(serves(one, versions[1]) for one in good)
    assert serves(bad, versions[1] if path == "/finish_weight_update" else versions[0])
    update(client, versions[2])
    assert all(serves(one, versions[2]) for one in servers)
    client.close()


@pytest.mark.parametrize("call", ["start_weight_update", "update_weights", "finish_weight_update"])
def test_if_all_fail_the_call_says_so(
    servers: list[StandIn], versions: list[dc.reports.PublishReport], call: str
) -> None:
    client = begun(servers)
    update(client, versions[0])
    for one in servers:
        one.fails_once, one.tears = {f"/{call}"}, False
    reached = []
    with pytest.raises(dc.IoError, match="the engine says why") as raised:
        client.start_weight_update()
        reached.append("start_weight_update")
        client.update_weights({"version": 1, "digest": versions[1].digest})
        reached.append("update_weights")
        client.finish_weight_update()
    assert call not in reached and len(raised.value.__notes__) == 2
    is_loaded = call == "finish_weight_update"
    assert all(serves(one, versions[is_loaded]) for one in servers)
    client.close()


def test_a_server_that_dies_between_start_and_finish(
    servers: list[StandIn], versions: list[dc.reports.PublishReport]
) -> None:
    with StandIn() as dying:
        client = begun([dying, *servers])
        update(client, versions[0])
        client.start_weight_update()
        dying.die()
        client.update_weights({"version": 1, "digest": versions[1].digest})
        with pytest.raises(dc.IoError, match="/update_weights") as raised:
            client.finish_weight_update()
        # The version of the dead server is unknown.
        assert any("stays paused" in note for note in raised.value.__notes__)
        assert all(serves(one, versions[1]) for one in servers)
        with pytest.raises(dc.IoError, match="/collective_rpc"):
            update(client, versions[2])
        assert all(serves(one, versions[2]) for one in servers)
        client.close()


def test_a_digest_of_another_chain(
    servers: list[StandIn], versions: list[dc.reports.PublishReport]
) -> None:
    client = begun(servers)
    update(client, versions[0])
    for one in servers:
        one.chain = dict.fromkeys(range(3), "0" * 64)
    with pytest.raises(dc.IoError, match="version 1 has another digest"):
        update(client, versions[1])
    assert all(serves(one, versions[0]) for one in servers)
    client.close()


def test_a_trainer_that_was_killed_and_starts_again(
    servers: list[StandIn], versions: list[dc.reports.PublishReport]
) -> None:
    for received in (False, True):
        killed = begun(servers)
        killed.start_weight_update()
        if received:
            killed.update_weights({"version": 0, "digest": versions[0].digest})
        # The killed client's lease expires.
        for one in servers:
            assert one.is_open and one.is_paused
            one.owner = None
        client = begun(servers)
        update(client, versions[1])
        assert all(serves(one, versions[1]) for one in servers)
        client.close()


def test_an_update_that_is_given_up_leaves_servers_with_what_they_hold(
    servers: list[StandIn], versions: list[dc.reports.PublishReport]
) -> None:
    client = begun(servers)
    update(client, versions[0])
    for received in (False, True):
        client.start_weight_update()
        if received:
            client.update_weights({"version": 1, "digest": versions[1].digest})
        client.resume()
        assert all(serves(one, versions[received]) for one in servers)
    client.start_weight_update()
    servers[0].holds = "torn"
    with pytest.raises(dc.IoError, match="parts of two versions") as raised:
        client.resume()
    assert raised.value.file == servers[0].url and servers[0].is_paused
    assert all(serves(one, versions[1]) for one in servers[1:])
    client.close()


def test_an_update_before_the_servers_were_resumed(
    servers: list[StandIn], versions: list[dc.reports.PublishReport]
) -> None:
    client = begun(servers)
    send(client, versions[0])
    for call in (
        lambda: client.update_weights({"version": 1, "digest": ""}),
        client.finish_weight_update,
    ):
        with pytest.raises(dc.UsageError, match="no update was started"):
            call()
    assert all(one.is_paused for one in servers)
    servers[0].fails_once = {STATE}
    with pytest.raises(dc.IoError, match="the engine says why") as raised:
        send(client, versions[1])
    # The server still has the previous version, and resumes with it.
    assert raised.value.file == servers[0].url and not hasattr(raised.value, "__notes__")
    assert serves(servers[0], versions[0])
    assert all(serves(one, versions[1]) for one in servers[1:])
    update(client, versions[2])
    assert all(serves(one, versions[2]) for one in servers)
    client.close()


def test_an_interrupt_between_two_calls(
    servers: list[StandIn], versions: list[dc.reports.PublishReport]
) -> None:
    client = begun(servers)
    update(client, versions[0])

    class Interrupted:
        def __getattr__(self, name: str) -> Any:
            return getattr(client, name)

        def finish_weight_update(self, weight_version: str | None = None) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        send(Interrupted(), versions[1])
    assert all(serves(one, versions[1]) for one in servers)
    client.close()


def test_calls_in_another_order_are_refused(
    servers: list[StandIn], versions: list[dc.reports.PublishReport]
) -> None:
    client = DeltachainWeightSyncClient([one.url for one in servers])
    told = {"version": 0, "digest": versions[0].digest}
    client.resume()
    for call in (
        client.start_weight_update,
        lambda: client.update_weights(told),
        client.finish_weight_update,
    ):
        with pytest.raises(dc.UsageError, match="init_weight_transfer_engine"):
            call()
    client.init_weight_transfer_engine({})
    for one in servers:
        one.taken()
    with pytest.raises(dc.UsageError, match="update_weights"):
        client.finish_weight_update()
    for call in (lambda: client.update_weights(told), client.finish_weight_update):
        with pytest.raises(dc.UsageError, match="no update was started"):
            call()
    assert [one.taken() for one in servers] == [[], [], []]
    client.start_weight_update()
    client.resume()
    client.start_weight_update()
    with pytest.raises(dc.UsageError, match="update_weights"):
        client.finish_weight_update()
    for wrong in ({}, {"version": 0}, {"version": "0", "digest": ""}, [told]):
        with pytest.raises(dc.UsageError, match="a version and its digest"):
            client.update_weights(wrong)
    # The first of these calls resumed the servers.
    assert [(one.is_paused, one.is_open) for one in servers] == [(False, False)] * 3
    client.close()


@pytest.mark.parametrize(
    ("settings", "text"),
    [({"pause": "hard"}, "'keep', 'wait' or 'abort', not 'hard'"), ({"timeout": -1}, "timeout")],
)
def test_settings_that_are_wrong(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(dc.UsageError, match=text):
        DeltachainWeightSyncClient(["http://127.0.0.1:1"], **settings)
    with pytest.raises(TypeError, match="list"):
        DeltachainWeightSyncClient("http://127.0.0.1:1")
    client = DeltachainWeightSyncClient(["gpu-1"])
    for told, wrong in (({"host_copy": Path("x")}, "JSON"), ({}, "gpu-1")):
        with pytest.raises(dc.UsageError, match=wrong):
            client.init_weight_transfer_engine(told)


class Plain:
    """A client like vLLM's own: four calls, one server, no answers."""

    def __init__(self, server: StandIn) -> None:
        self.url = server.url

    def ask(self, path: str, body: Any = None) -> None:
        data = b"" if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.url}/{path}", data, method="POST")
        urllib.request.urlopen(request, timeout=60).close()

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        self.ask("init_weight_transfer_engine", {"init_info": init_info})

    def start_weight_update(self) -> None:
        self.ask("start_weight_update")

    def update_weights(self, update_info: Any) -> None:
        self.ask("update_weights", {"update_info": update_info})

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        self.ask("finish_weight_update", {"weight_version": weight_version})


@pytest.mark.parametrize(
    "path", [None, "/start_weight_update", "/update_weights", "/finish_weight_update"]
)
def test_another_client_is_left_without_an_open_update(
    servers: list[StandIn], versions: list[dc.reports.PublishReport], path: str | None
) -> None:
    server, *_ = servers
    client = Plain(server)
    client.init_weight_transfer_engine({})
    # A killed trainer leaves the update open like this.
    client.start_weight_update()
    end_update(client)
    server.fails_once, server.tears = ({path} if path else set()), False
    if path is not None:
        with pytest.raises(urllib.error.HTTPError):
            send(client, versions[0])
    assert not server.is_open
    send(client, versions[1])
    # The caller of this client pauses and resumes the server.
    assert serves(server, versions[1])
    end_update(client)
    assert serves(server, versions[1])
