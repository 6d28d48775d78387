"""Texts that are embedded together while they are measured."""

from __future__ import annotations

from cstp_grpc.platform.embedding.embedder import CachedEmbedder
from cstp_grpc.platform.embedding.lexical_embedder import LexicalEmbedder
from cstp_grpc.platform.telemetry.instruments import Instruments
from cstp_grpc.server.telemetry.work_instruments import MeasuredEmbedder


def test_a_measured_embedder_embeds_together_as_the_measured_one_does() -> None:
    instruments = Instruments("test")
    measured = MeasuredEmbedder(CachedEmbedder(LexicalEmbedder(), 10), instruments)
    endpoint = measured.measure(CachedEmbedder(LexicalEmbedder(), 10, is_remote=True))
    measured.embed(["one"])

    measured.embed_together(["one", "two", "three", "two"])
    measured.embed_together(["three"])

    assert all(map(measured.is_cached, ("one", "two", "three")))
    assert (measured.embeds_together, endpoint.embeds_together) == (True, False)
    computed, batches = (
        next(
            sample.value
            for family in instruments.exported.collect()
            for sample in family.samples
            if sample.name == name and sample.labels in ({}, {"source": "computed"})
        )
        for name in ("cstp_embedded_texts_total", "cstp_embedding_seconds_count")
    )
    assert (computed, batches) == (3, 2)
