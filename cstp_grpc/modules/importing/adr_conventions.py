"""Conventions of decision records in Markdown: words, file names, statuses, and relations to other records."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from enum import Enum, StrEnum
from functools import lru_cache
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from cstp_grpc.common.lazy_dataclass import dataclass, replace
from cstp_grpc.common.yaml_with_lines import YamlReader
from cstp_grpc.contract.enums import DecisionStatus, Outcome
from cstp_grpc.modules.importing.markdown_sections import MarkdownLine
from cstp_grpc.modules.importing.model import RecordError, collapse_spaces
from cstp_grpc.modules.importing.record_files import MARKDOWN_SUFFIXES, DateError, SourceNames, find_date, real_path

EDGES = re.compile(r"^[\W\d_]+|[\W\d_]+$")


def _load_words() -> Any:
    (document,) = YamlReader().read(Path(__file__).with_name("adr_words.yaml").read_text(encoding="utf-8"))
    return document.plain


ADR_WORDS: Final = _load_words()
"""The tables of `adr_words.yaml`, whose comments describe them."""


class SectionKind(Enum):
    """The subject of a section of a decision record, by its name in `adr_words.yaml`."""

    STATUS = "status"
    DATE = "date"
    CONTEXT = "context"
    DECISION = "decision"
    CONSEQUENCES = "consequences"
    DRIVERS = "drivers"
    OPTIONS = "options"
    LINKS = "links"
    SUMMARY = "summary"
    CAUSES = "causes"
    LESSONS = "lessons"
    ACTIONS = "actions"
    TIMELINE = "timeline"
    DESIGN = "design"
    RATIONALE = "rationale"
    PLAN = "plan"
    DRAWBACKS = "drawbacks"


KINDS_BY_HEADING = {heading: SectionKind(kind) for kind, names in ADR_WORDS["sections"].items() for heading in names}


# Cached: each heading is classified several times, and most records have the same headings.
@lru_cache(maxsize=1024)
def section_kind(heading: str) -> SectionKind | None:
    """Return the subject of a section by its heading, or None if the heading is not a usual one."""
    name = _without_edges(heading)
    if kind := KINDS_BY_HEADING.get(name):
        return kind
    # `Status: accepted` holds the status itself; after any other heading a colon begins the title of something else.
    kind = KINDS_BY_HEADING.get(_without_edges(name.partition(":")[0]))
    return kind if kind in (SectionKind.STATUS, SectionKind.DATE) else None


def _without_edges(heading: str) -> str:
    """Return a heading without the numbers, emoji and punctuation around it."""
    return EDGES.sub("", heading.lower().replace("(optional)", "").replace("(s)", "s"))


SERIES = r"(?P<series>adr|madr|rfc|edr|ddr|tdr|decision)"
DATED_NAME = re.compile(r"(?P<date>\d{4}-\d\d-\d\d|(?:19|20)\d{6})(?:[-_ .]+|$)")
YEAR = re.compile(r"(?:19|20)\d\d(?!\d)")
"""Numbers that are taken for a year, not for the number of a record: 1900 to 2099."""
NUMBERED_NAME = re.compile(rf"(?:{SERIES}[-_ ]*)?0*(?P<number>\d{{1,5}})(?:[-_ .]+|$)", re.IGNORECASE)
WRITTEN_NUMBER = re.compile(rf"\W?{SERIES}[-_ #]*0*(?P<number>\d{{1,5}})\b", re.IGNORECASE)
TITLE_NUMBER = re.compile(r"#?0*(?P<number>\d{1,5})(?P<mark>\s*[.:)|]\s+|\s*[-–—]\s+|\s+)(?=\S)")
PLACEHOLDER = re.compile(
    r"(?:adr[-.: ]*)?(?:(?:number|n{1,6}|x{1,6}|\d{1,6})[-.: ]*)?"
    r"(?:\{.*\}|\[.*\]|<.*>|(?:short |adr |decision |record )?title(?: of .*| here)?|short noun phrase)[.…]*",
    re.IGNORECASE,
)
PREFIX = re.compile(r"(?:adr\s*:|(?:architectur(?:e|al) )?decision record\s*[:–—-])\s*(?=\S)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class AdrNumber:
    """The number of a record in its series, such as 12 of `adr`."""

    series: str
    number: int

    def __str__(self) -> str:
        return f"{self.series}:{self.number}"


@dataclass(frozen=True, slots=True)
class AdrTitle:
    """A title without a bare number at its beginning; `written` is that number, or one in words like ADR-12."""

    text: str
    written: AdrNumber | None = None


def name_stem(path: Path) -> str:
    """Return a file's name without its ending; for a README or an index, the name of its folder."""
    return path.parent.name if path.stem.lower() in ADR_WORDS["index_files"] else path.stem


