"""The file of the matrix in the data folder of a server."""

from __future__ import annotations

from pathlib import Path

import pytest

from cstp_grpc.client.cstp_client import CstpClient
from cstp_grpc.core.decisions.search import matrix_file
from cstp_grpc.server.app import App
from tests.harness import TOKENS, running, settings
from tests.waiting import wait_until


def client_of(app: App) -> CstpClient:
    return CstpClient(f"grpc://{app.target}", TOKENS["alice"])


def test_a_start_saves_the_matrix_and_a_deletion_deletes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matrix_file, "MIN_SAVED_ROWS", 1)
    file = tmp_path / "matrix"
    with running(settings(tmp_path)) as app, client_of(app) as client:
        recorded = client.record_decision("Put jobs on a queue").id
    with running(settings(tmp_path)):
        wait_until(file.exists, "the matrix is saved")
        assert file.stat().st_mode & 0o777 == 0o600
    with running(settings(tmp_path)) as app, client_of(app) as client:
        assert [each.id for each in client.query_decisions("Put jobs on a queue").decisions] == [recorded]
        assert file.exists()
        client.delete_decision(recorded)
        assert not file.exists()
