"""Count the events of each tenant by themselves."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

identifier = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
instant = sa.DateTime(timezone=True)

COLUMNS = "tenant, sequence, type, session_id, user_id, agent, occurred_at, data"
INDEXES = (("session_id", "sequence"), ("agent", "sequence"))


def upgrade() -> None:
    # Events keep their numbers, which callers may have noted; only the following ones are counted by tenant.
    for columns in INDEXES:
        op.drop_index(index_name(columns), "liaison_events")
    op.rename_table("liaison_events", "liaison_events_of_all")
    if op.get_bind().dialect.name == "postgresql":
        # SQLite has no names of constraints; elsewhere they are unique among all tables.
        op.drop_constraint("pk_liaison_events", "liaison_events_of_all")
    op.create_table(
        "liaison_events",
        sa.Column("tenant", identifier, nullable=False),
        sa.Column("sequence", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("type", sa.Text(), nullable=False),
        sa.Column("session_id", identifier),
        sa.Column("user_id", identifier),
        sa.Column("agent", identifier, nullable=False),
        sa.Column("occurred_at", instant, nullable=False),
        sa.Column("data", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "sequence", name="pk_liaison_events"),
        sqlite_with_rowid=False,
    )
    op.execute(f"INSERT INTO liaison_events ({COLUMNS}) SELECT {COLUMNS} FROM liaison_events_of_all")  # noqa: S608
    op.drop_table("liaison_events_of_all")
    for columns in INDEXES:
        op.create_index(index_name(columns), "liaison_events", ["tenant", *columns])
    op.create_table(
        "liaison_event_counters",
        sa.Column("tenant", identifier, nullable=False),
        sa.Column("last_sequence", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("tenant", name="pk_liaison_event_counters"),
        sqlite_with_rowid=False,
    )
    op.execute(
        "INSERT INTO liaison_event_counters (tenant, last_sequence) "
        "SELECT tenant, max(sequence) FROM liaison_events GROUP BY tenant"
    )


def index_name(columns: tuple[str, str]) -> str:
    return f"ix_liaison_events_tenant_{'_'.join(columns)}"
