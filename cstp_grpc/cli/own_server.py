"""A server in this process, for a command that works on the store while no server runs."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager

import click

from cstp_grpc.cli.development import DEVELOPER, TOKEN_FILE, with_agent
from cstp_grpc.cli.endpoint import Endpoint
from cstp_grpc.config import AuthSettings, GrpcSettings, IndexSettings, RateLimitSettings, Settings
from cstp_grpc.server.interceptors.auth import ANONYMOUS
from cstp_grpc.vocabulary import Permission


@contextmanager
def own_server(settings: Settings, agent: str) -> Iterator[Endpoint]:
    """Yield a server on the configured store that knows one caller, the agent, by a token made for the occasion.

    It listens on a free loopback port and has no bridge. Raises AlreadyRunning where a server holds the data folder.
    """
    # Loading the whole server takes long, and importing into a running one does without it.
    from cstp_grpc.server.app import App

    token = secrets.token_urlsafe(32)
    private = settings.model_copy(
        update={
            "grpc": GrpcSettings(host="127.0.0.1", port=0, max_message_bytes=settings.grpc.max_message_bytes),
            "auth": AuthSettings(),
            "rate_limits": RateLimitSettings(enabled=False),
            # The journal remembers what the index lacks, and the next server feeds it.
            "index": IndexSettings(mode="off"),
        }
    )
    app = App(with_agent(private, agent, token))
    try:
        app.start()
        yield Endpoint(f"grpc://{app.target}", "this process", token, "this process", local=True)
    finally:
        app.stop()


def importer_of(settings: Settings, wanted: str | None) -> str:
    """Return the agent that imports: the wanted one, the only one with the permission to record, or the developer.

    Raises click.UsageError where that is nobody or not clear.
    """
    recorders = sorted({token.name for token in settings.auth.tokens if Permission.RECORD in token.permissions})
    known = {token.name for token in settings.auth.tokens}
    if not settings.auth.enabled:
        known, recorders = known | {ANONYMOUS}, [ANONYMOUS]
    if (settings.data_dir / TOKEN_FILE).exists() or not known:
        known, recorders = known | {DEVELOPER}, recorders or [DEVELOPER]
    if wanted is not None:
        if wanted not in known:
            raise click.UsageError(
                f"There is no agent {wanted!r} in auth.tokens; there is: {', '.join(sorted(known))}."
            )
        return wanted
    if len(recorders) != 1:
        names = ", ".join(recorders) or "none has the permission to record"
        raise click.UsageError(f"Say with --as whose decisions they become: {names}.")
    return recorders[0]
