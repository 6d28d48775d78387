"""Verifies the signatures of the card at a URL by a public key (PEM) with the official Python client of A2A 0.3.

Takes the URL, the key and the algorithm as its arguments.
"""

from __future__ import annotations

import asyncio
import sys

import httpx
from a2a.client import A2ACardResolver
from a2a.utils.signing import SignatureVerificationError, create_signature_verifier


async def main(url: str, key: str, algorithm: str) -> None:
    verifier = create_signature_verifier(lambda kid, jku: key, [algorithm])
    base, _, path = url.partition("/.well-known/")
    async with httpx.AsyncClient() as http:
        try:
            await A2ACardResolver(http, base, f"/.well-known/{path}").get_agent_card(signature_verifier=verifier)
        except SignatureVerificationError as error:
            print(error)
        else:
            print("verified")


asyncio.run(main(*sys.argv[1:]))
