"""The ids of A2A tasks, which servers and bridges derive alike, and the precondition that a call begins a new task."""

from __future__ import annotations

import json
import uuid
from typing import Final

TASK_ID_NAMESPACE: Final = uuid.UUID("6a3f1d7e-52c4-4c0b-9a57-0d1c9f2e8b64")
"""The UUID version 5 namespace of task ids, RFC 9562, section 5.5. Chosen at random. With another one repeated messages
would create new tasks."""
NEW_TASK_METADATA_KEY: Final = "x-cstp-new-task"
"""The id of the task that a call belongs to. The call fails with CONFLICT if its agent has this task already."""


def derive_task_id(agent: str, key: str) -> str:
    """Return the id of the task that the message with this key begins for an agent."""
    # With the agent in the name, so that equal keys of two agents are two tasks; as JSON, so that the parts cannot run
    # together.
    return str(uuid.uuid5(TASK_ID_NAMESPACE, json.dumps([agent, key])))
