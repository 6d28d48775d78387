"""Converts verified model weights to an ONNX file once, and keeps the result.

Beside the file lie its weights and a receipt: which files were verified, and size and modification time of the
converted ones. Later starts compare only these, because hashing 90 MB takes longer than loading them. If anything
differs, or the receipt cannot be read, verification and conversion start over.
"""

from __future__ import annotations

import json
import logging
import os
import tempfile
from pathlib import Path

from cstp_grpc.embedding.model_files import (
    MODEL,
    ONNX,
    PUBLISHED_SHA256,
    SAFETENSORS,
    ModelFiles,
    WeightsMissing,
    read_published_file,
)

logger = logging.getLogger(__name__)

GRAPH_VERSION = 2
"""Incremented when onnx_graph writes a different graph, so that older converted files are not used."""

WEIGHTS = "model.weights"
RECEIPT = "receipt.json"
UNFINISHED = "unfinished-"
"""The prefix of temporary files."""

Fingerprint = list[str | int]
"""Path, size in bytes and modification time in nanoseconds of a file."""


def prepare_onnx_model(weights: ModelFiles, cache_dir: Path) -> Path:
    """Return the ONNX file of a model, converting it into `cache_dir` if that was not done yet.

    Safetensors and their tokenizer must be the published files. Raises WeightsMissing.
    """
    if weights.is_onnx:
        return weights.model
    folder = cache_dir / PUBLISHED_SHA256[SAFETENSORS]
    model, receipt = folder / ONNX, folder / RECEIPT
    if not is_conversion_current(weights, model, receipt):
        logger.info("verifying and converting %s", weights.model)
        converted, converted_weights = convert_to_onnx(weights)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            remove_unfinished_files(folder)
            # The receipt comes last: without one that fits, the next start converts again, whatever a crash left here.
            write_atomically(folder / WEIGHTS, converted_weights)
            write_atomically(model, converted)
            write_atomically(receipt, json.dumps(receipt_content(weights, model)).encode())
        except OSError as error:
            raise WeightsMissing(f"{folder}: the converted weights cannot be written: {error.strerror}.") from error
    return model


def is_conversion_current(weights: ModelFiles, model: Path, receipt: Path) -> bool:
    """Return True if the converted file is complete and was made from these very files."""
    try:
        return bool(json.loads(receipt.read_bytes()) == receipt_content(weights, model))
    except (OSError, ValueError):
        return False


def receipt_content(weights: ModelFiles, model: Path) -> dict[str, int | list[Fingerprint]]:
    """Return the receipt of the files in their present state. Raises OSError."""
    files = (weights.model, weights.tokenizer, model, model.with_name(WEIGHTS))
    return {"graph": GRAPH_VERSION, "files": [file_fingerprint(file) for file in files]}


def file_fingerprint(path: Path) -> Fingerprint:
    """Return path, size and modification time of a file. Raises OSError."""
    status = path.stat()
    return [str(path.resolve()), status.st_size, status.st_mtime_ns]


def convert_to_onnx(weights: ModelFiles) -> tuple[bytes, bytes]:
    """Return the ONNX model of verified safetensors, and its external weights. Raises WeightsMissing."""
    # Imported here, because only the first start of an installation needs them.
    from safetensors.numpy import load

    from cstp_grpc.embedding import onnx_graph

    read_published_file(weights.tokenizer)
    tensors = load(read_published_file(weights.model))
    try:
        return onnx_graph.build_bert_model(tensors, WEIGHTS)
    except KeyError as error:
        raise WeightsMissing(f"{weights.model}: lacks the tensor {error} of {MODEL}.") from error


def remove_unfinished_files(folder: Path) -> None:
    """Remove the files of an interrupted conversion. Raises OSError."""
    # A data folder is locked by one process at a time, so that no other is still writing these.
    for unfinished in folder.glob(f"{UNFINISHED}*"):
        unfinished.unlink(missing_ok=True)


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file so that it exists completely or not at all, even after a crash. Raises OSError."""
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
