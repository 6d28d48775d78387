"""What a server loads to start: what its calls need, and nothing that only some of them do."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from cstp_grpc.server.app import App
from tests.harness import settings

PROGRAM = """
import sys
from pathlib import Path
from cstp_grpc.platform.config import build_settings
from cstp_grpc.server.app import App
app = App(
    build_settings(
        data_dir=Path(sys.argv[1]),
        grpc={"port": 0},
        embedding={"provider": "lexical"},
        auth={"tokens": [{"name": "alice", "token": "alice-secret-token"}]},
    )
)
app.start()
print(*sys.modules)
app.stop()
"""
SELDOM_NEEDED = {
    "alembic": "only a database of an earlier version is migrated",
    "mako": "it comes with Alembic",
    "a2a": "only notifications of tasks are written in A2A",
    "jwt": "only signed agent cards are verified",
    "cryptography": "likewise",
    "jsonpath_rfc9535": "only redaction rules have paths",
    "httpx": "only an index is called over HTTP",
    "rich": "only commands print",
    "onnx": "only weights that are new are converted",
    "chromadb": "it runs in a process of its own",
    "cstp_grpc.modules.importing": "importing is for commands",
}


def test_a_server_starts_without_what_is_seldom_needed(tmp_path: Path) -> None:
    App(settings(tmp_path)).stop()
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[2],
    )
    loaded = set(result.stdout.split())
    assert "cstp_grpc.server.app" in loaded
    assert loaded & SELDOM_NEEDED.keys() == set()