def number_in_name(path: Path) -> AdrNumber | None:
    stem = name_stem(path)
    # `2019-01-05-use-redis` and `2019-review` begin with a date, not with record 2019.
    match = None if DATED_NAME.match(stem) or YEAR.match(stem) else NUMBERED_NAME.match(stem)
    return _to_number(match) if match else None


def slug_in_name(path: Path) -> str:
    stem = name_stem(path)
    match = DATED_NAME.match(stem) or (None if YEAR.match(stem) else NUMBERED_NAME.match(stem))
    return "-".join(re.findall(r"[^\W_]+", (stem[match.end() :] if match else stem).lower()))


def date_in_name(path: Path) -> datetime | None:
    match = DATED_NAME.match(name_stem(path))
    try:
        return find_date(match["date"]) if match else None
    except DateError:
        return None


def title_from_name(path: Path) -> str:
    stem = name_stem(path)
    match = DATED_NAME.match(stem) or NUMBERED_NAME.match(stem)
    words = collapse_spaces(re.sub(r"[-_]+", " ", stem[match.end() :] if match else stem))
    return words[:1].upper() + words[1:] if words else stem


def parse_title(heading: str, expected: AdrNumber | None) -> AdrTitle:
    """Return the title in a heading, without words that only say that it is a decision record.

    A bare number, as in `3 ways to log in`, is taken off only if it is the `expected` one.
    """
    text = collapse_spaces(heading)
    text = text[prefix.end() :] if (prefix := PREFIX.match(text)) else text
    if match := WRITTEN_NUMBER.match(text):
        return AdrTitle(text, _to_number(match))
    match = TITLE_NUMBER.match(text)
    if match:
        number = int(match["number"])
        # `12. Use Redis`, `#12 Use Redis` and `012 Use Redis` are numbered whatever the file's name says.
        if match["mark"].strip() or match[0][0] in "#0" or (expected and expected.number == number):
            return AdrTitle(text[match.end() :], AdrNumber("adr", number))
    return AdrTitle(text)


def is_placeholder(title: str) -> bool:
    """Return whether a title is that of a template and was never filled in."""
    return PLACEHOLDER.fullmatch(title.strip()) is not None


def is_generic_title(title: str) -> bool:
    """Return whether a title only says that this is a record, as a template's does."""
    words = re.findall(r"[^\W\d_]+", title.lower())
    return " ".join(word for word in words if word not in ADR_WORDS["title_fillers"]) in ADR_WORDS["generic_titles"]


def is_template_name(path: Path) -> bool:
    """Return whether a file is the template of records, by its name."""
    words = [word for word in re.split(r"[-_ .]+", path.stem.lower()) if word.strip("0")]
    return "template" in words and set(words) <= {"template", *ADR_WORDS["template_words"]}


def is_record_name(path: Path) -> bool:
    """Return whether the name of a file, or of its folder for an index, has a number or a date as records have."""
    return number_in_name(path) is not None or date_in_name(path) is not None


def _to_number(match: re.Match[str]) -> AdrNumber:
    series = (match["series"] or "adr").lower()
    return AdrNumber("adr" if series in ("madr", "decision") else series, int(match["number"]))


LONGEST_LINE = 1000
"""Characters of a line that are searched. Chosen: a longer line is prose. It also bounds backtracking in patterns."""

