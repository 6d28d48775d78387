"""Events as agents send them, for tests to change."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

LEARNED = """All is done.

```cstp-learning
type: pitfall
path: src/money.py
title: Rates are percentages
detail: TAX is in percent.
Divide by 100 before you multiply.
```
"""


def payload(name: str, folder: Path | str = "/project", **changes: Any) -> dict[str, Any]:
    """Return a recorded event of Claude Code in a folder; `changes` replace members."""
    text = Path(__file__).with_name("claude_code_payloads.yaml").read_text().replace("FOLDER", str(folder))
    return {**yaml.safe_load(text)[name], **changes}


def names() -> list[str]:
    """Return the names of the recorded events."""
    return list(yaml.safe_load(Path(__file__).with_name("claude_code_payloads.yaml").read_text()))


def encode(event: Any) -> str:
    """Return an event as the agent writes it."""
    return json.dumps(event)
