"""Downloads that are passed on as they arrive: exports of the audit trail, and evidence."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any, Final

from fastapi import FastAPI, Request
from fastapi.responses import PlainTextResponse, Response, StreamingResponse

from console.texts import parse_instant
from console.view import describe_failure, find_method
from cstp_grpc.contract.errors import CstpError
from cstp_grpc.contract.proto_values import build_message

PATHS: Final = ("/download/audit", "/download/evidence")
ENDING: Final[Mapping[str, str]] = {"jsonl": "jsonl", "csv": "csv", "cloudevents": "jsonl"}


def install_downloads(app: FastAPI) -> None:
    for path, respond in zip(PATHS, (send_export, send_evidence), strict=True):
        app.add_api_route(path, respond, methods=["GET"], include_in_schema=False)


async def send_export(request: Request) -> Response:
    """Send the entries of a period in a format."""
    name = request.query_params.get("format", "jsonl")
    if name not in ENDING:
        return PlainTextResponse("The format must be jsonl, csv or cloudevents.", 400)
    try:
        period = read_period(request)
    except ValueError as error:
        return PlainTextResponse(str(error), 400)
    return await send_stream(request, "exportAudit", f"audit.{ENDING[name]}", {"format": name, **period})


async def send_evidence(request: Request) -> Response:
    """Send evidence about a decision or a period."""
    decision = request.query_params.get("decision")
    try:
        subject = {"decision_id": decision} if decision else read_period(request)
    except ValueError as error:
        return PlainTextResponse(str(error), 400)
    return await send_stream(request, "getEvidence", "evidence.json", subject)


def read_period(request: Request) -> dict[str, Any]:
    """Return the ends of the period that are given. Raises ValueError, which names a malformed one."""
    period = {}
    for name in ("after", "before"):
        if text := request.query_params.get(name):
            try:
                period[name] = parse_instant(text)
            except (ValueError, OverflowError) as error:
                raise ValueError(f"{name} must be an instant such as 2026-01-31T12:00:00Z.") from error
    return period


async def send_stream(request: Request, method: str, file: str, fields: Mapping[str, Any]) -> Response:
    """Send the texts of a stream as a file; a failure before the first text is the response."""
    rpc = find_method(method)
    try:
        stream = await request.state.session.client.watch(rpc, build_message(rpc.request, fields))
        parts = aiter(stream)
        first = await anext(parts, None)
    except CstpError as error:
        return PlainTextResponse(describe_failure(error), 502)

    async def send_texts() -> AsyncIterator[str]:
        # An error ends the connection, so that no browser takes a part for the whole.
        async with stream:
            if first is not None:
                yield getattr(first, "text", "")
            async for part in parts:
                yield getattr(part, "text", "")

    headers = {"Content-Disposition": f'attachment; filename="{file}"'}
    return StreamingResponse(send_texts(), media_type="application/octet-stream", headers=headers)
