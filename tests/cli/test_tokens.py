"""token: making, listing, rotating and revoking."""

from __future__ import annotations

import pytest

from cstp_grpc.client import CstpClient
from cstp_grpc.contract.errors import AuthenticationRequired
from tests.cli.conftest import Server


def test_the_secret_alone_is_on_standard_output(server: Server) -> None:
    made = server("token", "create", "deployer", "--permission", "query", "--permission", "check", "--note", "Night")
    assert made.exit_code == 0, made.output
    (secret,) = made.stdout.splitlines()
    assert "is made for deployer: check, query, until 20" in made.stderr
    assert secret not in made.stderr
    with CstpClient(server.app.target, secret) as client:
        assert client.get_access().requesting_agent == "deployer"
    listed = server.ok("token", "list")
    assert "deployer: Night" in listed
    assert "usable" in listed
    assert secret not in listed


def test_a_token_is_rotated_and_revoked(server: Server) -> None:
    former = server.json("token", "create", "deployer")
    assert former["token"]["permissions"] == ["check", "query"]
    made = server.json("token", "rotate", former["token"]["id"], "--keep", "0s")
    for secret, accepted in ((former["secret"], False), (made["secret"], True)):
        with CstpClient(server.app.target, secret) as client:
            if accepted:
                client.get_access()
            else:
                with pytest.raises(AuthenticationRequired):
                    client.get_access()
    token_id = made["token"]["id"]
    assert server.ok("token", "revoke", token_id) == f"{token_id} of deployer is revoked.\n"
    assert server.ok("token", "list", "--of", "deployer") == "No matching tokens.\n"
    assert {each["id"] for each in server.json("token", "list", "--all")["tokens"]} == {
        former["token"]["id"],
        token_id,
    }


@pytest.mark.parametrize("keep", ["1", "h", "-1h", "1w", "１h"])
def test_a_duration_has_a_unit(server: Server, keep: str) -> None:
    refused = server("token", "rotate", "tok-1", "--keep", keep)
    assert refused.exit_code == 2
    assert "is not a duration like 90s, 15m, 1h or 2d" in refused.stderr


@pytest.mark.parametrize("keep", ["31d", "999999999d", "9" * 5000 + "s"])
def test_a_duration_is_at_most_thirty_days(server: Server, keep: str) -> None:
    refused = server("token", "rotate", "tok-1", "--keep", keep)
    assert refused.exit_code == 2
    assert "is longer than 30d" in refused.stderr


def test_too_many_tokens_are_no_matter_of_ids(server: Server) -> None:
    for _ in range(20):
        server.json("token", "create", "crowded")
    refused = server("token", "create", "crowded")
    assert refused.exit_code == 1
    assert refused.stderr == "Error: crowded has 20 tokens that can be used; revoke one first\n"


def test_it_needs_the_permission_admin(server: Server) -> None:
    refused = server("token", "create", "deployer", agent="reader")
    assert refused.exit_code == 1
    assert "admin" in refused.stderr
