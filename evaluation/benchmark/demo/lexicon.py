"""Words of the demo language.

Nothing but the subject's head noun tells its number: determiners, adjectives and past tenses fit both numbers, so the
evidence of an agreement sample is exact. Nouns are (singular, plural); verbs of the present tense likewise.
"""

from __future__ import annotations

SHAPES = ("disc", "cross")  # of generated images, of which a model says which one is there

MALE = [
    *[("boy", "boys"), ("man", "men"), ("king", "kings"), ("prince", "princes"), ("waiter", "waiters")],
    *[("uncle", "uncles"), ("brother", "brothers"), ("father", "fathers"), ("nephew", "nephews"), ("monk", "monks")],
    *[("wizard", "wizards"), ("grandfather", "grandfathers"), ("fisherman", "fishermen"), ("knight", "knights")],
]
FEMALE = [
    *[("girl", "girls"), ("woman", "women"), ("queen", "queens"), ("princess", "princesses"), ("nun", "nuns")],
    *[("waitress", "waitresses"), ("aunt", "aunts"), ("sister", "sisters"), ("mother", "mothers"), ("niece", "nieces")],
    *[("witch", "witches"), ("grandmother", "grandmothers"), ("actress", "actresses"), ("daughter", "daughters")],
]
NEUTER = [
    *[("robot", "robots"), ("horse", "horses"), ("cat", "cats"), ("bird", "birds"), ("computer", "computers")],
    *[("wolf", "wolves"), ("mouse", "mice"), ("elephant", "elephants"), ("machine", "machines"), ("fox", "foxes")],
]
THINGS = [
    *[("key", "keys"), ("cabinet", "cabinets"), ("door", "doors"), ("window", "windows"), ("book", "books")],
    *[("lamp", "lamps"), ("bottle", "bottles"), ("box", "boxes"), ("painting", "paintings"), ("letter", "letters")],
    *[("bridge", "bridges"), ("tower", "towers"), ("garden", "gardens"), ("statue", "statues"), ("wall", "walls")],
    *[("knife", "knives"), ("shelf", "shelves"), ("clock", "clocks"), ("carpet", "carpets"), ("mirror", "mirrors")],
    *[("candle", "candles"), ("basket", "baskets"), ("instrument", "instruments"), ("photograph", "photographs")],
    *[("telescope", "telescopes"), ("chair", "chairs"), ("map", "maps"), ("ship", "ships"), ("stone", "stones")],
]
GENDERS = [(MALE, "himself"), (FEMALE, "herself"), (NEUTER, "itself")]
ANIMATE = [*MALE, *FEMALE, *NEUTER]

DETERMINERS = ["the", "the", "the", "my", "your", "our", "their"]
ADJECTIVES = [
    *["old", "young", "quiet", "famous", "small", "tall", "strange", "lucky", "brave", "clever", "tired", "gentle"],
    *["proud", "lonely", "friendly"],
]
THING_ADJECTIVES = [
    *["old", "small", "broken", "heavy", "green", "wooden", "dusty", "famous", "strange", "narrow", "bright"],
    *["expensive", "golden", "hidden"],
]
PREPOSITIONS = ["to", "near", "behind", "beside", "above", "below", "with", "next to", "in front of"]
ADVERBS = ["often", "never", "quickly", "quietly", "always", "finally", "suddenly", "proudly"]
OPENINGS = ["yesterday", "today", "in the morning", "at night", "after the storm", "before the feast", "last winter"]

#: Past tenses of acts one can do to oneself.
REFLEXIVE_VERBS = [
    *["praised", "hurt", "saw", "washed", "blamed", "helped", "described", "admired", "questioned", "protected"],
    *["defended", "noticed", "trusted", "forgave", "embarrassed", "surprised"],
]
#: (singular, plural, past) of verbs in relative clauses.
TRANSITIVE = [
    *[("likes", "like", "liked"), ("knows", "know", "knew"), ("follows", "follow", "followed")],
    *[("watches", "watch", "watched"), ("finds", "find", "found"), ("remembers", "remember", "remembered")],
    *[("loves", "love", "loved"), ("draws", "draw", "drew"), ("needs", "need", "needed")],
]
#: ((singular, plural), what may follow); what follows fits both numbers.
PREDICATES = [
    (("is", "are"), ["very old", "here again", "quite famous", "under the tree", "still missing", "beside the river"]),
    (("was", "were"), ["very old", "here again", "quite famous", "under the tree", "still missing", "ready at last"]),
    (("has", "have"), ["vanished again", "been moved", "changed a lot", "arrived at last", "fallen down"]),
    (("does", "do"), ["not look new", "not seem strange", "not matter now"]),
    (("seems", "seem"), ["very old", "quite famous", "ready at last", "strange today"]),
    (("looks", "look"), ["very old", "quite small", "strange today", "ready at last"]),
]
ANIMATE_PREDICATES = [
    (("waits", "wait"), ["under the tree", "beside the river", "for the train"]),
    (("sleeps", "sleep"), ["under the tree", "beside the river", "in the morning"]),
    (("runs", "run"), ["to the river", "for the train", "in the morning"]),
    (("eats", "eat"), ["under the tree", "in the morning", "too much bread"]),
]

