"""Chroma's own download of all-MiniLM-L6-v2, the last place to take the weights from."""

from __future__ import annotations

import logging

logger = logging.getLogger(__name__)


class DownloadFailed(Exception):
    """The weights could not be downloaded."""


def download() -> None:
    """Let Chroma download its archive, compare it with its checksum and unpack it into its cache.

    Raises DownloadFailed.
    """
    # Chroma takes long to import and is needed for this only where no weights are found.
    from chromadb.utils.embedding_functions.onnx_mini_lm_l6_v2 import ONNXMiniLM_L6_V2

    logger.info("downloading the weights of all-MiniLM-L6-v2 (79 MB)")
    try:
        # Chroma downloads when the first text is embedded; what that returns is not needed.
        ONNXMiniLM_L6_V2()(["ready"])
    except Exception as error:
        logger.warning("downloading the weights failed: %r", error)
        raise DownloadFailed("downloading them failed; the log says why.") from error
