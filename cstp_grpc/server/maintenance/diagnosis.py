"""Checks of a server's requirements, each with its findings and advice; nothing is changed."""

from __future__ import annotations

import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import Final

from cstp_grpc.client.http_exchange import HttpProtocolError
from cstp_grpc.common.counted_nouns import count_noun
from cstp_grpc.contract.errors import QueryFailed, Unavailable
from cstp_grpc.core.decisions.search.search_engine import EngineFailed
from cstp_grpc.platform.config import ConfigError, Settings
from cstp_grpc.platform.embedding.model_files import MODEL, WeightsMissing, find_model_files
from cstp_grpc.platform.storage.database import open_database, parse_database_url
from cstp_grpc.platform.storage.database_condition import DatabaseCondition, observe_database
from cstp_grpc.platform.storage.locks import AlreadyRunning, DataDirLock
from cstp_grpc.platform.storage.migration import known_revisions, newest_revision
from cstp_grpc.server.identity.signing_keys import parse_key_set
from cstp_grpc.server.startup_failures import describe_startup_failure
from cstp_grpc.server.status.machine_checks import ERROR, OK, WARNING, Diagnosis, judge_free_space, measure_free_space
from cstp_grpc.server.wiring.embedding import build_configured_embedders
from cstp_grpc.server.wiring.identity import build_key_source
from cstp_grpc.server.wiring.search import check_engine

SYNC_TRIES: Final = 5
SLOW_SYNC_SECONDS: Final = 0.05
"""Every answer waits for the disk. Chosen: ten times as slow as a current disk."""
LARGE_LOG_BYTES: Final = 512 << 20
"""Size of a log that is not moved into the database, since a reader keeps an old state open."""
CLOCK_SECONDS: Final = 1.0
"""Chosen: leases and claims last for seconds, so that this difference matters."""
FEW_CONNECTIONS: Final = 10


def run_check(name: str, check: Callable[[], Iterator[Diagnosis]]) -> list[Diagnosis]:
    """Return the findings of a check; a check that fails is an error itself."""
    findings: list[Diagnosis] = []
    try:
        findings.extend(check())
    except Exception as error:
        reason = describe_startup_failure(error)
        if reason is None:
            raise
        findings.append(Diagnosis(name, ERROR, reason, "Correct this, then run the command again."))
    return findings


def check_disk(data_dir: Path, free_space: Callable[[Path], int] = measure_free_space) -> Iterator[Diagnosis]:
    """Check that the data folder can be written, durably and in reasonable time, and has space left."""
    folder = data_dir
    if not folder.exists():
        # The folder in which a server would create it.
        folder = next(parent for parent in folder.absolute().parents if parent.exists())
        yield Diagnosis("disk", OK, f"{data_dir} does not exist yet; a server creates it")
    if not os.access(folder, os.W_OK | os.X_OK):
        yield Diagnosis("disk", ERROR, f"{folder} cannot be written", "Give it to the user that runs the server.")
        return
    mode = folder.stat().st_mode & 0o077
    if folder == data_dir and mode:
        advice = f"Run `chmod go-rwx {folder}`: it holds what agents wrote, and tokens."
        yield Diagnosis("disk", WARNING, f"{folder} is open to other users of this machine", advice)
    yield judge_free_space(folder, free_space(folder))
    seconds = measure_sync(folder)
    if seconds > SLOW_SYNC_SECONDS:
        advice = "Each answer waits for that: put the data folder on a faster disk."
        yield Diagnosis("disk", WARNING, f"putting a write on disk takes {seconds * 1000:.0f} ms", advice)


def measure_sync(folder: Path) -> float:
    """Return the median of the seconds that a small durable write takes."""
    taken = []
    with tempfile.TemporaryFile(dir=folder) as file:
        for _ in range(SYNC_TRIES):
            begun = time.perf_counter()
            file.write(b"x" * 4096)
            file.flush()
            os.fsync(file.fileno())
            taken.append(time.perf_counter() - begun)
    return statistics.median(taken)


def check_database(settings: Settings, now: datetime, *, thorough: bool) -> Iterator[Diagnosis]:
    """Check the database, and with its data the clock."""
    url = parse_database_url(settings.storage_url)
    if url.get_backend_name() == "sqlite" and not Path(url.database or "").is_file():
        yield Diagnosis("database", OK, f"{url.database} does not exist yet; a server creates it")
        return
    with closing(open_database(settings.storage_url, 1)) as database:
        seen = observe_database(database, thorough=thorough)
    if seen.damage is not None:
        advice = "Stop the server, and restore the last backup with `cstp restore`."
        yield Diagnosis("database", ERROR, f"{seen.name}: is damaged: {seen.damage}", advice)
    yield judge_migration(seen)
    yield from judge_capacity(seen)
    if seen.name.startswith("PostgreSQL") and shutil.which("pg_dump") is None:
        advice = "Install PostgreSQL's client programs on a machine that runs `cstp backup`."
        yield Diagnosis("database", WARNING, "pg_dump is not installed here", advice)
    yield from judge_clock(seen, now)


