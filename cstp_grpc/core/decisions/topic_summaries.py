"""Summaries of old decisions of one topic, which quote the decisions and cite them."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from cstp_grpc.common.counted_nouns import count_noun
from cstp_grpc.common.lazy_dataclass import dataclass
from cstp_grpc.common.quoted_text import quote_name, quote_text
from cstp_grpc.contract.enums import DecisionStatus, Outcome, Visibility
from cstp_grpc.core.decisions.decision_terms import analyze_text
from cstp_grpc.core.decisions.model import SUMMARY_TAG, Decision, DecisionContent, Links
from cstp_grpc.core.decisions.passages import split_listed_sentences
from cstp_grpc.core.decisions.store import Vector

MAX_CITED: Final = 50
"""Decisions of a summary. Chosen: half of the links that a decision may have, and a few months of a busy agent."""
MAX_QUOTATIONS: Final = 5
"""Decisions that a summary quotes, at most a third of those that it cites. Chosen: with ids, 450 tokens at most."""
MAX_TAGS: Final = 50
"""As many as the contract accepts, so that an export can be imported."""
MAX_TITLE: Final = 100
MAX_SENTENCE: Final = 200
QUOTATION: Final = re.compile(r"- \w+, [\d-]+, (\S+): ")
"""The beginning of the line that quotes a decision, with its id."""
LESSON_WEIGHT: Final = 0.1
TROUBLE_WEIGHT: Final = 0.1
REPETITION_WEIGHT: Final = 0.5
"""How much a lesson, an outcome other than success, and a similar quotation weigh, in cosine similarity. Chosen: of two
decisions that are about as central, the one that failed is quoted, and none that says the same as another."""


@dataclass(frozen=True, slots=True)
class Topic:
    """The topic that decisions of one summary share; `name` is their category, or their first tag without one."""

    visibility: Visibility
    project: str | None
    category: str | None
    name: str


def topic_of(decision: Decision) -> Topic | None:
    """Return the topic of a decision or summary; None without a category and a tag."""
    name = decision.category or next((tag for tag in decision.tags if tag != SUMMARY_TAG), None)
    return None if name is None else Topic(decision.visibility, decision.project, decision.category, name)


def compose_summary(
    topic: Topic, cited: Sequence[Decision], vectors: Mapping[str, Vector]
) -> tuple[DecisionContent, Links]:
    """Return the content and the links of the summary of an agent's decisions, of which some have vectors.

    It quotes titles and lessons of decisions with its visibility, its category and all of its tags, so that all of its
    readers may read these.
    """
    cited = sorted(cited, key=lambda item: (item.date, item.id))
    first, last = cited[0], cited[-1]
    quoted = choose_quoted(cited, vectors)
    of_project = f" in {topic.project}" if topic.project else ""
    period = f"{first.date:%Y-%m-%d} to {last.date:%Y-%m-%d}"
    content = DecisionContent(
        title=f"Summary of {count_noun(len(cited), 'decision')} on {topic.name}{of_project}, {period}",
        category=topic.category,
        status=DecisionStatus.DECIDED,
        date=last.date,
        notes="\n".join([describe_outcomes(cited), *quote_decisions(quoted, word_weights(cited))]),
        tags=(SUMMARY_TAG, *(tag for tag in first.tags if all(tag in item.tags for item in cited)))[:MAX_TAGS],
        project=topic.project,
        visibility=topic.visibility,
    )
    return content, Links(summarizes=tuple(sorted(item.id for item in cited)))


def choose_quoted(cited: Sequence[Decision], vectors: Mapping[str, Vector]) -> list[Decision]:
    """Return the most central and useful of some decisions, the best first, without those that repeat others."""
    size = next((len(vector) for vector in vectors.values()), 1)
    matrix = np.stack([vectors.get(item.id, np.zeros(size, np.float32)) for item in cited])
    center = matrix.mean(axis=0)
    scores = np.vecdot(matrix, center) / (float(np.linalg.norm(center)) or 1.0)
    scores += [LESSON_WEIGHT * bool(item.notes) for item in cited]
    scores += [TROUBLE_WEIGHT * (item.outcome is not Outcome.SUCCESS) for item in cited]
    nearest = np.zeros(len(cited))
    chosen: list[int] = []
    for _ in range(min(MAX_QUOTATIONS, math.ceil(len(cited) / 3))):
        values = scores - REPETITION_WEIGHT * nearest
        values[chosen] = -np.inf
        best = int(np.argmax(values))
        chosen.append(best)
        nearest = np.maximum(nearest, np.vecdot(matrix, matrix[best]))
    return [cited[place] for place in chosen]


def word_weights(cited: Sequence[Decision]) -> dict[str, float]:
    """Return weights of the words that several decisions have."""
    counts = Counter(word for item in cited for word in words_of(f"{item.title}\n{item.notes or ''}"))
    return {word: math.log(count) for word, count in counts.items() if count > 1}


def words_of(text: str) -> set[str]:
    return {term.text for term in analyze_text(text)}


def quote_decisions(quoted: Sequence[Decision], weights: Mapping[str, float]) -> list[str]:
    """Return a line for each decision, with the sentence of its lesson that has most of the words of the topic."""

    def rate(sentence: str) -> float:
        words = words_of(sentence)
        return sum(weights.get(word, 0.0) for word in words) / math.sqrt(len(words) or 1)

    sentences = {item.id: quotable_sentences(item) for item in quoted}
    return [format_quotation(item, max(sentences[item.id], key=rate, default="")) for item in quoted]


def quotable_sentences(decision: Decision) -> list[str]:
    # Longer than a quotation, which then says that it is cut.
    return list(split_listed_sentences(decision.notes or "", 2 * MAX_SENTENCE))


def format_quotation(decision: Decision, sentence: str) -> str:
    """Return the line that quotes a decision: attributed by its id, and bounded."""
    lesson = f" Lesson: {quote_text(sentence, MAX_SENTENCE)}" if sentence else ""
    state = decision.outcome or decision.status
    return f"- {state}, {decision.date:%Y-%m-%d}, {decision.id}: {quote_text(decision.title, MAX_TITLE)}.{lesson}"


def describe_outcomes(cited: Sequence[Decision]) -> str:
    counts = Counter(item.outcome for item in cited)
    outcomes = ", ".join(f"{counts[outcome]} {outcome}" for outcome in Outcome if counts[outcome])
    return f"{count_noun(len(cited), 'decision')} of {quote_name(cited[0].agent, MAX_TITLE)}: {outcomes}. Some of them:"


def is_faithful(summary: Decision, cited: Mapping[str, Decision]) -> bool:
    """Return whether a summary agrees with decisions, given by id, and its readers may read these.

    Its quotations of missing ones are not compared. A decision that is not a summary is faithful.
    """
    if not summary.links.summarizes:
        return True
    present = [cited[key] for key in summary.links.summarizes if key in cited]
    head, *lines = (summary.notes or "").split("\n")
    if len(present) == len(summary.links.summarizes) and head != describe_outcomes(present):
        return False
    return all(shows_to_readers(item, summary) for item in present) and all(
        is_quoted(line, summary, cited) for line in lines
    )


def shows_to_readers(decision: Decision, summary: Decision) -> bool:
    """Return whether every reader of a summary may read a decision that it cites."""
    has_tags = set(summary.tags) - {SUMMARY_TAG} <= set(decision.tags)
    is_as_open = Visibility.PRIVATE is summary.visibility or decision.visibility is summary.visibility
    return decision.agent == summary.agent and is_as_open and has_tags and decision.category == summary.category


def is_quoted(line: str, summary: Decision, cited: Mapping[str, Decision]) -> bool:
    match = QUOTATION.match(line)
    if match is None or match[1] not in summary.links.summarizes:
        return False
    decision = cited.get(match[1])
    return decision is None or line in {
        format_quotation(decision, each) for each in ("", *quotable_sentences(decision))
    }


def list_cited(summaries: Sequence[Decision]) -> set[tuple[str, str]]:
    """Return the decisions that summaries stand for, each as its agent and id: an agent summarizes only its own."""
    return {(item.agent, key) for item in summaries for key in item.links.summarizes}
