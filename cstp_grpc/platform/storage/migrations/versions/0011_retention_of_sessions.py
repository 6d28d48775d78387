"""Find by their age, and by their session, what belongs to chat sessions."""

from __future__ import annotations

from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

INDEXES = (
    ("chat_sessions", ["updated_at"]),
    ("chat_messages", ["sent_at"]),
    ("liaison_shares", ["tenant", "conversation_id"]),
    ("liaison_shares", ["shared_at"]),
    ("liaison_activations", ["tenant", "session_id"]),
)


def upgrade() -> None:
    for table, columns in INDEXES:
        op.create_index(f"ix_{table}_{'_'.join(columns)}", table, columns)
