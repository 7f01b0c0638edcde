"""What TRL calls to bring weights to servers, without TRL: whom it waits for, and what becomes of errors."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import model, write_model
from stalling_store import StallingStore
from stand_in import StandIn
from test_publisher import assert_version, tensors

import deltachain as dc
from deltachain.trl import WeightTransfer


@pytest.fixture
def server() -> Iterator[StandIn]:
    with StandIn() as running:
        yield running


@pytest.fixture
def other() -> Iterator[StandIn]:
    with StandIn() as running:
        yield running


def sync(transfer: WeightTransfer, step: int) -> None:
    """As TRL does it."""
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
        transfer = WeightTransfer("s3://bucket/chain", storage_options=store.storage_options)
        sync(transfer, 0)
        # The sync has ended, and the first upload has not.
        assert store.stands.wait(60)
        assert not [name for name in store.objects if "/commits/" in name]
        store.stall = 0
        store.left.set()
        transfer.destroy()
        assert [name for name in store.objects if "/commits/" in name]
    assert transfer.last is not None and transfer.last.version == 0


def broken(url: Path) -> None:
    """Makes the chain a place where nothing can be stored."""
    (url / "files").rename(url / "files elsewhere")
    (url / "files").write_text("not a directory")


def test_a_store_that_fails_is_an_error_of_the_next_sync_and_of_the_end(tmp_path: Path) -> None:
    url = tmp_path / "chain"
    transfer = WeightTransfer(url, attempts=1)
    transfer.init_weight_transfer()
    sync(transfer, 0)
    assert_version(url, 0, 0)
    broken(url)
    sync(transfer, 1)
    with pytest.raises(dc.Error, match="files"):
        sync(transfer, 2)
    # It was raised, and the step after it is tried anew.
    sync(transfer, 3)
    with pytest.raises(dc.Error, match="files"):
        transfer.destroy()
    assert transfer.last is not None and transfer.last.version == 0
    # The store is there again, and so is the chain.
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
        # A few lanes, not a whole model again.
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
    transfer = WeightTransfer(tmp_path / "chain", wait="staged", host_copies=[tmp_path / "copy"], timeout=0)
    with pytest.raises(dc.TimeoutError, match="version 0 was published, but a host copy has no version yet") as raised:
        sync(transfer, 0)
    assert raised.value.file == str(tmp_path / "copy")
    with dc.Subscriber(tmp_path / "chain", host_copy=tmp_path / "copy") as subscriber:
        subscriber.prepare().apply()
    with pytest.raises(dc.TimeoutError, match="version 1 was published, but a host copy is at version 0"):
        sync(transfer, 1)
    transfer.destroy()


def test_servers_are_paused_when_the_version_is_there(tmp_path: Path, server: StandIn, other: StandIn) -> None:
    url = tmp_path / "chain"
    both = [server, other]
    transfer = WeightTransfer(
        url, wait="applied", servers=[f"{one.url}/" for one in both], backend={"mode": "sparse"}, timeout=60
    )
    transfer.init_weight_transfer()
    for one in both:
        told = {"init_info": {"chain": str(url), "host_copy": None, "mode": "sparse"}}
        assert one.taken() == [("/init_weight_transfer_engine", told), ("/weight_info", None)]
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
        for one in both:
            assert one.taken() == [
                ("/weight_info", None),
                ("/pause?mode=keep", None),
                ("/start_weight_update", {}),
                ("/update_weights", {"update_info": {"version": step, "digest": digest}}),
                ("/finish_weight_update", {"weight_version": str(step)}),
            ]
        transfer.resume()
        assert [one.taken() for one in both] == [[("/resume", None)]] * 2
    # They stood still when there was something to take, and not before.
    assert paused_at == [0, 1]
    transfer.destroy()
    assert_version(url, None, 1)


@pytest.mark.parametrize("path", ["/start_weight_update", "/update_weights", "/finish_weight_update"])
def test_a_server_that_fails_stays_paused_and_others_go_on(
    tmp_path: Path, server: StandIn, other: StandIn, path: str
) -> None:
    transfer = WeightTransfer(tmp_path / "chain", wait="applied", servers=[server.url, other.url], timeout=60)
    transfer.init_weight_transfer()
    sync(transfer, 0)
    server.fails = {path}
    with pytest.raises(dc.IoError, match=r"500.*the engine says why") as raised:
        sync(transfer, 1)
    assert raised.value.file == server.url
    assert path in str(raised.value)
    assert any("stays paused" in note for note in raised.value.__notes__)
    assert server.taken()[-1][0] == "/finish_weight_update"
    assert other.taken()[-1] == ("/resume", None)
    assert (server.version, other.version) == ("0", "1")
    # It is well again, and the next update brings it back.
    server.fails = set()
    sync(transfer, 2)
    assert server.taken()[-1] == ("/resume", None)
    assert (server.version, other.version) == ("2", "2")
    transfer.destroy()


def test_a_server_that_cannot_be_paused_is_not_touched(tmp_path: Path, server: StandIn, other: StandIn) -> None:
    transfer = WeightTransfer(tmp_path / "chain", wait="applied", servers=[server.url, other.url], timeout=60)
    transfer.init_weight_transfer()
    server.fails, other.fails = {"/pause?mode=keep"}, {"/pause?mode=keep"}
    with pytest.raises(dc.IoError, match="refused /pause") as raised:
        sync(transfer, 0)
    # The error of one, and what the other said.
    assert {raised.value.file} | {note.split()[1] for note in raised.value.__notes__} == {server.url, other.url}
    assert [server.calls[-1][0], other.calls[-1][0]] == ["/pause?mode=keep"] * 2
    transfer.destroy()


def test_a_server_that_was_started_again_is_told_of_the_chain_again(tmp_path: Path, server: StandIn) -> None:
    transfer = WeightTransfer(tmp_path / "chain", wait="applied", servers=[server.url], timeout=60)
    transfer.init_weight_transfer()
    sync(transfer, 0)
    server.version = "default"
    server.taken()
    sync(transfer, 1)
    assert [path for path, _ in server.taken()][:4] == [
        "/weight_info",
        "/init_weight_transfer_engine",
        "/weight_info",
        "/pause?mode=keep",
    ]
    transfer.destroy()


def test_a_server_that_is_not_there_is_an_error_before_training_begins(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    # Nobody listens any more.
    transfer = WeightTransfer(tmp_path / "chain", wait="applied", servers=[f"http://127.0.0.1:{port}"], timeout=0.01)
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
        transfer = WeightTransfer(url, like=path, frozen_from_like=True)
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
        ({"group": object()}, "group"),
        ({"frozen_from_like": True}, "needs like="),
    ],
)
def test_settings_that_contradict_each_other(tmp_path: Path, settings: dict[str, object], text: str) -> None:
    with pytest.raises(dc.UsageError, match=text):
        WeightTransfer(tmp_path / "chain", **settings)
    assert not (tmp_path / "chain").exists()