PARTLY = r"(?:partially|partly|in\s+part)"
VERB = re.compile(
    rf"(?P<before>\b{PARTLY}\W{{1,3}})?(?:"
    rf"(?P<superseded_by>\b(?:super[sc]eded|replaced|obsoleted|overridden|deprecated|retired)"
    rf"(?P<inside>\W{{1,3}}{PARTLY}\)?)?\s+by\b|\bsuper[sc]eded\b)"
    r"|(?P<supersedes>\b(?:super[sc]edes?|superseding|replaces|obsoletes|overrides|deprecates)\b)"
    r"|(?P<depends_on>\b(?:depends\s+on|requires|builds\s+(?:up)?on|based\s+on)\b)"
    r"|(?P<relates_to>\b(?:amend(?:ed\s+by|s)|clarifie(?:d\s+by|s)|refine(?:d\s+by|s)|extend(?:ed\s+by|s)"
    r"|update(?:d\s+by|s)|required\s+by|relate(?:d|s)(?:\s+to)?|linked\s+to|conflicts\s+with|see(?:\s+also)?)\b)"
    rf")(?P<after>\W{{1,3}}{PARTLY}\b)?",
    re.IGNORECASE,
)
"""A verb that relates a record to another; its groups are named after RelationKind."""
FILE_NAME_END = r"(?P<slug>[-_][^\W\d_][\w-]*(?P<ending>\.(?:md|markdown))?)?(?!\w)"
"""The rest of a file's name after the number, as in `0002-use-redis.md`."""
NAMED_RECORD = re.compile(rf"\bADR[-_ #]{{0,2}}(?P<zeros>0*)(?P<number>\d{{1,5}}){FILE_NAME_END}", re.IGNORECASE)
BARE_NUMBER = re.compile(
    rf"[:\s]*(?P<name>(?P<zeros>#?0*)(?P<number>\d{{1,5}}){FILE_NAME_END})(?![-/.:]\d)", re.IGNORECASE
)
COUNTED_THINGS = re.compile(r"\s+(?!(?:and|or|as|on|in|by|since|from|for|but|due|because|which|to)\b)[a-z]")
"""The text after a number that is a count, as in `requires 3 replicas`, not the number of a record."""


class RelationKind(StrEnum):
    """How a record relates to another; of several relations to one record the first of these counts."""

    SUPERSEDES = "supersedes"
    SUPERSEDED_BY = "superseded_by"
    DEPENDS_ON = "depends_on"
    RELATES_TO = "relates_to"


@dataclass(frozen=True, slots=True)
class RecordRelation:
    """How a record relates to another, by a link's address or its number; both are None if it is not named.

    `text` is how the line names it; `partly` says that `kind` holds only in part.
    """

    kind: RelationKind
    href: str | None = None
    number: int | None = None
    text: str = ""
    partly: bool = False

    @property
    def link_kind(self) -> RelationKind:
        """The kind of the link in the journal: a partial relation only relates the two."""
        return RelationKind.RELATES_TO if self.partly else self.kind


def parse_relations(lines: Sequence[MarkdownLine]) -> list[RecordRelation]:
    """Return the relations to other records that lines state.

    A verb at the end of a line, as in `Supersedes:`, holds for the following lines up to the next one with a verb.
    """
    relations: list[RecordRelation] = []
    carried: RecordRelation | None = None
    for line in (each.truncate(LONGEST_LINE) for each in lines):
        verbs = list(VERB.finditer(line.text))
        # A verb governs the text up to the next one: `supersedes ADR-2, depends on ADR-3` states two relations.
        ends = [*(verb.start() for verb in verbs), len(line.text)]
        leading = carried if carried and not verbs else RecordRelation(RelationKind.RELATES_TO)
        relations += _name_records(leading, line, 0, ends[0], bare=False)
        for verb, end in zip(verbs, ends[1:], strict=True):
            kind = next(kind for kind in RelationKind if verb[kind.value])
            relation = RecordRelation(kind, partly=bool(verb["before"] or verb["inside"] or verb["after"]))
            named = list(_name_records(relation, line, verb.end(), end, bare=True))
            relations += named or [relation]
            carried = None if named else relation
    return relations


def _name_records(
    relation: RecordRelation, line: MarkdownLine, start: int, end: int, *, bare: bool
) -> Iterator[RecordRelation]:
    """Yield the relation to each record named in a part of a line; a `bare` number counts only right after a verb."""
    links = [link for link in line.links if start <= link.start < end]
    for link in links:
        yield replace(relation, href=link.href, text=line.text[link.start : link.end])
    for match in NAMED_RECORD.finditer(line.text, start, end):
        # A number within the text of a link is that link, which was taken by its address.
        if not any(link.start <= match.start() < link.end for link in links):
            yield _relate_to_match(relation, match, match[0])
    number = BARE_NUMBER.match(line.text, start, end) if bare and not links else None
    if number and (number["zeros"] or not COUNTED_THINGS.match(line.text, number.end(), end)):
        yield _relate_to_match(relation, number, number["name"])


def _relate_to_match(relation: RecordRelation, match: re.Match[str], name: str) -> RecordRelation:
    """Return the relation to a record that is named by its file, or by its number alone."""
    # Without an ending or zeros, as in `ADR-12-style`, what follows the number is no part of a file's name.
    if match["slug"] and (match["ending"] or match["zeros"]):
        return replace(relation, href=name, text=name)
    return replace(relation, number=int(match["number"]), text=name)


