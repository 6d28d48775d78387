from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from cstp_grpc.platform.embedding.model_files import ModelDownloadFailed, download_model


def test_a_network_that_refuses_is_a_failed_download(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from chromadb.utils.embedding_functions.onnx_mini_lm_l6_v2 import ONNXMiniLM_L6_V2

    def refuse(*_: object, **__: object) -> None:
        raise httpx.ConnectError("unreachable.example")

    monkeypatch.setattr(ONNXMiniLM_L6_V2, "DOWNLOAD_PATH", tmp_path)
    monkeypatch.setattr(httpx, "stream", refuse)
    with pytest.raises(ModelDownloadFailed) as caught:
        download_model()
    assert "unreachable.example" not in str(caught.value)
    assert "unreachable.example" in caplog.text
