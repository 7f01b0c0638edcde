"""The calls of TRL that update servers, without TRL: what they wait for, and how errors are
raised."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest
from conftest import model, write_model
from stalling_store import StallingStore
from test_publisher import assert_version, tensors

import deltachain as dc
from deltachain_integrations.trl import WeightTransfer
from stand_in import READY, UPDATE, StandIn


@pytest.fixture
def server() -> Iterator[StandIn]:
    with StandIn() as running:
        yield running


@pytest.fixture
def other() -> Iterator[StandIn]:
    with StandIn() as running:
        yield running


Pause = Literal["keep", "wait", "abort"]

# Requests to a server after one of these has failed.
RECOVERY = [
    "/collective_rpc deltachain_end_update",
    "/collective_rpc deltachain_state",
    "/update_weight_version",
    "/resume",
]


def sync(transfer: WeightTransfer, step: int) -> None:
    """Makes the calls of TRL for one sync."""
    transfer.pause()
    transfer.send_weights(iter(tensors(step).items()))
    transfer.resume()


def test_nobody_is_waited_for(tmp_path: Path) -> None:
    url = tmp_path / "chain"
    transfer = WeightTransfer(url)
    transfer.init_weight_transfer()
    for step in range(3):
        sync(transfer, step)
    transfer.destroy()
    assert transfer.last is not None and transfer.last.version == 2
    for step in range(3):
        assert_version(url, step, step)


def test_training_goes_on_while_the_store_stands_still(tmp_path: Path) -> None:
    with StallingStore() as store:
        store.stall = 3600
        transfer = WeightTransfer(store.chain())
        sync(transfer, 0)
        # The sync has ended before the first upload.
        assert store.stands.wait(60)
        assert not [name for name in store.objects if "/commits/" in name]
        store.stall = 0
        store.left.set()
        transfer.destroy()
        assert [name for name in store.objects if "/commits/" in name]
    assert transfer.last is not None and transfer.last.version == 0


def broken(url: Path) -> None:
    """Makes the store fail all uploads."""
    (url / "files").rename(url / "files elsewhere")
    (url / "files").write_text("not a directory")


def test_a_store_that_fails_is_an_error_of_the_next_sync_and_of_the_end(tmp_path: Path) -> None:
    url = tmp_path / "chain"
    transfer = WeightTransfer(dc.Store(url, attempts=1))
    transfer.init_weight_transfer()
    sync(transfer, 0)
    assert_version(url, 0, 0)
    broken(url)
    sync(transfer, 1)
    with pytest.raises(dc.Error, match="files"):
        sync(transfer, 2)
    # The error was raised, and the next step is published again.
    sync(transfer, 3)
    with pytest.raises(dc.Error, match="files"):
        transfer.destroy()
    assert transfer.last is not None and transfer.last.version == 0
    # The store works again.
    (url / "files").unlink()
    (url / "files elsewhere").rename(url / "files")
    sync(transfer, 4)
    transfer.destroy()
    assert_version(url, None, 4)


def test_a_run_that_is_started_again_goes_on_with_the_chain(tmp_path: Path) -> None:
    url = tmp_path / "chain"
    for step in range(3):
        transfer = WeightTransfer(url)
        transfer.init_weight_transfer()
        sync(transfer, step)
        transfer.destroy()
        # The update has a few lanes, and is not a whole model again.
        assert transfer.last is not None and (transfer.last.changed < 20) == (step > 0)
        assert_version(url, step, step)


def test_a_host_copy_has_the_version_when_the_sync_ends(tmp_path: Path) -> None:
    url, copy = tmp_path / "chain", tmp_path / "copy"
    stop = threading.Event()

    def follow() -> None:
        with dc.Subscriber(url, host_copy=copy) as subscriber:
            for update in subscriber.follow(stop=stop, poll=0.02, poll_longest=0.02):
                update.apply()

    transfer = WeightTransfer(url, wait="staged", host_copies=[copy], timeout=60)
    transfer.init_weight_transfer()
    follower = threading.Thread(target=follow)
    follower.start()
    try:
        for step in range(3):
            sync(transfer, step)
            held = dc.HostCopy(copy, kind="deltachain")
            assert held.version == step
            assert {name: bytes(tensor.data) for name, tensor in held.tensors().items()} == {
                name: data for name, (_, _, data) in model(step).items()
            }
    finally:
        stop.set()
        follower.join()
        transfer.destroy()


def test_a_host_copy_that_nobody_keeps_is_an_error(tmp_path: Path) -> None:
    transfer = WeightTransfer(
        tmp_path / "chain", wait="staged", host_copies=[tmp_path / "copy"], timeout=0
    )
    with pytest.raises(
        dc.TimeoutError, match="version 0 was published, but a host copy has no version yet"
    ) as raised:
        sync(transfer, 0)
    assert raised.value.file == str(tmp_path / "copy")
    with dc.Subscriber(tmp_path / "chain", host_copy=tmp_path / "copy") as subscriber:
        subscriber.prepare().apply()
    with pytest.raises(
        dc.TimeoutError, match="version 1 was published, but a host copy is at version 0"
    ):
        sync(transfer, 1)
    transfer.destroy()


def test_servers_are_paused_when_the_version_is_there(
    tmp_path: Path, server: StandIn, other: StandIn
) -> None:
    url = tmp_path / "chain"
    both = [server, other]
    transfer = WeightTransfer(
        url,
        wait="applied",
        servers=[f"{one.url}/" for one in both],
        backend={"mode": "sparse"},
        timeout=60,
    )
    transfer.init_weight_transfer()
    for one in both:
        # The settings do not include the chain: servers open only the chain of their own
        # configuration.
        told = {"init_info": {"mode": "sparse"}}
        (state, call), *rest = one.taken()
        assert (state, call["kwargs"]["lease"]) == ("/collective_rpc deltachain_state", "90")
        assert rest == [("/init_weight_transfer_engine", told)]
    paused_at: list[int | None] = []

    def seen(call: tuple[str, object]) -> None:
        if call[0].startswith("/pause"):
            with dc.Subscriber(url) as subscriber:
                paused_at.append(subscriber.prepare().version)

    server.seen = seen
    for step in range(2):
        transfer.pause()
        assert server.taken() == []
        transfer.send_weights(iter(tensors(step).items()))
        digest = dc.digest(tensors(step)).digest
        name = f"{step}@{digest[:12]}"
        for one in both:
            calls = one.taken()
            assert [path for path, _ in calls] == [READY, *UPDATE]
            bodies = dict(calls)
            info = {"version": step, "digest": digest, "follower": one.owner}
            assert bodies["/update_weights"] == {"update_info": info}
            assert bodies["/finish_weight_update"] == {"weight_version": name}
            assert bodies["/update_weight_version"] == {"new_version": "changing"}
            assert (one.version, one.holds, one.is_paused) == (name, (step, digest), True)
        transfer.resume()
        assert [one.taken() for one in both] == [[("/resume", {})]] * 2
    # The servers were paused when a version was ready, and not before.
    assert paused_at == [0, 1]
    transfer.destroy()
    assert_version(url, None, 1)


def test_a_server_that_downloads_versions_itself_is_paused_when_it_is_ready(
    tmp_path: Path, server: StandIn
) -> None:
    transfer = WeightTransfer(tmp_path / "chain", wait="applied", servers=[server.url], timeout=60)
    transfer.init_weight_transfer()
    server.taken()
    server.preparing = 3
    sync(transfer, 0)
    assert [path for path, _ in server.taken()] == [READY, READY, READY, *UPDATE, "/resume"]
    transfer.destroy()


@pytest.mark.parametrize("pause", ["keep", "wait", "abort"])
def test_running_requests_end_as_the_trainer_says(
    tmp_path: Path, server: StandIn, pause: Pause
) -> None:
    transfer = WeightTransfer(
        tmp_path / "chain", wait="applied", servers=[server.url], timeout=60, pause=pause
    )
    transfer.init_weight_transfer()
    server.taken()
    transfer.send_weights(iter(tensors(0).items()))
    assert (server.is_paused, server.pause_mode) == (True, pause)
    expected = [
        f"/pause?mode={pause}" if path.startswith("/pause") else path for path in [READY, *UPDATE]
    ]
    assert [path for path, _ in server.taken()] == expected
    transfer.resume()
    assert not server.is_paused
    transfer.destroy()


@pytest.mark.parametrize("path", [*UPDATE, "/resume"])
def test_what_follows_from_a_request_that_fails(
    tmp_path: Path, server: StandIn, other: StandIn, path: str
) -> None:
    transfer = WeightTransfer(
        tmp_path / "chain", wait="applied", servers=[server.url, other.url], timeout=60
    )
    transfer.init_weight_transfer()
    sync(transfer, 0)
    first = server.version
    server.taken()
    server.fails_once, server.tears = {path}, False
    with pytest.raises(dc.IoError, match=r"500.*the engine says why") as raised:
        sync(transfer, 1)
    assert raised.value.file == server.url
    assert path.split("?")[0].split()[0] in str(raised.value)
    # After a request that could have changed the server, the client asks for its state, which the
    # server reports. After a failed finish, the server has the new version. A server whose resume
    # failed stays paused.
    calls = [READY, *UPDATE, "/resume"]
    recovery = RECOVERY if path in UPDATE[2:] else []
    is_loaded, is_paused = path in ("/finish_weight_update", "/resume"), path == "/resume"
    assert [call for call, _ in server.taken()] == [*calls[: calls.index(path) + 1], *recovery]
    assert (server.version == first, server.version == other.version) == (not is_loaded, is_loaded)
    assert (server.is_paused, other.is_paused) == (is_paused, False)
    assert (
        any("stays paused" in note for note in getattr(raised.value, "__notes__", ())) == is_paused
    )
    sync(transfer, 2)
    assert server.version == other.version and server.version.startswith("2@")
    transfer.destroy()


@pytest.mark.parametrize("state", ["torn", "no answer"])
def test_a_server_that_may_hold_two_versions_stays_paused(
    tmp_path: Path, server: StandIn, other: StandIn, state: str
) -> None:
    transfer = WeightTransfer(
        tmp_path / "chain", wait="applied", servers=[server.url, other.url], timeout=60
    )
    transfer.init_weight_transfer()
    sync(transfer, 0)
    server.fails = {"/update_weights"}
    if state == "no answer":

        def seen(call: tuple[str, object]) -> None:
            if call[0] == "/update_weights":
                server.fails.add("/collective_rpc deltachain_state")

        server.seen = seen
    with pytest.raises(dc.IoError, match=r"500.*the engine says why") as raised:
        sync(transfer, 1)
    assert any("stays paused" in note for note in raised.value.__notes__)
    assert (server.is_paused, server.version) == (True, "changing")
    assert (other.is_paused, other.version[:2]) == (False, "1@")
    # The server works again, and the next update includes it.
    server.fails, server.seen = set(), lambda call: None
    sync(transfer, 2)
    assert (server.is_paused, server.version) == (False, other.version)
    transfer.destroy()


def test_a_server_that_cannot_be_paused_is_not_touched(
    tmp_path: Path, server: StandIn, other: StandIn
) -> None:
    transfer = WeightTransfer(
        tmp_path / "chain", wait="applied", servers=[server.url, other.url], timeout=60
    )
    transfer.init_weight_transfer()
    server.fails, other.fails = {"/pause?mode=keep"}, {"/pause?mode=keep"}
    with pytest.raises(dc.IoError, match="/pause: refused") as raised:
        sync(transfer, 0)
    # The error of one server, with a note for the other.
    told = (str(raised.value), *raised.value.__notes__)
    assert [sum(one.url in text for text in told) for one in (server, other)] == [1, 1]
    assert [(one.version, one.holds, one.is_paused) for one in (server, other)] == [
        ("default", "other", False)
    ] * 2
    transfer.destroy()


def test_an_update_that_a_killed_trainer_left_open_is_ended(
    tmp_path: Path, server: StandIn
) -> None:
    # Before and after the version was received.
    for received in (False, True):
        server.restart()
        server.is_open, server.is_paused, server.version = True, True, "changing"
        server.has_received = received
        transfer = WeightTransfer(
            tmp_path / f"chain {received}", wait="applied", servers=[server.url], timeout=60
        )
        transfer.init_weight_transfer()
        sync(transfer, 0)
        assert (server.is_open, server.is_paused, server.version[:2]) == (False, False, "0@")
        transfer.destroy()
        assert server.owner is None


def test_a_request_is_repeated_when_its_connection_breaks(tmp_path: Path, server: StandIn) -> None:
    transfer = WeightTransfer(tmp_path / "chain", wait="applied", servers=[server.url], timeout=60)
    transfer.init_weight_transfer()
    server.breaks = {"/pause?mode=keep", "/resume", "/update_weight_version", "/weight_info"}
    sync(transfer, 0)
    assert (server.is_paused, server.version[:2], server.breaks) == (False, "0@", set())
    # Requests that may have been executed are not repeated: the client asks the workers for their
    # state.
    server.breaks = {"/update_weights"}
    with pytest.raises(dc.IoError, match="asking the server for /update_weights"):
        sync(transfer, 1)
    assert (server.is_paused, server.version[:2]) == (False, "0@")
    sync(transfer, 2)
    transfer.destroy()


def test_a_server_that_another_process_brings_versions_is_left_alone(
    tmp_path: Path, server: StandIn
) -> None:
    server.owner = "gpu-7:/dev/shm/run7"
    transfer = WeightTransfer(tmp_path / "chain", wait="applied", servers=[server.url], timeout=60)
    with pytest.raises(dc.IoError, match="gpu-7:/dev/shm/run7, updates it") as raised:
        transfer.init_weight_transfer()
    assert raised.value.retryable
    # The other owner was killed, so its lease expires.
    server.owner_asks = 1
    sync(transfer, 0)
    server.owner_asks = None
    held = (server.version, server.holds)
    server.owner, _ = "gpu-7:/dev/shm/run7", server.taken()
    with pytest.raises(dc.IoError, match="gpu-7:/dev/shm/run7, updates it"):
        sync(transfer, 1)
    assert [path for path, _ in server.taken()] == [READY, *UPDATE[:1]]
    assert ((server.version, server.holds), server.is_paused) == (held, False)
    transfer.destroy()


@pytest.mark.parametrize(
    "path", ["/collective_rpc deltachain_state", "/init_weight_transfer_engine"]
)
def test_a_server_that_refuses_before_training_is_left_alone(
    tmp_path: Path, server: StandIn, path: str
) -> None:
    transfer = WeightTransfer(tmp_path / "chain", wait="applied", servers=[server.url], timeout=60)
    server.fails_once = {path}
    with pytest.raises(dc.IoError, match="the engine says why"):
        transfer.init_weight_transfer()
    begin = ["/collective_rpc deltachain_state", "/init_weight_transfer_engine"]
    assert [call for call, _ in server.taken()] == begin[: begin.index(path) + 1]
    sync(transfer, 0)
    assert (server.version[:2], server.is_paused) == ("0@", False)
    transfer.destroy()


def test_a_server_that_was_started_again_is_told_of_the_chain_again(
    tmp_path: Path, server: StandIn
) -> None:
    transfer = WeightTransfer(tmp_path / "chain", wait="applied", servers=[server.url], timeout=60)
    transfer.init_weight_transfer()
    sync(transfer, 0)
    server.restart()
    sync(transfer, 1)
    assert (server.version[:2], server.is_paused) == ("1@", False)
    transfer.destroy()


def test_a_server_that_is_not_there_is_an_error_before_training_begins(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    # The port is closed.
    transfer = WeightTransfer(
        tmp_path / "chain", wait="applied", servers=[f"http://127.0.0.1:{port}"], timeout=0.01
    )
    with pytest.raises(dc.TimeoutError, match="does not answer"):
        transfer.init_weight_transfer()
    transfer.destroy()


def test_what_is_not_sent_is_that_of_the_checkpoint(tmp_path: Path) -> None:
    like = write_model(tmp_path / "like" / "model.safetensors", model(0)).parent
    sent = {name: tensor for name, tensor in tensors(1).items() if name != "c.quantised"}
    strict = WeightTransfer(tmp_path / "strict", like=like)
    with pytest.raises(dc.UsageError, match=r"1 missing: c\.quantised"):
        strict.send_weights(iter(sent.items()))
    strict.destroy()
    for path in (like, like / "model.safetensors"):
        url = tmp_path / f"chain of {path.name}"
        transfer = WeightTransfer(url, like=dc.Like(path, fill=True))
        transfer.send_weights((f"module.{name}", tensor) for name, tensor in sent.items())
        transfer.destroy()
        with dc.Subscriber(url, kind="deltachain") as subscriber:
            subscriber.prepare().apply()
            found = {name: bytes(tensor.data) for name, tensor in subscriber.state()}
        expected = {name: data for name, (_, _, data) in model(1).items()}
        expected["c.quantised"] = model(0)["c.quantised"][2]
        assert found == expected


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"wait": "sent"}, "not 'sent'"),
        ({"wait": "staged"}, "host_copies"),
        ({"wait": "applied"}, "servers"),
        ({"servers": ["http://127.0.0.1:1"]}, "wait='applied'"),
        ({"host_copies": ["somewhere"]}, "wait='staged'"),
        ({"backend": {"mode": "sparse"}}, "servers"),
        ({"pause": "wait"}, "servers"),
        (
            {"wait": "applied", "servers": ["http://127.0.0.1:1"], "pause": "hard"},
            "'keep', 'wait' or 'abort', not 'hard'",
        ),
        ({"group": object()}, "group"),
    ],
)
def test_settings_that_contradict_each_other(
    tmp_path: Path, settings: dict[str, object], text: str
) -> None:
    with pytest.raises(dc.UsageError, match=text):
        WeightTransfer(tmp_path / "chain", **settings)
    assert not (tmp_path / "chain").exists()