def judge_migration(seen: DatabaseCondition) -> Diagnosis:
    if seen.migration is None:
        return Diagnosis("database", OK, f"{seen.name}: is empty; a server creates the tables")
    if seen.migration not in known_revisions():
        message = f"{seen.name}: is at migration {seen.migration}, which this version does not know"
        return Diagnosis("database", ERROR, message, "Install the version that used it last, or a newer one.")
    if seen.migration != newest_revision():
        message = f"{seen.name}: is at migration {seen.migration} of {newest_revision()}"
        return Diagnosis("database", WARNING, message, "Run `cstp migrate`, or start a server of this version.")
    return Diagnosis("database", OK, f"{seen.name}: is at migration {seen.migration}, the newest")


def judge_capacity(seen: DatabaseCondition) -> Iterator[Diagnosis]:
    if seen.log_bytes > LARGE_LOG_BYTES:
        advice = "Look for a program that keeps the database open in a transaction, and restart the server."
        yield Diagnosis("database", WARNING, f"the write-ahead log has {seen.log_bytes / (1 << 20):.0f} MB", advice)
    if seen.connections_left is not None and seen.connections_left < FEW_CONNECTIONS:
        advice = "Raise max_connections of PostgreSQL, or lower storage.pool_size."
        message = f"PostgreSQL takes only {seen.connections_left} more connections"
        yield Diagnosis("database", WARNING, message, advice)


def judge_clock(seen: DatabaseCondition, now: datetime) -> Iterator[Diagnosis]:
    advice = "Let this machine and that of the database keep their clocks by NTP."
    if abs(seen.clock_ahead) > CLOCK_SECONDS:
        message = f"the clock of the database is {seen.clock_ahead:+.1f} s from that of this machine"
        yield Diagnosis("clock", WARNING, message, advice)
    elif seen.newest_entry is not None and (ahead := (seen.newest_entry - now).total_seconds()) > CLOCK_SECONDS:
        message = f"the newest audit entry is {ahead:.0f} s ahead of the clock, which was set back or is wrong"
        yield Diagnosis("clock", WARNING, message, advice)
    else:
        yield Diagnosis("clock", OK, f"it is {now:%Y-%m-%d %H:%M:%S} UTC, and nothing on record is later")


def check_search(settings: Settings) -> Iterator[Diagnosis]:
    """Check whether the engine of searches can be used, if servers share one."""
    search = settings.search
    if search.engine == "memory":
        yield Diagnosis("search", OK, "in the memory of each server")
        return
    advice = "Start it, or correct search.url; until then searches are answered with QUERY_FAILED."
    try:
        check_engine(search.engine, search.url or settings.storage_url)
    except EngineFailed as error:
        yield Diagnosis("search", ERROR, f"{search.engine}: {error}", advice)
        return
    yield Diagnosis("search", OK, f"{search.engine} answers")


def check_redis_access(settings: Settings) -> Iterator[Diagnosis]:
    """Check that Redis, if rate limits are shared in one, answers and accepts the password."""
    shared = settings.rate_limits.redis
    if shared is None or not settings.rate_limits.enabled:
        return
    # Not loaded before it is needed, as by the server.
    from cstp_grpc.server.interceptors.shared_rate_limits import check_redis

    try:
        check_redis(shared)
    except ConfigError as error:
        yield Diagnosis("redis", ERROR, str(error), "Correct it; a server would not start.")
    except Unavailable as error:
        yield Diagnosis("redis", WARNING, error.message, "Start it, or correct rate_limits.redis.url.")
    else:
        yield Diagnosis("redis", OK, "it answers and accepts the password")


def check_issuers(settings: Settings) -> Iterator[Diagnosis]:
    """Check that the keys of each issuer of JWTs can be read, and one of them be used."""
    for number, issuer in enumerate(settings.auth.jwt):
        where = f"{issuer.issuer} at {issuer.jwks_url}"
        advice = "Correct jwks_url, or start the issuer; until then its tokens are not accepted."
        try:
            keys = parse_key_set(build_key_source(issuer, f"auth.jwt.{number}")(), issuer.algorithms)
        except (ConfigError, HttpProtocolError, OSError, ValueError) as error:
            yield Diagnosis("issuers", ERROR, f"{where}: {error}", advice)
            continue
        if keys:
            yield Diagnosis("issuers", OK, f"{where} has {count_noun(len(keys), 'key')}")
        else:
            yield Diagnosis("issuers", ERROR, f"{where} has no key that can be used", "Correct jwks_url or algorithms.")


def check_embedding(settings: Settings) -> Iterator[Diagnosis]:
    """Check that the model of the embedder exists; providers other than `minilm` embed a text."""
    wanted = settings.embedding
    if wanted.provider != "minilm":
        try:
            build_configured_embedders(wanted, settings.data_dir).queries.embed(["cstp doctor"])
        except QueryFailed as error:
            yield Diagnosis("embedding", ERROR, error.message, "Correct embedding.url, model, dimensions or api_key.")
            return
    else:
        try:
            # Only the existence of the files is checked: loading may convert them into the data folder.
            find_model_files(wanted.model_path, download=False)
        except WeightsMissing:
            if wanted.model_path is not None or not wanted.download:
                raise
            advice = "Let the first start reach the network, or install them as docs/installing.md says."
            yield Diagnosis("embedding", WARNING, f"the weights of {MODEL} must be downloaded at the start", advice)
            return
    yield Diagnosis("embedding", OK, f"{wanted.provider} is ready")


def is_served(data_dir: Path) -> bool:
    if not data_dir.exists():
        return False
    try:
        with DataDirLock(data_dir, shared=True):
            return False
    except AlreadyRunning:
        return True