class StatusMeaning(Enum):
    """The status and outcome of a decision that a status word means.

    If a record has several, the one with the highest rank counts: decisions are proposed, taken, dropped and replaced
    in this order, and a list of them may be written in either direction.
    """

    PROPOSED = (DecisionStatus.PROPOSED, None, 1)
    DECIDED = (DecisionStatus.DECIDED, None, 2)
    IN_PART = (DecisionStatus.DECIDED, Outcome.PARTIAL, 3)
    DROPPED = (DecisionStatus.DECIDED, Outcome.ABANDONED, 4)
    OUTDATED = (DecisionStatus.DECIDED, Outcome.PARTIAL, 5)
    SUPERSEDED = (DecisionStatus.SUPERSEDED, Outcome.PARTIAL, 6)

    def __init__(self, status: DecisionStatus, outcome: Outcome | None, rank: int) -> None:
        self.status = status
        self.outcome = outcome
        self.rank = rank


MEANINGS = {word: StatusMeaning[name.upper()] for name, words in ADR_WORDS["statuses"].items() for word in words}
IGNORED_WORDS = (
    "status|currently|now|on|as|of|the|was|is|tentatively|provisionally|unanimously|partially|partly"
    "|jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|sept?(?:ember)?|oct(?:ober)?"
    "|nov(?:ember)?|dec(?:ember)?"
)
# The longest first, since a pattern takes the first alternative that fits: `not accepted` before `accepted`.
STATUS_WORDS = "|".join(re.escape(word) for word in sorted(MEANINGS, key=len, reverse=True))
STATUS_BEGINNING = re.compile(
    rf"(?:[\W\d_]|\b(?:{IGNORED_WORDS})\b)*?(?<!\w)(?P<word>{STATUS_WORDS})(?!\w)", re.IGNORECASE
)
AFTER_STATUS = re.compile(
    r"\s*(?:$|[^\w\s]|\d|(?:by|on|in|at|for|as|since|and|but|with|until|from|after|due)\b)", re.IGNORECASE
)
"""The text allowed after a status word. Other text makes it the start of a sentence, as in `New services are`."""
STATUS_ANYWHERE = re.compile(rf"(?<!\w)(?:{STATUS_WORDS})(?!\w)")
CHOICE_SEPARATOR = re.compile(r"\s*[|/]\s*|\s+or\s+")


@dataclass(frozen=True, slots=True)
class AdrStatus:
    """The status of a record.

    `meaning` is None if no known word is found; `text` is the line that counts, as written; `chosen` is False if the
    status is still the list of choices of a template.
    """

    meaning: StatusMeaning | None
    text: str
    relations: tuple[RecordRelation, ...] = ()
    chosen: bool = True


def parse_status(lines: Sequence[MarkdownLine]) -> AdrStatus | None:
    """Return the status that lines state, or None if they are blank."""
    filled = [line.truncate(LONGEST_LINE) for line in lines if line.text.strip()]
    if not filled:
        return None
    if any(_is_choice(line.text) for line in filled):
        return AdrStatus(None, collapse_spaces(filled[0].text), chosen=False)
    best, text = None, filled[0].text
    for number, line in enumerate(filled):
        meaning = _meaning_of(line, first=number == 0)
        if meaning and (best is None or meaning.rank > best.rank):
            best, text = meaning, line.text
    return AdrStatus(best, collapse_spaces(text), tuple(parse_relations(filled)))


def _is_choice(text: str) -> bool:
    """Return whether a status is the list that a template begins with, such as `proposed | accepted | rejected`."""
    parts = CHOICE_SEPARATOR.split(text.strip(" {}[]<>().?\"'"))
    beginnings = sum(bool(STATUS_BEGINNING.match(part)) for part in parts)
    # More than what a sentence such as `proposed, then accepted` has; templates list at least three, with signs between
    # them.
    return beginnings > 2 or len(set(STATUS_ANYWHERE.findall(text.lower()))) > 3


