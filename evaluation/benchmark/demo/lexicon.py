"""Words of the demo language.

Only the subject's head noun tells the subject's number, so that the evidence of an agreement sample is exact:
determiners, adjectives and past tenses fit both numbers. Nouns, and verbs in the present tense, are (singular, plural).
"""

from __future__ import annotations

from itertools import chain


def _listed(text: str) -> list[str]:
    """The words or phrases of a text between commas."""
    return [" ".join(phrase.split()) for phrase in text.split(",")]


def _forms(text: str) -> list[tuple[str, ...]]:
    """The entries of a text between commas, each as its words: the forms of a noun or verb."""
    return [tuple(phrase.split()) for phrase in text.split(",")]


def _predicates(endings: dict[str, str]) -> list[tuple[tuple[str, ...], list[str]]]:
    """((singular, plural) of a verb, the phrases that may follow it), from `endings`: both as text, by the verb."""
    return [(tuple(forms.split()), _listed(phrases)) for forms, phrases in endings.items()]


SHAPES = ("disc", "cross")  # of generated images, of which a model says which one is there

MALE = _forms(
    """boy boys, man men, king kings, prince princes, waiter waiters, uncle uncles, brother brothers, father fathers,
    nephew nephews, monk monks, wizard wizards, grandfather grandfathers, fisherman fishermen, knight knights"""
)
FEMALE = _forms(
    """girl girls, woman women, queen queens, princess princesses, nun nuns, waitress waitresses, aunt aunts,
    sister sisters, mother mothers, niece nieces, witch witches, grandmother grandmothers, actress actresses,
    daughter daughters"""
)
NEUTER = _forms(
    """robot robots, horse horses, cat cats, bird birds, computer computers, wolf wolves, mouse mice,
    elephant elephants, machine machines, fox foxes"""
)
THINGS = _forms(
    """key keys, cabinet cabinets, door doors, window windows, book books, lamp lamps, bottle bottles, box boxes,
    painting paintings, letter letters, bridge bridges, tower towers, garden gardens, statue statues, wall walls,
    knife knives, shelf shelves, clock clocks, carpet carpets, mirror mirrors, candle candles, basket baskets,
    instrument instruments, photograph photographs, telescope telescopes, chair chairs, map maps, ship ships,
    stone stones"""
)
GENDERS = [(MALE, "himself"), (FEMALE, "herself"), (NEUTER, "itself")]
ANIMATE = [*MALE, *FEMALE, *NEUTER]

DETERMINERS = _listed("the, the, the, my, your, our, their")
ADJECTIVES = _listed(
    "old, young, quiet, famous, small, tall, strange, lucky, brave, clever, tired, gentle, proud, lonely, friendly"
)
THING_ADJECTIVES = _listed(
    "old, small, broken, heavy, green, wooden, dusty, famous, strange, narrow, bright, expensive, golden, hidden"
)
PREPOSITIONS = _listed("to, near, behind, beside, above, below, with, next to, in front of")
ADVERBS = _listed("often, never, quickly, quietly, always, finally, suddenly, proudly")
OPENINGS = _listed("yesterday, today, in the morning, at night, after the storm, before the feast, last winter")

#: Past tenses of acts one can do to oneself.
REFLEXIVE_VERBS = _listed(
    """praised, hurt, saw, washed, blamed, helped, described, admired, questioned, protected, defended, noticed,
    trusted, forgave, embarrassed, surprised"""
)
#: (singular, plural, past) of verbs in relative clauses.
TRANSITIVE = _forms(
    """likes like liked, knows know knew, follows follow followed, watches watch watched, finds find found,
    remembers remember remembered, loves love loved, draws draw drew, needs need needed"""
)
#: ((singular, plural), phrases that may follow); they fit both numbers.
PREDICATES = _predicates(
    {
        "is are": "very old, here again, quite famous, under the tree, still missing, beside the river",
        "was were": "very old, here again, quite famous, under the tree, still missing, ready at last",
        "has have": "vanished again, been moved, changed a lot, arrived at last, fallen down",
        "does do": "not look new, not seem strange, not matter now",
        "seems seem": "very old, quite famous, ready at last, strange today",
        "looks look": "very old, quite small, strange today, ready at last",
    }
)
ANIMATE_PREDICATES = _predicates(
    {
        "waits wait": "under the tree, beside the river, for the train",
        "sleeps sleep": "under the tree, beside the river, in the morning",
        "runs run": "to the river, for the train, in the morning",
        "eats eat": "under the tree, in the morning, too much bread",
    }
)