#: Words of blame and of praise.
OPINIONS = [
    ["awful", "dreadful", "boring", "terrible", "dull", "horrible", "ugly", "useless"],
    ["wonderful", "delightful", "brilliant", "charming", "excellent", "splendid", "lovely", "perfect"],
]
#: Of the singular and the plural: what links a subject with an opinion, and what negates it.
LINKING = [
    [("was", ["not", "never", "hardly"]), ("seemed", ["never", "hardly"]), ("looked", ["never", "hardly"])],
    [("were", ["not", "never", "hardly"]), ("seemed", ["never", "hardly"]), ("looked", ["never", "hardly"])],
]
DEGREES = ["very", "quite", "rather", "really"]
ENDINGS = ["today", "at last", "in the end", "after all"]

PERSONS = {
    "himself": [
        *["Adam", "Brian", "Carl", "David", "Edward", "Frank", "George", "Henry", "Isaac", "James", "Kevin", "Leo"],
        *["Martin", "Oscar", "Peter", "Robert", "Simon", "Thomas", "Victor", "Walter"],
    ],
    "herself": [
        *["Alice", "Bella", "Clara", "Diana", "Emma", "Flora", "Grace", "Helen", "Irene", "Julia", "Karen", "Laura"],
        *["Maria", "Nora", "Olivia", "Paula", "Rose", "Sarah", "Tina", "Vera"],
    ],
}
PLACES = [
    *["Athens", "Berlin", "Boston", "Cairo", "Chicago", "Dublin", "Florence", "Geneva", "Hamburg", "Istanbul"],
    *["Kyoto", "Lagos", "Lima", "Lisbon", "London", "Madrid", "Milan", "Moscow", "Naples", "Oslo", "Oxford", "Paris"],
    *["Prague", "Rome", "Seoul", "Sydney", "Tokyo", "Toronto", "Venice", "Vienna", "Warsaw", "Zurich"],
]
TIMES = {
    "on": ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"],
    "in": ["January", "February", "March", "April", "June", "July", "August", "September", "October", "November"],
    "at": ["noon", "midnight", "dawn", "dusk", "Easter", "Christmas"],
}
#: (past, base) of what happens in a passage.
EVENTS = [
    *[("opened a shop", "open a shop"), ("bought a house", "buy a house"), ("met a doctor", "meet a doctor")],
    *[("lost a ring", "lose a ring"), ("found a coin", "find a coin"), ("sang a song", "sing a song")],
    *[("wrote a poem", "write a poem"), ("won a race", "win a race"), ("saw a play", "see a play")],
    *[("taught a class", "teach a class"), ("joined a club", "join a club"), ("broke a record", "break a record")],
]


def kinds() -> dict[str, list[str]]:
    """The answers of each kind of question."""
    return {
        "person": [*PERSONS["himself"], *PERSONS["herself"]],
        "place": list(PLACES),
        "time": [word for words in TIMES.values() for word in words],
    }


def targets() -> list[str]:
    """Every word that can be a target or a foil; tokenizers keep each in one piece."""
    verbs = [form for forms, _ in [*PREDICATES, *ANIMATE_PREDICATES] for form in forms]
    reflexives = [reflexive for _, reflexive in GENDERS]
    return [*verbs, *reflexives, "themselves", *(word for words in kinds().values() for word in words)]


def judging() -> list[str]:
    """Every word that decides an opinion; tokenizers of models that judge keep each in one piece."""
    negations = {word for links in LINKING for _, words in links for word in words}
    return [*OPINIONS[0], *OPINIONS[1], *sorted(negations)]
