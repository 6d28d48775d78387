"""The English words by which plain sentences are understood: stems, and lists of words that govern others."""

from __future__ import annotations

import re
from typing import Final

VOWEL = re.compile("[aeiouy]")


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