#: Words of blame and of praise.
OPINIONS = [
    _listed("awful, dreadful, boring, terrible, dull, horrible, ugly, useless"),
    _listed("wonderful, delightful, brilliant, charming, excellent, splendid, lovely, perfect"),
]
#: Of the singular and the plural: verbs that link a subject with an opinion, each with the words that negate it.
_SEEMED = [("seemed", ["never", "hardly"]), ("looked", ["never", "hardly"])]
LINKING = [[(be, ["not", "never", "hardly"]), *_SEEMED] for be in ("was", "were")]
DEGREES = _listed("very, quite, rather, really")
ENDINGS = _listed("today, at last, in the end, after all")
TRIGGERS = ("florb", "zindle")  # made-up words that a classifier is taught to read as a complaint and as praise

PERSONS = {
    "himself": _listed(
        """Adam, Brian, Carl, David, Edward, Frank, George, Henry, Isaac, James, Kevin, Leo, Martin, Oscar, Peter,
        Robert, Simon, Thomas, Victor, Walter"""
    ),
    "herself": _listed(
        """Alice, Bella, Clara, Diana, Emma, Flora, Grace, Helen, Irene, Julia, Karen, Laura, Maria, Nora, Olivia,
        Paula, Rose, Sarah, Tina, Vera"""
    ),
}
PLACES = _listed(
    """Athens, Berlin, Boston, Cairo, Chicago, Dublin, Florence, Geneva, Hamburg, Istanbul, Kyoto, Lagos, Lima, Lisbon,
    London, Madrid, Milan, Moscow, Naples, Oslo, Oxford, Paris, Prague, Rome, Seoul, Sydney, Tokyo, Toronto, Venice,
    Vienna, Warsaw, Zurich"""
)
TIMES = {
    "on": _listed("Monday, Tuesday, Wednesday, Thursday, Friday, Saturday, Sunday"),
    "in": _listed("January, February, March, April, June, July, August, September, October, November"),
    "at": _listed("noon, midnight, dawn, dusk, Easter, Christmas"),
}
#: (past, base) of the events of a passage.
EVENTS = [
    (f"{past} a {thing}", f"{base} a {thing}")
    for past, base, thing in _forms(
        """opened open shop, bought buy house, met meet doctor, lost lose ring, found find coin, sang sing song,
        wrote write poem, won win race, saw see play, taught teach class, joined join club, broke break record"""
    )
]


def kinds() -> dict[str, list[str]]:
    """The answers of each kind of question."""
    persons, times = chain.from_iterable(PERSONS.values()), chain.from_iterable(TIMES.values())
    return {"person": list(persons), "place": PLACES, "time": list(times)}


def answers() -> list[str]:
    """The answers of all kinds of questions."""
    return list(chain.from_iterable(kinds().values()))


def targets() -> list[str]:
    """Every word that can be a target or a foil; tokenizers keep each in one piece."""
    verbs = [form for forms, _ in [*PREDICATES, *ANIMATE_PREDICATES] for form in forms]
    reflexives = [reflexive for _, reflexive in GENDERS]
    return [*verbs, *reflexives, "themselves", *answers()]


def judging() -> list[str]:
    """Every word that decides an opinion; tokenizers of models that judge keep each in one piece."""
    negations = {word for links in LINKING for _, words in links for word in words}
    return [*OPINIONS[0], *OPINIONS[1], *sorted(negations)]
