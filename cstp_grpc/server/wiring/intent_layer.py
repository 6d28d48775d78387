"""Wiring of the Intent Layer."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
from cachetools import LRUCache
from numpy.typing import NDArray

from cstp_grpc.common.git_command import INHERITED_VARIABLES
from cstp_grpc.core.decisions.journal import Journal
from cstp_grpc.gen.intent_layer.v1 import intent_layer_pb2_grpc
from cstp_grpc.modules.intent_layer.code_context_reader import ProjectCodeReader
from cstp_grpc.modules.intent_layer.journal_sync import NodeJournalSync, NodeJournalSyncWorker
from cstp_grpc.modules.intent_layer.learning_review import Reviewer
from cstp_grpc.modules.intent_layer.learning_store import LearningStore, ProjectSources
from cstp_grpc.modules.intent_layer.node_staleness import GitHistory
from cstp_grpc.modules.intent_layer.project_files import read_ignored_folders
from cstp_grpc.modules.intent_layer.project_service import ProjectRegistry, ProjectService
from cstp_grpc.modules.intent_layer.project_tree import ProjectTree
from cstp_grpc.modules.intent_layer.servicer import IntentLayerService
from cstp_grpc.platform.config import inherited_environment
from cstp_grpc.platform.embedding.embedder import Embedder, cache_key
from cstp_grpc.server.server_module import Module, SharedParts

MAX_COMPARED = 500
"""Texts that are embedded for one comparison at most. Chosen: ten times the statements of a node within its budget."""
CACHED_VECTORS = 10 * MAX_COMPARED
"""Vectors in memory for reviews. Chosen: the statements of a few large nodes, in 8 MB with 384 dimensions."""

Vector = NDArray[np.float32]


class EmbeddedSimilarity:
    """Compares texts by the dot product of their vectors, which it caches; safe for many threads."""

    def __init__(self, embedder: Embedder) -> None:
        self._embedder = embedder
        self._vectors: LRUCache[bytes, Vector] = LRUCache(CACHED_VECTORS)
        # Guards the cache, also while texts are embedded: concurrent reviews of a node embed its statements once.
        self._lock = threading.Lock()

    def compare(self, text: str, others: Sequence[str]) -> Sequence[float]:
        """Return the similarity to each of the others, from 0 to 1; those beyond `MAX_COMPARED` get 0.

        Raises QueryFailed.
        """
        compared = others[:MAX_COMPARED]
        vector, *vectors = self._embed([text, *compared])
        scores = [min(max(float(each @ vector), 0.0), 1.0) for each in vectors]
        return [*scores, *[0.0] * (len(others) - len(compared))]

    def _embed(self, texts: Sequence[str]) -> list[Vector]:
        keys = [cache_key(text) for text in texts]
        with self._lock:
            known = {key: vector for key in keys if (vector := self._vectors.get(key)) is not None}
            if new := {key: text for key, text in zip(keys, texts, strict=True) if key not in known}:
                known |= zip(new, self._embedder.embed(list(new.values())), strict=True)
                self._vectors.update((key, known[key]) for key in new)
        return [known[key] for key in keys]


def build_intent_layer_module(shared: SharedParts, journal: Journal) -> tuple[Module, ProjectCodeReader]:
    """Build the services of the configured projects, and the reader of the notes that govern announced code.

    The nodes of projects are copied into the journal.
    """
    settings = shared.settings.intent_layer
    sources = build_project_sources(shared)
    syncs = [NodeJournalSync(name, source.tree, journal) for name, source in sources.items()]
    worker = NodeJournalSyncWorker(syncs, settings.refresh_seconds)
    # The lexical provider compares words, which reviews do by themselves.
    lexical = shared.settings.embedding.provider == "lexical"
    similarity = None if lexical else EmbeddedSimilarity(shared.embedder)
    services = {
        project.name: ProjectService(
            project.name,
            sources[project.name],
            Reviewer(sources[project.name].tree, shared.clock, similarity, settings.duplicate_threshold),
            GitHistory(sources[project.name].tree.root, inherited_environment(INHERITED_VARIABLES)),
            shared.sink,
            shared.clock,
            worker.wake,
            project.rules,
        )
        for project in settings.projects
    }
    servicer = IntentLayerService(ProjectRegistry(services))
    module = Module(
        servicers=[(intent_layer_pb2_grpc.add_IntentLayerServiceServicer_to_server, servicer)],
        background=[worker] if syncs else [],
    )
    return module, ProjectCodeReader(sources)


def build_project_sources(shared: SharedParts) -> Mapping[str, ProjectSources]:
    """Return the configured projects by name, each with one tree whose cache all readers share."""
    read_ignored = partial(read_ignored_folders, environment=inherited_environment(INHERITED_VARIABLES))
    trees = {
        project.name: ProjectTree(project.root, read_ignored=read_ignored)
        for project in shared.settings.intent_layer.projects
    }
    return {name: ProjectSources(tree, LearningStore(tree, shared.clock)) for name, tree in trees.items()}
