"""To which addresses is connected."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from cstp_grpc.client.http_client import AddressNotAllowed, PinnedAddressDialer, is_public
from tests.named_case import named_case

LOOPBACK = "127.0.0.1"


@pytest.mark.parametrize(
    "address",
    [
        "93.184.215.14",
        "8.8.8.8",
        "2606:4700:4700::1111",
        "::ffff:8.8.8.8",
        "64:ff9b::808:808",
        "2002:808:808::1",
    ],
)
def test_addresses_of_the_internet_are_public(address: str) -> None:
    assert is_public(address)


def test_all_others_are_not() -> None:
    for address in [
        "127.0.0.1",
        "127.8.8.8",
        "0.0.0.0",
        "0.1.2.3",
        "10.0.0.1",
        "172.16.0.1",
        "172.31.255.255",
        "192.168.1.1",
        "169.254.169.254",
        "169.254.0.1",
        "100.64.0.1",
        "100.127.255.255",
        "192.0.0.1",
        "192.0.0.192",
        "192.88.99.1",
        "168.63.129.16",
        "192.0.2.1",
        "198.18.0.1",
        "198.51.100.1",
        "203.0.113.1",
        "224.0.0.1",
        "239.255.255.255",
        "240.0.0.1",
        "255.255.255.255",
        "::",
        "::1",
        "::7f00:1",
        "fe80::1",
        "fe80::1%eth0",
        "fec0::1",
        "fc00::1",
        "fd00:ec2::254",
        "ff02::1",
        "2001:db8::1",
        "3fff::1",
        "::ffff:192.0.0.192",
        "2001::1",
        "100::1",
        "::ffff:127.0.0.1",
        "::ffff:10.0.0.1",
        "::ffff:169.254.169.254",
        "64:ff9b::7f00:1",
        "64:ff9b::a9fe:a9fe",
        "64:ff9b:1::1",
        "2002:7f00:1::",
        "2002:a00:1::1",
        "2002:6440:1::1",
        "localhost",
        "",
    ]:
        with named_case(address):
            assert not is_public(address)


class Resolver:
    """Answers each time with the next of some lists of addresses."""

    def __init__(self, *answers: list[str]) -> None:
        self.answers = list(answers)
        self.asked: list[str] = []

    def __call__(self, host: str, port: int, **_: Any) -> list[tuple[Any, ...]]:
        self.asked.append(host)
        kind = (socket.SOCK_STREAM, socket.IPPROTO_TCP, "")
        return [(socket.AF_INET, *kind, (address, port)) for address in self.answers.pop(0)]


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server((LOOPBACK, 0)) as server:
        yield server


def port_of(listener: socket.socket) -> int:
    port: int = listener.getsockname()[1]
    return port


def test_a_host_is_connected_to_where_all_its_addresses_are_permitted(listener: socket.socket) -> None:
    dial = PinnedAddressDialer(lambda address: address == LOOPBACK, Resolver([LOOPBACK]))
    with closing(dial(("agents.example.com", port_of(listener)), 5.0)) as connection:
        assert connection.getpeername() == listener.getsockname()


@pytest.mark.parametrize("found", [[LOOPBACK, "10.0.0.1"], ["10.0.0.1", LOOPBACK], ["10.0.0.1"]])
def test_one_address_that_is_not_permitted_refuses_the_host(listener: socket.socket, found: list[str]) -> None:
    dial = PinnedAddressDialer(lambda address: address == LOOPBACK, Resolver(found))
    listener.settimeout(0)
    with pytest.raises(AddressNotAllowed, match=r"agents.example.com is at 10\.0\.0\.1"):
        dial(("agents.example.com", port_of(listener)), 5.0)
    with pytest.raises(BlockingIOError):
        listener.accept()


def test_a_name_that_changes_its_address_is_connected_to_where_it_was_judged(listener: socket.socket) -> None:
    resolver = Resolver([LOOPBACK], ["127.0.0.2"])
    dial = PinnedAddressDialer(lambda address: address == LOOPBACK, resolver)
    with closing(dial(("rebinding.example", port_of(listener)), 5.0)) as connection:
        assert connection.getpeername()[0] == LOOPBACK
    assert resolver.asked == ["rebinding.example"]
    with pytest.raises(AddressNotAllowed, match=r"127\.0\.0\.2"):
        dial(("rebinding.example", port_of(listener)), 5.0)


def test_addresses_are_tried_one_after_the_other(listener: socket.socket, free_port: int) -> None:
    class Refusing(Resolver):
        def __call__(self, host: str, port: int, **named: Any) -> list[tuple[Any, ...]]:
            nobody, there = super().__call__(host, port, **named)
            return [(*nobody[:4], (LOOPBACK, free_port)), there]

    dial = PinnedAddressDialer(lambda _: True, Refusing([LOOPBACK, LOOPBACK]))
    with closing(dial(("agents.example.com", port_of(listener)), 5.0)) as connection:
        assert connection.getpeername() == listener.getsockname()


def test_a_host_where_nobody_listens_or_that_is_nowhere_is_an_error(free_port: int) -> None:
    with pytest.raises(ConnectionRefusedError):
        PinnedAddressDialer(lambda _: True, Resolver([LOOPBACK]))(("agents.example.com", free_port), 5.0)
    with pytest.raises(OSError, match="has no address"):
        PinnedAddressDialer(lambda _: True, Resolver([]))(("agents.example.com", free_port), 5.0)


@pytest.mark.parametrize("host", [LOOPBACK, "localhost", "2130706433", "0x7f.1", "0177.0.0.1", "0"])
def test_this_machine_is_refused_by_all_its_names(listener: socket.socket, host: str) -> None:
    with pytest.raises(AddressNotAllowed):
        PinnedAddressDialer()((host, port_of(listener)), 5.0)
