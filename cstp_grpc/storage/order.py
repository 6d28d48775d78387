"""One order for the writes of all servers."""

from __future__ import annotations

from sqlalchemy import Connection, Engine, func, select

from cstp_grpc.storage.driver_statement import DriverStatement

ORDER_LOCK = 0x6373_7470_0002
"""The PostgreSQL advisory lock that makes numbers visible in their order."""


class WriteOrder:
    """Lets one server at a time write what must be seen in the order of its numbers.

    It is one order for all such writes, because a transaction may hold several jobs: with an order for each kind, two
    servers could wait for each other.
    """

    def __init__(self, engine: Engine) -> None:
        lock = select(func.pg_advisory_xact_lock(ORDER_LOCK))
        # On SQLite a transaction that writes keeps all others waiting by itself.
        self._lock = DriverStatement(lock, engine.dialect) if engine.dialect.name == "postgresql" else None

    def hold(self, connection: Connection) -> None:
        """Keep the writes of other servers waiting until the transaction ends. Raises DBAPIError.

        A transaction that reads what it is about to change does this first: what it read then stays true, and two
        servers never wait for each other.
        """
        if self._lock is not None:
            self._lock.all(connection, {})
