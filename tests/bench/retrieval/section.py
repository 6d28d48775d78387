"""Section `retrieval`: whether searches find what was meant, beside vectors alone and words alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cstp_grpc.embedding.module import build_embedder
from tests.bench.results import Better
from tests.bench.retrieval.advice import run_advice_cases
from tests.bench.retrieval.corpora import QuerySet, Record, read_corpora, read_query_sets
from tests.bench.retrieval.engines import DenseEngine, Engine, WordsEngine, served_engines
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
            for engine_name, engine in {**compared, **served}.items():
                measure_set(run, each, engine_name, engine)


def measure_set(run: Run, asked: QuerySet, engine_name: str, engine: Engine) -> None:
    """Measure one set with one engine."""
    run.progress(f"{asked.name}, {engine_name}")
    rankings = [(engine.rank(query), query.right) for query in asked.queries]
    cells = []
    for measure, judge in MEASURES.items():
        values = [judge(ranking, right) for ranking, right in rankings]
        mean, (low, high) = sum(values) / len(values), bootstrap_interval(values)
        run.add(f"{asked.name}.{engine_name}.{measure}", "of 1", Better.HIGHER, [mean])
        cells.append(f"{mean:.3f} ({low:.3f}-{high:.3f})")
    run.note(f"{asked.name:30}{engine_name:12}" + "".join(f"{cell:>22}" for cell in cells))


def measure_advice(run: Run) -> None:
    """Count the cases of advice that are answered as they must be."""
    judged = run_advice_cases(run.folder / "retrieval-advice", run.provider)
    for intent, problems in judged:
        run.note(f"{'; '.join(problems) or 'as it must be':70} {intent}")
    run.add("advice", "of 10", Better.HIGHER, [float(sum(not problems for _, problems in judged))])
