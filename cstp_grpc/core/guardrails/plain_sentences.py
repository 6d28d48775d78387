"""Find intentions in plain sentences: a verb and its object, neither negated nor only talked about.

English is not parsed. A sentence is cut into clauses at commas, "and" and the like where a verb follows. In a clause a
verb counts unless a negation, a question or a verb such as "explain" or "test" governs it, and its objects are the
words that follow within a few places, up to a noun such as "button" or "docs", which says that code or text is meant.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from cstp_grpc.common.lazy_dataclass import dataclass
from cstp_grpc.common.unicode_text import normalize_text

VOWEL: Final = re.compile("[aeiouy]")


def stem_word(word: str) -> str:
    """Return a word in lower case without the endings of its number, tense and gerund.

    The stems of the Snowball algorithm are too short for this: it takes "production" for "product", and "customer" for
    "custom".
    """
    if not word.isascii() or len(word) < 3:
        return word
    if word.endswith("ies") and len(word) > 4:
        word = word[:-3] + "y"
    elif word.endswith(("sses", "shes", "ches", "xes")):
        word = word[:-2]
    elif word.endswith("s"):
        word = word[:-1]
    for ending in ("ing", "ed"):
        rest = word.removesuffix(ending)
        if rest != word and len(rest) > 2 and VOWEL.search(rest):
            word = rest
    if word.endswith("e") and len(word) > 3:
        word = word[:-1]
    elif word.endswith("y"):
        word = word[:-1] + "i"
    # Both "drop" and "dropping".
    return word[:-1] if word[-2:-1] == word[-1:] and len(word) > 3 else word


def words_of(text: str) -> frozenset[str]:
    return frozenset(text.split())


def stems_of(text: str) -> frozenset[str]:
    return frozenset(map(stem_word, text.split()))


MENTIONING: Final = stems_of(
    """explain describe document discuss review test add implement write ask search find grep look fix refactor rename
    improve handle create build design investigate debug check verify validate read list show display print view
    inspect analyze analyse compare summarize summarise translate draft propose suggest mock simulate prevent
    avoid stop forbid refuse block skip undo revert restore recover cancel abort allow enable support track count
    estimate learn study remind tell say answer comment mention note report extend cover cache render format lint
    confirm warn plan consider evaluate assess think clarify reword reproduce detect identify locate reject
    require protect guard speed optimize optimise rewrite define generate prepare prototype benchmark measure
    outline teach remember figure understand decide research examine audit demonstrate monitor log catch echo cat
    man docs documentation tutorial article question typo unit runbook feature bug error issue ticket story pr
    rfc faq chore feat style deny disallow ensure mark label sort filter polish tweak align move insert extract
    port convert"""
)
"""Verbs after which the rest of a clause is only talked or written about."""
SOLVING: Final = stems_of("fix improve handle undo revert restore recover speed optimize optimise resolve")
"""Those of them whose clause names the action after "by"."""
CHANGING: Final = stems_of("update change modify edit adjust configure set patch alter tune")
"""Verbs whose clause names the action after "to" or "by"."""
NEUTRAL: Final = stems_of(
    """run execute deploy restart start rerun push merge release ship migrate back rebuild reload send notify keep leave
    archive export import copy rotate make let go proceed continue commit tag install recreate free save reduce
    match clean simplify get reclaim be have use replace apply wait call open close move put turn tell trigger
    launch"""
)
"""Other verbs with which a clause may begin."""
FILLERS: Final = words_of(
    """please kindly now just also first second next finally lastly then i we you they agent will shall would should
    must can could may might need needs want wants like have has had got to going gonna about am is are be let
    lets us me plan plans planning intend intends try trying go ahead proceed begin continue help quickly
    carefully permanently simply immediately manually temporarily safely i'll i'm we'll we're i'd we'd it time ok
    okay yes hey step task todo do that again still only by"""
)
"""Words that may stand before the first verb of a clause."""
NEGATIONS: Final = frozenset(["not", "never", "cannot", "nobody", "nothing", "neither", "nor", "without", "instead"])
REVERSING: Final = stems_of("forget hesitate fail")
"""Verbs that turn a negation around: "do not forget to drop it"."""
ASKING: Final = frozenset(["how", "why", "what", "whether", "what's"])
ABILITY: Final = frozenset(["can", "could", "may", "might"])
ACTORS: Final = frozenset(["", "i", "we", "you", "please"])
"""Whose ability is no description, unlike in "users can delete all their messages"."""
RELATIVES: Final = frozenset(["that", "which", "who", "whose", "where", "when", "if"])
DETERMINERS: Final = words_of(
    """the a an this these my our your its his her their each another latest last new current old previous"""
)
"""Words behind which a verb is rather a noun: "the delete button"."""
PREPOSITIONS: Final = frozenset(["of", "for", "on", "about", "against", "around", "in", "from", "when", "while"])
"""Words behind which a verb is only talked about: "docs on deleting"."""
VERB_LEADERS: Final = frozenset(["to", "not", "never", "don't", "cannot", "by"])
"""Words behind which a verb follows."""
BEING: Final = frozenset(["be", "been", "being", "get", "gets", "getting"])
PRONOUNS: Final = frozenset(["it", "them", "those", "these", "both"])
PARTICLES: Final = stems_of("off down out away up offline over")
CONTAINING: Final = frozenset(["from", "in", "of", "on", "at", "for", "inside", "within"])
"""Prepositions behind which the object is only if a part of it stands before, as in "everything in the database"."""
PARTS: Final = stems_of(
    """all everything every any the content data row record old rest most half whole copy last first day week month year
    set bunch lot number everyone everybody part one some remaining other more existing point trace bit two three
    four five six ten"""
)
STOPPERS: Final = words_of(
    """that which who whose because since so when while if until unless via using with before after where whenever
    instead how why what whether"""
)
"""Words behind which no object is looked for."""
HARMLESS: Final = stems_of(
    """comment variable function helper test button page class css script dependency docs documentation readme heading
    section link label icon text typo handler endpoint route method parameter argument flag feature component
    widget form modal menu mock fixture stub snippet example tutorial guide enum constant hook unused temp
    temporary tmp dialog whitespace import lint linter ui layout border header footer margin color colour
    contents chapter paragraph sentence slide presentation diagram figure screenshot wording title markdown html
    template selector placeholder tooltip todo todos annotation decorator assertion warning deprecated interface
    prop props type types typing stubs wrapper alias driver library package sdk logic code syntax line lines py
    js ts tsx md json txt java go rs rb scss node_modules dist build pycache pyc jest field occurrence reference
    console printout prefix suffix newline semicolon bracket character toggle dropdown tab sidebar navbar
    checkbox spinner banner popup sample demo sandbox local localhost dark mode theme shortcut sort filter
    mention module layer abstraction space trailing blank statement usage invocation element attribute property
    payload array dict dictionary string loop thread promise listener observer timer canvas cookie quote
    breakpoint javascript stylesheet animation cart"""
)
"""Nouns that say that code, text or something temporary is meant."""
JOINING: Final = frozenset(["and", "or", "plus"])
THEN: Final = frozenset(["then", "but", "afterwards", "therefore", "hence"])

OBJECT_GAP: Final = 10
"""How many words after its verb an object is looked for."""
QUALIFIER_GAP: Final = 16
"""How many words after the verb a qualifier such as "all" is looked for."""
CONTEXT_WORDS: Final = 12
"""How many words before a verb may hold a qualifier, or the object of a passive or of "them"."""
PARTICLE_GAP: Final = 6
"""How many words after its verb a particle stands, as in "turn the firewall off"."""
MAX_PHRASE_WORDS: Final = 3
"""The longest object or qualifier."""

WORD = re.compile(
    r"""
      (?P<word> [^\W_]+ (?:['’][^\W_]+)* )
    | (?P<hard> (?<= [^\s] ) [.!?:] (?= [\s"')\]`*] | \Z ) | ; | \n [ \t]* (?= [-*•\n\#] ) )
    | (?P<soft> [,()—–&] | [ ]-[ ] )
    """,
    re.VERBOSE,
)


class Intention(NamedTuple):
    """A question about a text: whether it intends one of the verbs with one of the objects and of the qualifiers."""

    verbs: tuple[str, ...]
    objects: tuple[str, ...] = ()
    qualifiers: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """A short name, the same wherever the same is asked."""
        return hashlib.blake2b(repr(self).encode(), digest_size=8).hexdigest()


class SoughtIntention(NamedTuple):
    """An intention with its words as stems; none of `words` is harmless."""

    key: str
    objects: frozenset[str]
    qualifiers: frozenset[str]
    words: frozenset[str]


class SentenceWords(NamedTuple):
    """The words of a sentence, their stems, and for each the break before it: "", "and", "," or "then"."""

    words: list[str]
    stems: list[str]
    breaks: list[str]
    is_question: bool


@dataclass(slots=True)
class Clause:
    """The state of a clause at the word that is read.

    `head` is the kind of its verb: "mention", "change", "run", "act" or none yet; `earlier` are the stems before it.
    `is_solved` is true for "fix … by …", where the words after "by" name the action.
    """

    start: int = 0
    earlier: Sequence[str] = ()
    head: str = ""
    at_head: bool = True
    is_negated: bool = False
    is_solved: bool = False
    has_relative: bool = False
    has_harmless: bool = False


def normalize_sentences(text: str) -> str:
    """Return a text in one case, with compatible characters as the same."""
    return text.lower() if text.isascii() else normalize_text(text, "NFKC").casefold()


def split_sentences(text: str) -> Iterator[SentenceWords]:
    """Yield the sentences of a text."""
    words: list[str] = []
    breaks: list[str] = []
    pending = ""
    for match in WORD.finditer(normalize_sentences(text)):
        word = match[0]
        if match["soft"]:
            pending = pending or ("and" if word == "&" else ",")
        elif match["hard"]:
            if words:
                yield SentenceWords(words, list(map(stem_word, words)), breaks, word == "?")
            words, breaks, pending = [], [], ""
        elif word in JOINING:
            pending = pending or "and"
        elif word in THEN and words[-1:] not in (["all"], ["everything"]):
            pending = "then"
        else:
            words.append(word.replace("’", "'").removesuffix("'s"))
            breaks.append(pending)
            pending = ""
    if words:
        yield SentenceWords(words, list(map(stem_word, words)), breaks, is_question=False)


def phrase_words(phrase: str) -> list[str]:
    return [match[0] for match in WORD.finditer(normalize_sentences(phrase)) if match["word"]]


@lru_cache(maxsize=4096)
def phrase_stems(phrase: str) -> tuple[str, ...]:
    return tuple(map(stem_word, phrase_words(phrase)))


def verb_forms(verb: str) -> Iterator[list[str]]:
    """Yield the stems of a verb, and those of its nouns, such as "deletion" and "removal"."""
    first, *rest = phrase_stems(verb)
    yield [first, *rest]
    if not rest:
        yield from ([first + "ion"], [first + "al"])


def phrases_in(stems: Sequence[str]) -> Iterator[str]:
    for size in range(1, MAX_PHRASE_WORDS + 1):
        for start in range(len(stems) - size + 1):
            yield " ".join(stems[start : start + size])


class IntentionFinder:
    """Finds which of several intentions a text has, in one pass."""

    def __init__(self, sought: Iterable[Intention]) -> None:
        self._verbs: dict[str, dict[tuple[str, ...], list[SoughtIntention]]] = {}
        for each in sought:
            objects, qualifiers = (
                frozenset(" ".join(phrase_stems(phrase)) for phrase in phrases) for phrases in each[1:]
            )
            words = frozenset(word for phrase in objects | qualifiers for word in phrase.split())
            question = SoughtIntention(each.key, objects, qualifiers, words)
            for verb in each.verbs:
                for first, *rest in verb_forms(verb):
                    self._verbs.setdefault(first, {}).setdefault(tuple(rest), []).append(question)
        self._starts = MENTIONING | CHANGING | NEUTRAL | self._verbs.keys()

    def find(self, text: str) -> list[str]:
        found: set[str] = set()
        if self._verbs:
            for sentence in split_sentences(text):
                self._search_sentence(sentence, found)
        return sorted(found)

    def _search_sentence(self, sentence: SentenceWords, found: set[str]) -> None:
        words, stems, breaks, is_question = sentence
        # "Should we drop it?" asks, "can you drop it?" does not.
        acts = not is_question or not {"you", "please"}.isdisjoint(words[:8])
        clause = Clause()
        for place, (word, stem) in enumerate(zip(words, stems, strict=True)):
            if breaks[place] and self._ends_clause(sentence, place, clause):
                clause = Clause(place, stems[max(clause.start, place - CONTEXT_WORDS) : place])
            before = words[place - 1] if place > clause.start else ""
            may = acts and stem in self._verbs and may_act(clause, breaks[place], before)
            if may and self._match_verb(sentence, place, clause, before, found) and stem not in NEUTRAL:
                clause.head = clause.head or "act"
            self._read_word(sentence, place, clause, before)
            clause.at_head = clause.at_head and word in FILLERS
            clause.has_harmless = clause.has_harmless or stem in HARMLESS

    def _read_word(self, sentence: SentenceWords, place: int, clause: Clause, before: str) -> None:
        """Store in a clause how a word changes the meaning of the next words."""
        word, stem = sentence.words[place], sentence.stems[place]
        if word in NEGATIONS or word.endswith("n't") or (before == "no" and word == "longer"):
            clause.is_negated = True
        elif clause.is_negated and stem in REVERSING:
            clause.is_negated = False
        elif word in ASKING or (word in ABILITY and before not in ACTORS):
            clause.head, clause.has_relative = "mention", True
        elif word in RELATIVES or (word == "to" and self._starts_verb(sentence, place + 1)):
            clause.has_relative = True
        elif (clause.at_head or before == "to") and clause.head != "mention" and word not in FILLERS:
            if stem in MENTIONING and before not in DETERMINERS:
                clause.head = "mention"
                clause.is_solved = stem in SOLVING
            elif not clause.head and stem in CHANGING | NEUTRAL:
                clause.head = "change" if stem in CHANGING else "run"

    def _ends_clause(self, sentence: SentenceWords, place: int, clause: Clause) -> bool:
        """Return whether a new clause begins after a break."""
        if sentence.breaks[place] == "then":
            return True
        if not self._starts_verb(sentence, place):
            return False
        if not clause.is_negated and clause.head != "mention":
            return True
        # Words that govern a verb govern the next verbs of a list: "do not drop or delete", "how to stop and drop".
        leader = place - 2 >= clause.start and (
            sentence.words[place - 2] in VERB_LEADERS
            or sentence.stems[place - 2] in MENTIONING
            or bool(sentence.breaks[place - 1])
        )
        return not clause.has_relative and not (leader and sentence.stems[place - 1] in self._starts)

    def _starts_verb(self, sentence: SentenceWords, place: int) -> bool:
        """Return whether a verb stands at a place, or behind some words such as "please"."""
        for word, stem in zip(sentence.words[place : place + 4], sentence.stems[place : place + 4], strict=True):
            # "And documents" is a noun more often than a verb.
            if stem in self._starts and (not word.endswith("s") or word.endswith("ss")):
                return True
            if word not in FILLERS and word not in NEGATIONS:
                return False
        return False

    def _match_verb(self, sentence: SentenceWords, place: int, clause: Clause, before: str, found: set[str]) -> bool:
        """Add the keys of the intentions that the verb at a place has; return whether a verb is there."""
        is_verb = False
        after = tuple(sentence.stems[place + 1 : place + 1 + PARTICLE_GAP])
        for rest, questions in self._verbs[sentence.stems[place]].items():
            if after[: len(rest)] == rest:
                end = place + 1 + len(rest)
            elif len(rest) == 1 and rest[0] in PARTICLES and rest[0] in after:
                end = place + 1
            else:
                continue
            # A command is one also behind "the": "run the terraform destroy command".
            is_name = is_noun(sentence, end, before)
            asked = [each for each in questions if not is_name or (rest and not each.words)]
            is_verb = is_verb or bool(asked)
            if left := [each for each in asked if each.key not in found]:
                found.update(each.key for each in left if rest and not each.words)
                found.update(self._find_objects(sentence, place, end, clause, left))
        return is_verb

    def _find_objects(
        self, sentence: SentenceWords, place: int, end: int, clause: Clause, questions: Sequence[SoughtIntention]
    ) -> Iterator[str]:
        """Yield the keys of the questions whose objects and qualifiers stand around a verb."""
        parts, near = self._read_surroundings(sentence, place, end, clause)
        qualifiers: frozenset[str] | None = None
        for part in parts:
            objects, harmless = set(phrases_in(part)), HARMLESS.intersection(part)
            for each in questions:
                if (each.objects and each.objects.isdisjoint(objects)) or not harmless <= each.words:
                    continue
                if each.qualifiers and qualifiers is None:
                    qualifiers = frozenset(phrases_in(near))
                if not each.qualifiers or not each.qualifiers.isdisjoint(qualifiers or ()):
                    yield each.key

    def _read_surroundings(
        self, sentence: SentenceWords, place: int, end: int, clause: Clause
    ) -> tuple[list[list[str]], list[str]]:
        """Return the stems that may be objects, for each part of a list, and those that may be qualifiers."""
        words, stems, breaks, _ = sentence
        near = stems[max(clause.start, place - CONTEXT_WORDS) : place]
        parts: list[list[str]] = [[]]
        if not BEING.isdisjoint(words[max(clause.start, place - 2) : place]):
            parts = [list(near), []]
        elif next((word for word in words[end : end + 3] if word not in ("all", "of")), "") in PRONOUNS:
            parts = [list(clause.earlier), []]
            near += clause.earlier
        stopped = False
        for position in range(end, min(end + QUALIFIER_GAP, len(words))):
            word = words[position]
            if breaks[position]:
                if breaks[position] == "then" or self._starts_verb(sentence, position):
                    break
                parts.append([])
            near.append(stems[position])
            stopped = (
                stopped
                or position >= end + OBJECT_GAP
                or word in STOPPERS
                or (word in CONTAINING and not all(stem in PARTS or stem.isdigit() for stem in parts[-1]))
                or (word == "to" and self._starts_verb(sentence, position + 1))
            )
            if not stopped:
                parts[-1].append(stems[position])
        return parts, near


def may_act(clause: Clause, break_before: str, before: str) -> bool:
    if clause.is_negated:
        return False
    if clause.head == "mention":
        return clause.is_solved and before == "by" and not clause.has_harmless
    if clause.head == "change":
        return before in ("to", "by") or bool(break_before)
    if clause.head == "act":
        return before in ("to", "by") and not clause.has_harmless
    # "The delete button removes all records" describes; "run the script that removes all records" does it.
    return clause.head == "run" or not clause.has_harmless


def is_noun(sentence: SentenceWords, end: int, before: str) -> bool:
    """Return whether a verb is rather a noun, as in "the delete button" and "docs on deleting"."""
    if before in PREPOSITIONS:
        return True
    return before in DETERMINERS and sentence.words[end : end + 1] != ["of"]


NO_WORD = re.compile(r"[\W_]+")

ASCII_WORDS = "".join(character if character.isalnum() else " " for character in map(chr, range(128)))


def normalize_words(text: str) -> str:
    """Return the words of a text in one case, each between single spaces, also at both ends.

    Everything but letters and digits separates words: `force-push` and `FORCE_PUSH` are `force push`. Compatible
    characters, such as those of full width, are the same.
    """
    if text.isascii():
        # The usual case, in a third of the time.
        return f" {' '.join(text.lower().translate(ASCII_WORDS).split())} "
    text = normalize_text(text, "NFKC")
    return f" {NO_WORD.sub(' ', text.casefold()).strip()} "
