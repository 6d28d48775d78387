"""The ONNX file that is run, converted once from verified weights and kept.

Beside the file lie its weights and a receipt: which files were verified, and how the converted ones looked on disk. At
the next start these are compared by size and modification time only, because hashing 90 MB takes longer than loading
them. Anything that differs, or a receipt that cannot be read, leads to verification and conversion from the start.
"""

from __future__ import annotations

import json
import logging
import os
import tempfile
from pathlib import Path

from cstp_grpc.decisions.embedding.weights import (
    MODEL,
    ONNX,
    PUBLISHED_SHA256,
    SAFETENSORS,
    Weights,
    WeightsMissing,
    read_published,
)

logger = logging.getLogger(__name__)

GRAPH_VERSION = 2
"""Raised when onnx_graph writes another graph, so that files converted before are not used."""

WEIGHTS = "model.weights"
RECEIPT = "receipt.json"
UNFINISHED = "unfinished-"
"""How the names of files begin that are still being written."""

Fingerprint = list[str | int]
"""Path, size in bytes and modification time in nanoseconds of a file."""


def onnx_model(weights: Weights, cache_dir: Path) -> Path:
    """Return the ONNX file of the weights, converting them into `cache_dir` where that was not done yet.

    Safetensors and their tokenizer must be the published files. Raises WeightsMissing.
    """
    if weights.is_onnx:
        return weights.model
    folder = cache_dir / PUBLISHED_SHA256[SAFETENSORS]
    model, receipt = folder / ONNX, folder / RECEIPT
    if not is_current(weights, model, receipt):
        logger.info("verifying and converting %s", weights.model)
        converted, converted_weights = convert(weights)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            remove_unfinished(folder)
            write_atomically(folder / WEIGHTS, converted_weights)
            write_atomically(model, converted)
            write_atomically(receipt, json.dumps(describe(weights, model)).encode())
        except OSError as error:
            raise WeightsMissing(f"{folder}: the converted weights cannot be written: {error.strerror}.") from error
    return model


def is_current(weights: Weights, model: Path, receipt: Path) -> bool:
    """Whether the converted file is whole and comes from these very files."""
    try:
        return bool(json.loads(receipt.read_bytes()) == describe(weights, model))
    except (OSError, ValueError):
        return False


def describe(weights: Weights, model: Path) -> dict[str, int | list[Fingerprint]]:
    """Return what the receipt says of the files as they are now. Raises OSError."""
    files = (weights.model, weights.tokenizer, model, model.with_name(WEIGHTS))
    return {"graph": GRAPH_VERSION, "files": [fingerprint(file) for file in files]}


def fingerprint(path: Path) -> Fingerprint:
    """Return how a file looks without reading it. Raises OSError."""
    status = path.stat()
    return [str(path.resolve()), status.st_size, status.st_mtime_ns]


def convert(weights: Weights) -> tuple[bytes, bytes]:
    """Return the serialised ONNX model of verified safetensors, and what lies beside it. Raises WeightsMissing."""
    # These are needed once in the life of an installation; every other start is spared them.
    from safetensors.numpy import load

    from cstp_grpc.decisions.embedding import onnx_graph

    read_published(weights.tokenizer)
    tensors = load(read_published(weights.model))
    try:
        return onnx_graph.bert(tensors, WEIGHTS)
    except KeyError as error:
        raise WeightsMissing(f"{weights.model}: lacks the tensor {error} of {MODEL}.") from error


def remove_unfinished(folder: Path) -> None:
    """Remove what a conversion that was ended half-way has left. Raises OSError."""
    # One process at a time uses a data folder, so that nobody is still writing these.
    for unfinished in folder.glob(f"{UNFINISHED}*"):
        unfinished.unlink(missing_ok=True)


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file so that it is found whole or not at all, even after a crash. Raises OSError."""
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=UNFINISHED, delete=False) as file:
        temporary = Path(file.name)
        try:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
