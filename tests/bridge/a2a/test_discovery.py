"""Both generations of the official clients find the agent by its URL, with nothing added but the token of calls."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from a2a.client import A2ACardResolver, ClientConfig, create_client
from a2a.helpers import new_text_message
from a2a.types.a2a_pb2 import GetExtendedAgentCardRequest, Role, SendMessageRequest, TaskState

from tests.bridge.a2a.products import Product
from tests.bridge.a2a.sdks import INSTALL_SECONDS, SESSION_SECONDS, plain_http, run_command, run_python_v0_3
from tests.harness import TOKENS, Peers

pytestmark = pytest.mark.timeout(2 * (INSTALL_SECONDS + SESSION_SECONDS))


@pytest.fixture(scope="module")
def js_report(js_sdk: Path, product: Product) -> dict[str, Any]:
    session = run_command(
        ("node", "discovery.mjs"), js_sdk, SESSION_SECONDS, A2A_URL=product.bridges[0].url, A2A_TOKEN=TOKENS["alice"]
    )
    assert session.returncode == 0, session.stderr
    found: dict[str, Any] = json.loads(session.stdout)
    return found


def test_the_python_client_of_1_0_finds_the_agent(peers: Peers) -> None:
    async def session() -> tuple[list[str], list[str], str]:
        # Other than the client itself, its resolver alone names no version.
        async with plain_http() as anonymous:
            card = await A2ACardResolver(anonymous, peers.url).get_agent_card()
        async with plain_http(headers={"Authorization": f"Bearer {TOKENS['alice']}"}) as http:
            client = await create_client(peers.url, ClientConfig(httpx_client=http, streaming=False))
            message = new_text_message("Refactor the parser", role=Role.ROLE_USER)
            answers = [answer async for answer in client.send_message(SendMessageRequest(message=message))]
            extended = await client.get_extended_agent_card(GetExtendedAgentCardRequest())
        versions = {interface.protocol_version for interface in card.supported_interfaces}
        assert versions == {"1.0", "0.3"}
        state = TaskState.Name(answers[-1].task.status.state)
        return [skill.id for skill in card.skills], [skill.id for skill in extended.skills], state

    skills, extended, state = asyncio.run(session())
    assert "cstp.announceIntent" in skills
    assert "cstp.announceIntent" in extended
    assert state == "TASK_STATE_COMPLETED"


def test_the_python_client_of_0_3_finds_the_agent(python_sdk_v0_3: Path, peers: Peers) -> None:
    found = json.loads(run_python_v0_3(python_sdk_v0_3, "session.py", peers.url, A2A_TOKEN=TOKENS["alice"]))
    assert (found["version"], found["url"], found["state"]) == ("0.3.0", peers.url, "completed")
    assert "cstp.announceIntent" in found["skills"]
    assert "cstp.announceIntent" in found["extended"]


@pytest.mark.parametrize(("version", "state"), [("1.0", "TASK_STATE_COMPLETED"), ("0.3", "completed")])
def test_the_javascript_clients_find_the_agent(js_report: dict[str, Any], version: str, state: str) -> None:
    found = js_report[version]
    assert found["state"] == state
    assert "cstp.announceIntent" in found["skills"]
    assert "cstp.announceIntent" in found["extended"]
