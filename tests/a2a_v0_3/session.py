"""A session with the official Python client of A2A 0.3, which runs beside no later one.

Takes the URL of the agent as its argument and the token as A2A_TOKEN. Finds the agent by its card, sends it a text and
prints what came of it as JSON.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys

import httpx
from a2a.client import A2ACardResolver, ClientConfig, ClientFactory
from a2a.client.helpers import create_text_message_object


async def main(url: str) -> None:
    async with httpx.AsyncClient() as anonymous:
        card = await A2ACardResolver(anonymous, url).get_agent_card()
    async with httpx.AsyncClient(headers={"Authorization": f"Bearer {os.environ['A2A_TOKEN']}"}) as http:
        client = await ClientFactory.connect(url, ClientConfig(httpx_client=http, streaming=False))
        async for task, _ in client.send_message(create_text_message_object(content="Refactor the parser")):
            state = task.status.state.value
        extended = await client.get_card()
    found = {
        "version": card.protocol_version,
        "url": card.url,
        "state": state,
        "skills": [skill.id for skill in card.skills],
        "extended": [skill.id for skill in extended.skills],
    }
    print(json.dumps(found))


asyncio.run(main(sys.argv[1]))
