"""Agent cards: what is read of them, and what is believed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cstp_grpc.common.version import VERSION
from cstp_grpc.contract import errors
from cstp_grpc.contract.card_keys import PublicKey, read_public_keys
from cstp_grpc.contract.enums import PeerStatus
from cstp_grpc.contract.errors import CstpError, InvalidArgument, ServerUnreachable
from cstp_grpc.modules.federation.agent_card import InvalidAgentCard, PeerCard, UntrustedCard, read_card
from cstp_grpc.modules.federation.response_validation import MAX_PEER_RESPONSE_BYTES
from tests.certificates import Certificate
from tests.client.scripted import HttpReply, http_server, scripted_server
from tests.harness import bridging, running, settings
from tests.modules.federation.client.servers import (
    ANSWER,
    RESULT,
    SECONDS,
    SOON,
    Pages,
    ask,
    http,
    pages,
    peer_at,
    saying,
    silent_server,
    tcp_server,
)
from tests.signing_keys import Private, make_key, public_pem, sign_card

PATH = "/card.json"


@pytest.fixture
def host() -> Iterator[Pages]:
    """A host of agent cards."""
    with pages() as found:
        yield found


def card(**params: Any) -> dict[str, Any]:
    """Return a card of A2A 1.0 with our extension."""
    extension = {"uri": "urn:cstp:extension:v1", "params": params}
    extensions = [{"uri": "urn:other", "params": {"grpcTarget": "127.0.0.1:9"}}, extension]
    return {"name": "emerson", "version": "2.1", "description": "Decides.", "capabilities": {"extensions": extensions}}


def read(url: str, token: str | None = None, seconds: float = SECONDS) -> PeerCard:
    return read_card(url, token, None, seconds)


@pytest.mark.parametrize("path", ["/.well-known/agent-card.json", "/.well-known/agent.json"])
def test_the_cards_of_a_real_server_say_where_it_is(tmp_path: Path, path: str) -> None:
    wanted = settings(tmp_path, agent={"name": "emerson", "description": "Décisions"})
    with running(wanted) as app, bridging(wanted, app.target) as url:
        found = read(url + path)
    assert (found.name, found.version, found.description) == ("emerson", VERSION, "Décisions")
    assert found.grpc_target == f"grpc://{app.target}"
    assert found.jsonrpc_url == f"{url}/cstp"


def test_a_card_names_addresses_in_the_params_of_our_extension(host: Pages) -> None:
    url = host.put(PATH, card(grpcTarget="127.0.0.1:50051", endpoint="http://127.0.0.1:8100/cstp"))
    expected = PeerCard("emerson", "2.1", "grpc://127.0.0.1:50051", "http://127.0.0.1:8100/cstp", "Decides.")
    assert read(url) == expected


def test_the_card_of_the_design_names_its_bridge(host: Pages) -> None:
    design = {"name": "emerson", "url": host.url, "capabilities": {"cstp": {"version": "1.0", "methods": []}}}
    assert read(host.put(PATH, design)) == PeerCard("emerson", "", None, f"{host.url}/cstp", "")


def test_a_card_is_asked_for_with_the_token_and_the_query(host: Pages) -> None:
    url = host.put(f"{PATH}?agent=emerson", card(grpcTarget="127.0.0.1:1"))
    assert read(url, "secret-1").grpc_target == "grpc://127.0.0.1:1"
    ((path, headers),) = host.asked
    assert path == f"{PATH}?agent=emerson"
    assert headers["authorization"] == "Bearer secret-1"


@pytest.mark.parametrize(
    ("params", "target", "url"),
    [
        ({"grpcTarget": "grpcs://127.0.0.1:1"}, "grpcs://127.0.0.1:1", None),
        ({"grpcTarget": "127.0.0.1:1", "endpoint": "http://10.0.0.1/cstp"}, "grpc://127.0.0.1:1", None),
        ({"grpcTarget": "10.0.0.1:1", "endpoint": "https://127.0.0.1/cstp"}, None, "https://127.0.0.1/cstp"),
        ({"grpcTarget": 7, "endpoint": "http://127.0.0.1/cstp"}, None, "http://127.0.0.1/cstp"),
        ({"grpcTarget": "http://127.0.0.1:1", "endpoint": "http://127.0.0.1"}, None, "http://127.0.0.1/cstp"),
        ({"grpcTarget": "[127.0.0.1:1", "endpoint": "http://127.0.0.1"}, None, "http://127.0.0.1/cstp"),
    ],
)
def test_only_addresses_on_the_host_of_the_card_are_believed(
    host: Pages, params: dict[str, Any], target: str | None, url: str | None
) -> None:
    found = read(host.put(PATH, card(**params)))
    assert (found.grpc_target, found.jsonrpc_url) == (target, url)


def keys_of(*keys: Private) -> list[PublicKey]:
    return read_public_keys("".join(map(public_pem, keys)).encode())


def test_a_card_that_is_signed_by_the_right_key_is_believed(host: Pages) -> None:
    key, other = make_key(), make_key()
    content = sign_card(card(grpcTarget="127.0.0.1:50051"), key)
    url = host.put(PATH, content)
    for keys in (keys_of(key), keys_of(other, key)):
        found = read_card(url, "secret-1", None, SECONDS, card_keys=keys)
        assert (found.name, found.grpc_target) == ("emerson", "grpc://127.0.0.1:50051")
    # The token is for the one who has the key, which nobody has shown yet.
    assert all("authorization" not in headers for _, headers in host.asked)


def forged(key: Private) -> dict[str, Any]:
    """Return cards that are not signed by a key as they stand."""
    content = card(grpcTarget="127.0.0.1:50051")
    signed = sign_card(content, key)
    [signature] = signed["signatures"]
    protected, payload = signature["protected"], signature["signature"]
    return {
        "unsigned": content,
        "no signatures": {**content, "signatures": []},
        "another key": sign_card(content, make_key()),
        "another address": {**card(grpcTarget="127.0.0.1:1"), "signatures": signed["signatures"]},
        "another name": {**signed, "name": "evil"},
        "odd signatures": {**content, "signatures": [7, {}, {"protected": 1, "signature": []}, None]},
        "signatures of an odd type": {**content, "signatures": {"protected": protected}},
        "several parts": {**content, "signatures": [{"protected": f"{protected}.x", "signature": payload}]},
        "no algorithm": {**content, "signatures": [{"protected": "eyJhbGciOiJub25lIn0", "signature": payload}]},
        "cut": {**content, "signatures": [{"protected": protected, "signature": payload[:-4]}]},
        "nothing but signatures": {"signatures": signed["signatures"]},
    }


@pytest.mark.parametrize("kind", forged(make_key()))
def test_any_other_card_is_refused_where_a_key_is_demanded(host: Pages, kind: str) -> None:
    key = make_key()
    url = host.put(PATH, forged(key)[kind])
    with pytest.raises(UntrustedCard, match="signed"):
        read_card(url, None, None, SECONDS, card_keys=keys_of(key))


def test_what_the_signature_does_not_cover_is_not_believed(host: Pages) -> None:
    key = make_key()
    interface = {"url": "http://127.0.0.1/a2a", "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}
    signed = sign_card({**card(grpcTarget="127.0.0.1:50051"), "supportedInterfaces": [interface]}, key)
    signed["capabilities"]["cstp"] = {"version": "1.0", "methods": []}
    found = read_card(
        host.put(PATH, {**signed, "url": f"{host.url}/evil"}), None, None, SECONDS, card_keys=keys_of(key)
    )
    assert (found.grpc_target, found.jsonrpc_url) == ("grpc://127.0.0.1:50051", None)


NO_CARDS: dict[str, Any] = {
    "no JSON": b"hello",
    "no object": [],
    "deeply nested": b"[" * 200_000,
    "nothing of CSTP": {"name": "other", "url": "http://127.0.0.1/", "capabilities": {}},
    "no params": {"capabilities": {"extensions": [{"uri": "urn:cstp:extension:v1"}]}},
    "odd types": {"capabilities": {"extensions": "x", "cstp": 7}},
    "odd extensions": {"capabilities": {"extensions": [7, {"uri": [], "params": 1}]}},
    "another host": card(grpcTarget="10.0.0.1:1", endpoint="http://10.0.0.1/cstp"),
    "a user": card(endpoint="http://user:secret@127.0.0.1/cstp"),
    "another scheme": card(endpoint="file:///etc/passwd"),
    "no port": card(endpoint="http://127.0.0.1:99999/cstp"),
    "too large": b" " * (MAX_PEER_RESPONSE_BYTES + 1),
}


@pytest.mark.parametrize("content", NO_CARDS.values(), ids=NO_CARDS)
def test_what_names_no_usable_address_is_no_card(host: Pages, content: Any) -> None:
    url = host.put(PATH, content)
    with pytest.raises(InvalidAgentCard) as refused:
        read(url)
    assert "secret" not in refused.value.message
    with peer_at(url) as peer:
        assert ask(peer).status is PeerStatus.NOT_UNDERSTOOD


def test_what_came_by_tls_names_nothing_less_secure(certificate: Certificate) -> None:
    with pages(certificate) as secure:
        cards = [
            card(grpcTarget="localhost:1", endpoint="https://localhost/cstp"),
            card(grpcTarget="grpcs://localhost:1", endpoint="http://localhost/cstp"),
        ]
        urls = [secure.put(f"/{number}.json", content) for number, content in enumerate(cards)]
        found = [read_card(url, None, certificate.authority, SECONDS) for url in urls]
        with pytest.raises(ServerUnreachable):
            read(urls[0])
    assert [(one.grpc_target, one.jsonrpc_url) for one in found] == [
        (None, "https://localhost/cstp"),
        ("grpcs://localhost:1", None),
    ]


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (301, InvalidAgentCard),
        (404, InvalidAgentCard),
        (401, errors.AuthenticationRequired),
        (403, errors.PermissionDenied),
        (503, errors.Unavailable),
    ],
)
def test_an_answer_without_a_card_says_why(host: Pages, status: int, error: type[CstpError]) -> None:
    elsewhere = host.put("/elsewhere.json", card(grpcTarget="127.0.0.1:1"))
    url = host.put(PATH, {}, status, {"location": elsewhere})
    with pytest.raises(error, match=f"HTTP {status}"):
        read(url)
    assert [path for path, _ in host.asked] == [PATH]


def test_a_host_that_is_silent_gone_or_garbled_has_no_card() -> None:
    with silent_server() as address, pytest.raises(errors.DeadlineExceeded):
        read(f"http://{address}/card.json", seconds=SOON)
    with pytest.raises(ServerUnreachable):
        read("http://127.0.0.1:1/card.json")
    with tcp_server(saying(b"hello")) as address, pytest.raises(InvalidAgentCard):
        read(f"http://{address}/card.json")
    with tcp_server(saying(http(b"{}"))) as address, pytest.raises(InvalidAgentCard):
        read(f"http://{address}/card.json")


@pytest.mark.parametrize("url", ["grpc://host:1/card.json", "http://host/card", "http:///card.json", "card.json"])
def test_what_cannot_be_the_address_of_a_card_is_refused(url: str) -> None:
    with pytest.raises(InvalidArgument):
        read(url)


def test_a_card_is_read_at_first_use_and_then_remembered(host: Pages) -> None:
    with scripted_server(ANSWER) as server:
        url = host.put(PATH, card(grpcTarget=server.target))
        with peer_at(url) as peer:
            assert not host.asked
            assert [ask(peer).status for _ in range(3)] == [PeerStatus.ANSWERED] * 3
    assert len(host.asked) == 1


def test_a_card_is_read_again_after_some_minutes_and_its_absence_then_forgiven(host: Pages) -> None:
    now = [1000.0]
    with scripted_server(ANSWER) as server:
        url = host.put(PATH, card(grpcTarget=server.target))
        with peer_at(url, clock=lambda: now[0]) as peer:
            assert ask(peer).status is PeerStatus.ANSWERED
            now[0] += 3600
            assert ask(peer).status is PeerStatus.ANSWERED
            assert len(host.asked) == 2
            now[0] += 3600
            host.put(PATH, b"", 503)
            assert ask(peer).status is PeerStatus.ANSWERED
            assert len(host.asked) == 3


@pytest.mark.parametrize("kind", ["unsigned", "another key"])
def test_a_card_that_is_no_longer_signed_is_not_forgiven(host: Pages, kind: str) -> None:
    now, key = [1000.0], make_key()
    with scripted_server(ANSWER) as server:
        content = card(grpcTarget=server.target)
        url = host.put(PATH, sign_card(content, key))
        with peer_at(url, clock=lambda: now[0], card_keys=keys_of(key)) as peer:
            assert ask(peer).status is PeerStatus.ANSWERED
            now[0] += 3600
            host.put(PATH, content if kind == "unsigned" else sign_card(content, make_key()))
            for _ in range(2):
                result = ask(peer)
                assert result.status is PeerStatus.NOT_UNDERSTOOD
                assert result.error is not None
                assert "signed" in result.error.message
            host.put(PATH, sign_card(content, key))
            assert ask(peer).status is PeerStatus.ANSWERED


@pytest.mark.parametrize("url", ["grpc://127.0.0.1:1", "https://127.0.0.1:1/cstp", "127.0.0.1:1"])
def test_a_key_demands_the_address_of_a_card(url: str) -> None:
    with pytest.raises(InvalidArgument) as refused, peer_at(url, card_keys=keys_of(make_key())):
        pytest.fail("it was opened")
    assert [violation.field for violation in refused.value.violations] == ["card_keys"]


def test_a_peer_that_moved_is_found_after_a_failure(host: Pages) -> None:
    reply = HttpReply(
        lambda call: {"jsonrpc": "2.0", "id": call["id"], "result": RESULT},
        headers={"content-type": "application/json"},
    )
    with http_server(reply) as moved, peer_at(host.url + PATH) as peer:
        with scripted_server(ANSWER) as server:
            host.put(PATH, card(grpcTarget=server.target))
            assert ask(peer).status is PeerStatus.ANSWERED
        host.put(PATH, card(endpoint=moved.url))
        assert ask(peer).status is PeerStatus.UNREACHABLE
        assert ask(peer).status is PeerStatus.ANSWERED


def test_a_card_that_was_not_there_is_asked_for_again(host: Pages) -> None:
    with scripted_server(ANSWER) as server, peer_at(host.url + PATH) as peer:
        assert ask(peer).status is PeerStatus.NOT_UNDERSTOOD
        host.put(PATH, b"", 503)
        assert ask(peer).status is PeerStatus.UNREACHABLE
        host.put(PATH, b"", 401)
        assert ask(peer).status is PeerStatus.REFUSED
        host.put(PATH, card(grpcTarget=server.target))
        assert ask(peer).status is PeerStatus.ANSWERED
