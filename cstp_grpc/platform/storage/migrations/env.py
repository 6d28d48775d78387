"""The environment in which Alembic runs each migration, in the transaction of `migrate_database`."""

from __future__ import annotations

from alembic import context

from cstp_grpc.platform.storage.unit_of_work import metadata

# The transaction is real on SQLite too, because the engine begins it in the driver's stead.
context.configure(connection=context.config.attributes["connection"], target_metadata=metadata, transactional_ddl=True)
context.run_migrations()
