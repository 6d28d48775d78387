"""Verifies the signatures of cards by public keys (PEM) with the official Python client of A2A 0.3.

Takes the algorithm, and pairs of a URL and a key as JSON; prints a line for each pair.
"""

from __future__ import annotations

import asyncio
import json
import sys

import httpx
from a2a.client import A2ACardResolver
from a2a.utils.signing import SignatureVerificationError, create_signature_verifier


async def verify(url: str, key: str, algorithm: str) -> None:
    verifier = create_signature_verifier(lambda kid, jku: key, [algorithm])
    base, _, path = url.partition("/.well-known/")
    async with httpx.AsyncClient() as http:
        try:
            await A2ACardResolver(http, base, f"/.well-known/{path}").get_agent_card(signature_verifier=verifier)
        except SignatureVerificationError as error:
            print(error)
        else:
            print("verified")


async def main(algorithm: str, cards: str) -> None:
    for url, key in json.loads(cards):
        await verify(url, key, algorithm)


asyncio.run(main(*sys.argv[1:]))
