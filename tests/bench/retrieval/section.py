"""Section `retrieval`: whether searches find what was meant, beside vectors alone and words alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cstp_grpc.server.wiring.embedding import build_embedder
from tests.bench.results import Better
from tests.bench.retrieval.advice import run_advice_cases
from tests.bench.retrieval.corpora import (
    QuerySet,
    Record,
    read_corpora,
    read_irrelevant_intents,
    read_query_sets,
)
from tests.bench.retrieval.engines import DenseEngine, Engine, ServedEngine, WordsEngine, served_engines
from tests.bench.retrieval.measures import MEASURES, bootstrap_interval
from tests.bench.run import Run


def measure_retrieval(run: Run) -> None:
    """Measure each set of queries with each engine, and the cases of advice."""
    measure_advice(run)
    if run.data is None:
        run.skip("", "no folder of corpora is given; --data names one with peps.jsonl and adr/")
        return
    sets = read_query_sets(run.data)
    run.note(f"{'set':30}{'engine':12}" + "".join(f"{name:>22}" for name in MEASURES))
    for name, records in read_corpora(run.data).items():
        measure_corpus(run, name, records, [each for each in sets if each.corpus == name])


def measure_corpus(run: Run, name: str, records: Sequence[Record], sets: Sequence[QuerySet]) -> None:
    """Measure the sets of one corpus."""
    embedder = build_embedder(run.provider, None, download=False, threads=1, cache_size=0, data_dir=run.folder)
    compared: Mapping[str, Engine] = {"dense": DenseEngine(records, embedder), "words": WordsEngine(records)}
    with served_engines(records, run.folder / f"retrieval-{name.replace(' ', '-')}", run.provider) as served:
        for each in sets:
            ranks = {
                engine_name: measure_set(run, each, engine_name, engine)
                for engine_name, engine in {**compared, **served}.items()
            }
            note_advantage(run, each, ranks["ours"], ranks["dense"])
        measure_irrelevant(run, name, served["ours"])


def note_advantage(run: Run, asked: QuerySet, ours: Sequence[float], others: Sequence[float]) -> None:
    """Note by how much the reciprocal ranks are better than those of another engine for the same queries."""
    differences = [one - other for one, other in zip(ours, others, strict=True)]
    mean, (low, high) = sum(differences) / len(differences), bootstrap_interval(differences)
    run.note(f"{asked.name:30}MRR of ours above that of dense: {mean:+.3f} ({low:+.3f} to {high:+.3f})")


def measure_irrelevant(run: Run, name: str, engine: ServedEngine) -> None:
    """Measure how many intents about something else are answered with decisions."""
    intents = read_irrelevant_intents()
    held_out = intents[1::2]
    for label, answer in (("feedback", engine.best_feedback_score), ("query", engine.best_query_score)):
        scores = {intent: answer(intent) for intent in intents}
        share = sum(score > 0 for score in scores.values()) / len(scores)
        run.add(f"irrelevant.{name}.{label}", "of 1", Better.LOWER, [share])
        share_held_out = sum(scores[intent] > 0 for intent in held_out) / len(held_out)
        worst = max(scores, key=lambda intent: scores[intent])
        run.note(
            f"{name:30}irrelevant intents that get a {label}: {share:.2f}, of those held out {share_held_out:.2f}; "
            f"most {scores[worst]:.2f}, {worst}"
        )


def measure_set(run: Run, asked: QuerySet, engine_name: str, engine: Engine) -> Sequence[float]:
    """Measure one set with one engine, and return the reciprocal ranks of its queries."""
    run.progress(f"{asked.name}, {engine_name}")
    rankings = [(engine.rank(query), query.right) for query in asked.queries]
    cells = []
    values_of = {measure: [judge(ranking, right) for ranking, right in rankings] for measure, judge in MEASURES.items()}
    for measure, values in values_of.items():
        mean, (low, high) = sum(values) / len(values), bootstrap_interval(values)
        run.add(f"{asked.name}.{engine_name}.{measure}", "of 1", Better.HIGHER, [mean])
        cells.append(f"{mean:.3f} ({low:.3f}-{high:.3f})")
    run.note(f"{asked.name:30}{engine_name:12}" + "".join(f"{cell:>22}" for cell in cells))
    return values_of["MRR"]


def measure_advice(run: Run) -> None:
    """Count the cases of advice that are answered as they must be."""
    judged = run_advice_cases(run.folder / "retrieval-advice", run.provider)
    for intent, problems in judged:
        run.note(f"{'; '.join(problems) or 'as it must be':70} {intent}")
    run.add("advice", "of 10", Better.HIGHER, [float(sum(not problems for _, problems in judged))])