def _meaning_of(line: MarkdownLine, *, first: bool) -> StatusMeaning | None:
    match = STATUS_BEGINNING.match(line.text)
    counts = match and (first or AFTER_STATUS.match(line.text, match.end()))
    stated = MEANINGS[match["word"].lower()] if match and counts else None
    replacing = [each for each in parse_relations([line]) if each.kind is RelationKind.SUPERSEDED_BY]
    if not replacing:
        return stated
    in_part = all(relation.partly for relation in replacing)
    replaced = StatusMeaning.IN_PART if in_part else StatusMeaning.SUPERSEDED
    if stated in (None, StatusMeaning.SUPERSEDED):
        return replaced
    return max(stated, replaced, key=lambda meaning: meaning.rank)


class LinkResolver:
    """Finds the sources of the Markdown records that others refer to.

    `is_record` returns whether a file is a record, whether or not it is being imported: the links of a record must not
    depend on the files imported with it.
    """

    def __init__(self, sources: SourceNames, is_record: Callable[[Path], bool]) -> None:
        self._sources = sources
        self._is_record = is_record
        self._folders: dict[Path, RecordFolder] = {}

    def find_file(self, origin: Path, relation: RecordRelation) -> Path | None:
        """Return the file to which `origin` refers, or None; both without symbolic links."""
        if relation.number is not None:
            return self._folder(origin.parent).by_number(relation.number)
        return self._find_linked(origin, relation.href) if relation.href else None

    def source_of(self, path: Path) -> str | None:
        """Return the source of a file that another refers to, or None if the file is not an importable record."""
        try:
            return self._sources.source_of(path) if self._is_record(path) else None
        except RecordError:
            return None

    def _find_linked(self, origin: Path, href: str) -> Path | None:
        path = _local_path(href)
        if not path:
            return None
        base = origin.parent
        if path.startswith("/"):
            base = self._sources.work_tree(origin) or base
        target = Path(os.path.normpath(base / path.lstrip("/")))
        if target.suffix.lower() not in ("", ".html", *MARKDOWN_SUFFIXES):
            return None
        # Site generators omit the extension in links, or replace it with .html.
        spellings = [target, *([target.with_name(target.name.removesuffix(".html") + ".md")] if target.name else [])]
        for name in spellings:
            if name.suffix.lower() in MARKDOWN_SUFFIXES and (file := _existing_file(name)):
                return file
        # Records that are merged in another order get other numbers, and links to them are forgotten: then the number
        # is that of another record, and only the words of the name tell which one is meant.
        if slug := slug_in_name(target):
            return self._folder(target.parent).by_slug(slug)
        number = number_in_name(target)
        return self._folder(target.parent).by_number(number.number) if number else None

    def _folder(self, folder: Path) -> RecordFolder:
        if folder not in self._folders:
            self._folders[folder] = RecordFolder(folder)
        return self._folders[folder]


class RecordFolder:
    """The Markdown files of a folder by the numbers and by the words in their names."""

    def __init__(self, folder: Path) -> None:
        self._numbers: dict[int, list[Path]] = {}
        self._slugs: dict[str, list[Path]] = {}
        try:
            files = sorted(path for path in folder.iterdir() if path.suffix.lower() in MARKDOWN_SUFFIXES)
        except OSError:
            files = []
        for path in files:
            if file := _existing_file(path):
                self._slugs.setdefault(slug_in_name(path), []).append(file)
                if number := number_in_name(path):
                    self._numbers.setdefault(number.number, []).append(file)

    def by_number(self, number: int) -> Path | None:
        return _only_file(self._numbers.get(number, []))

    def by_slug(self, slug: str) -> Path | None:
        return _only_file(self._slugs.get(slug, []))


def should_exist(relation: RecordRelation) -> bool:
    """Return whether a relation names a record by a number or by the address of a Markdown file.

    A link that only relates two files names one if its file has the number or the date of a record.
    """
    if relation.href is None:
        return relation.number is not None
    path = Path(_local_path(relation.href))
    markdown = path.suffix.lower() in MARKDOWN_SUFFIXES
    return markdown and (relation.kind is not RelationKind.RELATES_TO or is_record_name(path))


def _local_path(href: str) -> str:
    """Return the path of a link to a file, empty for any other link."""
    try:
        parts = urlsplit(href)
    except ValueError:
        return ""
    path = unquote(parts.path)
    # `%00` in an address becomes a character that no path can have.
    return "" if parts.scheme or parts.netloc or "\0" in path else path


def _existing_file(path: Path) -> Path | None:
    try:
        return real_path(path) if path.is_file() else None
    except (OSError, RecordError):
        return None


def _only_file(files: Sequence[Path]) -> Path | None:
    return files[0] if len(files) == 1 else None
