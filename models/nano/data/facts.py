"""Facts, definitions and translations: all that lily-nano knows about the world.

What is held out here is the wording: each fact is learnt, some of the ways to ask for it are not.
"""

from .item import Item, Retry
from .lexicon import ADJECTIVES, NOUNS, VERBS

CAPITALS = """France/Frankreich Paris/Paris; Germany/Deutschland Berlin/Berlin; Italy/Italien Rome/Rom; Spain/Spanien Madrid/Madrid;
Portugal/Portugal Lisbon/Lissabon; Austria/Österreich Vienna/Wien; Poland/Polen Warsaw/Warschau; Greece/Griechenland Athens/Athen;
Norway/Norwegen Oslo/Oslo; Sweden/Schweden Stockholm/Stockholm; Finland/Finnland Helsinki/Helsinki; Denmark/Dänemark Copenhagen/Kopenhagen;
Ireland/Irland Dublin/Dublin; Hungary/Ungarn Budapest/Budapest; Romania/Rumänien Bucharest/Bukarest; Bulgaria/Bulgarien Sofia/Sofia;
Croatia/Kroatien Zagreb/Zagreb; Serbia/Serbien Belgrade/Belgrad; Belgium/Belgien Brussels/Brüssel; Russia/Russland Moscow/Moskau;
Ukraine/Ukraine Kyiv/Kiew; Turkey/Türkei Ankara/Ankara; Egypt/Ägypten Cairo/Kairo; Morocco/Marokko Rabat/Rabat; Kenya/Kenia Nairobi/Nairobi;
Ghana/Ghana Accra/Accra; Nigeria/Nigeria Abuja/Abuja; Ethiopia/Äthiopien Addis_Ababa/Addis_Abeba; Japan/Japan Tokyo/Tokio; China/China Beijing/Peking;
India/Indien New_Delhi/Neu-Delhi; Thailand/Thailand Bangkok/Bangkok; Vietnam/Vietnam Hanoi/Hanoi; Indonesia/Indonesien Jakarta/Jakarta;
Iran/Iran Tehran/Teheran; Iraq/Irak Baghdad/Bagdad; Israel/Israel Jerusalem/Jerusalem; Canada/Kanada Ottawa/Ottawa; Mexico/Mexiko Mexico_City/Mexiko-Stadt;
Cuba/Kuba Havana/Havanna; Brazil/Brasilien Brasília/Brasília; Argentina/Argentinien Buenos_Aires/Buenos_Aires; Chile/Chile Santiago/Santiago;
Peru/Peru Lima/Lima; Colombia/Kolumbien Bogotá/Bogotá; Ecuador/Ecuador Quito/Quito; Australia/Australien Canberra/Canberra;
Switzerland/Schweiz Bern/Bern; Iceland/Island Reykjavík/Reykjavík; Slovakia/Slowakei Bratislava/Bratislava; Slovenia/Slowenien Ljubljana/Ljubljana;
Latvia/Lettland Riga/Riga; Estonia/Estland Tallinn/Tallinn; Lithuania/Litauen Vilnius/Vilnius"""
ELEMENTS = """H hydrogen/Wasserstoff 1; He helium/Helium 2; Li lithium/Lithium 3; C carbon/Kohlenstoff 6; N nitrogen/Stickstoff 7; O oxygen/Sauerstoff 8;
F fluorine/Fluor 9; Ne neon/Neon 10; Na sodium/Natrium 11; Mg magnesium/Magnesium 12; Al aluminium/Aluminium 13; Si silicon/Silizium 14;
P phosphorus/Phosphor 15; S sulfur/Schwefel 16; Cl chlorine/Chlor 17; K potassium/Kalium 19; Ca calcium/Calcium 20; Fe iron/Eisen 26;
Cu copper/Kupfer 29; Zn zinc/Zink 30; Ag silver/Silber 47; Sn tin/Zinn 50; I iodine/Iod 53; Au gold/Gold 79; Hg mercury/Quecksilber 80; Pb lead/Blei 82;
U uranium/Uran 92"""
OPPOSITES = """big/groß small/klein; old/alt new/neu; good/gut bad/schlecht; warm/warm cold/kalt; fast/schnell slow/langsam; high/hoch low/niedrig;
long/lang short/kurz; strong/stark weak/schwach; light/leicht heavy/schwer; hard/hart soft/weich; loud/laut quiet/leise; clean/sauber dirty/schmutzig;
empty/leer full/voll; rich/reich poor/arm; happy/glücklich sad/traurig; bright/hell dark/dunkel; wide/breit narrow/schmal; thick/dick thin/dünn;
wet/nass dry/trocken; sweet/süß bitter/bitter; cheap/billig expensive/teuer; healthy/gesund sick/krank; right/richtig wrong/falsch; open/offen closed/geschlossen;
early/früh late/spät; left/links right/rechts; up/oben down/unten; day/Tag night/Nacht; summer/Sommer winter/Winter; friend/Freund enemy/Feind"""
# A question in both languages (several wordings, split by |), and the answers: short and in a sentence.
MORE = """
How many days does a week have?|How many days are in a week? = Wie viele Tage hat eine Woche?|Wie viele Tage sind in einer Woche? = 7 = 7 = A week has 7 days. = Eine Woche hat 7 Tage.
How many months does a year have?|How many months are in a year? = Wie viele Monate hat ein Jahr? = 12 = 12 = A year has 12 months. = Ein Jahr hat 12 Monate.
How many days does a year have?|How many days are in a year? = Wie viele Tage hat ein Jahr? = 365 = 365 = A year has 365 days, a leap year 366. = Ein Jahr hat 365 Tage, ein Schaltjahr 366.
How many hours does a day have?|How many hours are in a day? = Wie viele Stunden hat ein Tag? = 24 = 24 = A day has 24 hours. = Ein Tag hat 24 Stunden.
How many minutes does an hour have?|How many minutes are in an hour? = Wie viele Minuten hat eine Stunde? = 60 = 60 = An hour has 60 minutes. = Eine Stunde hat 60 Minuten.
How many letters does the English alphabet have?|How long is the alphabet? = Wie viele Buchstaben hat das Alphabet? = 26 = 26 = The alphabet has 26 letters. = Das Alphabet hat 26 Buchstaben.
How many legs does a spider have?|How many legs has a spider? = Wie viele Beine hat eine Spinne? = 8 = 8 = A spider has 8 legs. = Eine Spinne hat 8 Beine.
How many legs does an insect have?|How many legs has an ant? = Wie viele Beine hat ein Insekt?|Wie viele Beine hat eine Ameise? = 6 = 6 = An insect has 6 legs. = Ein Insekt hat 6 Beine.
How many legs does a dog have?|How many legs has a dog? = Wie viele Beine hat ein Hund? = 4 = 4 = A dog has 4 legs. = Ein Hund hat 4 Beine.
How many planets are there?|How many planets does the solar system have? = Wie viele Planeten hat das Sonnensystem?|Wie viele Planeten gibt es? = 8 = 8 = The solar system has 8 planets. = Das Sonnensystem hat 8 Planeten.
Which planet is the largest?|What is the largest planet? = Welcher Planet ist der größte?|Was ist der größte Planet? = Jupiter = Jupiter = Jupiter is the largest planet. = Jupiter ist der größte Planet.
Which planet is closest to the sun?|What planet is nearest to the sun? = Welcher Planet ist der Sonne am nächsten? = Mercury = Merkur = Mercury is closest to the sun. = Merkur ist der Sonne am nächsten.
Which planet is called the red planet?|What is the red planet? = Welcher Planet heißt der rote Planet?|Was ist der rote Planet? = Mars = Mars = Mars is called the red planet. = Mars heißt der rote Planet.
What is the highest mountain?|Which mountain is the highest on Earth? = Was ist der höchste Berg?|Welcher Berg ist der höchste der Erde? = Mount Everest = Mount Everest = Mount Everest is the highest mountain. = Der Mount Everest ist der höchste Berg.
What is the largest ocean?|Which ocean is the largest? = Was ist der größte Ozean?|Welcher Ozean ist der größte? = the Pacific = der Pazifik = The Pacific is the largest ocean. = Der Pazifik ist der größte Ozean.
What is the largest animal?|Which animal is the largest? = Was ist das größte Tier?|Welches Tier ist das größte? = the blue whale = der Blauwal = The blue whale is the largest animal. = Der Blauwal ist das größte Tier.
What is the fastest land animal?|Which land animal is the fastest? = Was ist das schnellste Landtier? = the cheetah = der Gepard = The cheetah is the fastest land animal. = Der Gepard ist das schnellste Landtier.
How many continents are there?|How many continents does the Earth have? = Wie viele Kontinente gibt es? = 7 = 7 = There are 7 continents. = Es gibt 7 Kontinente.
At which temperature does water boil?|When does water boil? = Bei welcher Temperatur kocht Wasser?|Wann kocht Wasser? = 100 °C = 100 °C = Water boils at 100 °C. = Wasser kocht bei 100 °C.
At which temperature does water freeze?|When does water freeze? = Bei welcher Temperatur gefriert Wasser?|Wann gefriert Wasser? = 0 °C = 0 °C = Water freezes at 0 °C. = Wasser gefriert bei 0 °C.
What is the formula of water?|What is the chemical formula of water? = Was ist die Formel von Wasser? = H2O = H2O = The formula of water is H2O. = Die Formel von Wasser ist H2O.
What colour is the sky?|Which colour does the sky have? = Welche Farbe hat der Himmel? = blue = blau = The sky is blue. = Der Himmel ist blau.
What colour is grass?|Which colour does grass have? = Welche Farbe hat Gras? = green = grün = Grass is green. = Gras ist grün.
What colour is snow?|Which colour does snow have? = Welche Farbe hat Schnee? = white = weiß = Snow is white. = Schnee ist weiß.
What do bees make?|What does a bee make? = Was machen Bienen?|Was stellen Bienen her? = honey = Honig = Bees make honey. = Bienen machen Honig.
What do cows drink?|What does a cow drink? = Was trinken Kühe?|Was trinkt eine Kuh? = water = Wasser = Cows drink water. = Kühe trinken Wasser.
Where does the sun rise?|In which direction does the sun rise? = Wo geht die Sonne auf? = in the east = im Osten = The sun rises in the east. = Die Sonne geht im Osten auf.
Where does the sun set?|In which direction does the sun set? = Wo geht die Sonne unter? = in the west = im Westen = The sun sets in the west. = Die Sonne geht im Westen unter.
How many sides does a triangle have?|How many sides has a triangle? = Wie viele Seiten hat ein Dreieck? = 3 = 3 = A triangle has 3 sides. = Ein Dreieck hat 3 Seiten.
How many sides does a square have?|How many sides has a square? = Wie viele Seiten hat ein Quadrat? = 4 = 4 = A square has 4 sides. = Ein Quadrat hat 4 Seiten.
How many sides does a hexagon have?|How many sides has a hexagon? = Wie viele Seiten hat ein Sechseck? = 6 = 6 = A hexagon has 6 sides. = Ein Sechseck hat 6 Seiten.
How many bits are in a byte?|How many bits does a byte have? = Wie viele Bits hat ein Byte? = 8 = 8 = A byte has 8 bits. = Ein Byte hat 8 Bits.
Who wrote Faust?|Who is the author of Faust? = Wer schrieb Faust?|Wer ist der Autor von Faust? = Goethe = Goethe = Goethe wrote Faust. = Goethe schrieb Faust.
Who wrote Hamlet?|Who is the author of Hamlet? = Wer schrieb Hamlet?|Wer ist der Autor von Hamlet? = Shakespeare = Shakespeare = Shakespeare wrote Hamlet. = Shakespeare schrieb Hamlet.
Who painted the Mona Lisa?|Who is the painter of the Mona Lisa? = Wer malte die Mona Lisa? = Leonardo da Vinci = Leonardo da Vinci = Leonardo da Vinci painted the Mona Lisa. = Leonardo da Vinci malte die Mona Lisa.
When did the Berlin Wall fall?|In which year did the Berlin Wall fall? = Wann fiel die Berliner Mauer?|In welchem Jahr fiel die Mauer? = 1989 = 1989 = The Berlin Wall fell in 1989. = Die Berliner Mauer fiel 1989.
When did people first land on the moon?|In which year was the first moon landing? = Wann war die erste Mondlandung?|In welchem Jahr war die erste Mondlandung? = 1969 = 1969 = The first moon landing was in 1969. = Die erste Mondlandung war 1969.
What is the speed of light?|How fast is light? = Wie schnell ist das Licht?|Was ist die Lichtgeschwindigkeit? = about 300,000 km/s = etwa 300.000 km/s = Light travels at about 300,000 km/s. = Licht ist etwa 300.000 km/s schnell.
What is the currency of Japan?|Which money is used in Japan? = Was ist die Währung von Japan? = yen = Yen = The currency of Japan is the yen. = Die Währung von Japan ist der Yen.
What is the currency of Germany?|Which money is used in Germany? = Was ist die Währung von Deutschland? = euro = Euro = The currency of Germany is the euro. = Die Währung von Deutschland ist der Euro.
Which language is spoken in Brazil?|What do people speak in Brazil? = Welche Sprache spricht man in Brasilien? = Portuguese = Portugiesisch = In Brazil people speak Portuguese. = In Brasilien spricht man Portugiesisch.
Which language is spoken in Austria?|What do people speak in Austria? = Welche Sprache spricht man in Österreich? = German = Deutsch = In Austria people speak German. = In Österreich spricht man Deutsch.
"""
# Term in both languages, definition in both.
DEFINITIONS = """
a dog/ein Hund: a tame animal that barks/ein zahmes Tier, das bellt
a cat/eine Katze: a small tame animal that hunts mice/ein kleines zahmes Tier, das Mäuse jagt
a bird/ein Vogel: an animal with feathers and wings/ein Tier mit Federn und Flügeln
a fish/ein Fisch: an animal that lives in water and breathes with gills/ein Tier, das im Wasser lebt und durch Kiemen atmet
a tree/ein Baum: a tall plant with a trunk of wood/eine hohe Pflanze mit einem Stamm aus Holz
a forest/ein Wald: a large area full of trees/ein großes Gebiet voller Bäume
a river/ein Fluss: water that flows through the land to the sea/Wasser, das durch das Land zum Meer fließt
a mountain/ein Berg: a very high piece of land/ein sehr hohes Stück Land
an island/eine Insel: land with water all around it/Land, das von Wasser umgeben ist
a volcano/ein Vulkan: a mountain from which hot lava comes/ein Berg, aus dem heiße Lava kommt
a desert/eine Wüste: a dry region with few plants/eine trockene Gegend mit wenigen Pflanzen
a planet/ein Planet: a large round body that moves around a star/ein großer runder Körper, der um einen Stern kreist
a star/ein Stern: a huge ball of hot gas that shines/eine riesige Kugel aus heißem Gas, die leuchtet
the moon/der Mond: the body that moves around the Earth/der Körper, der um die Erde kreist
a year/ein Jahr: the time in which the Earth goes around the sun once/die Zeit, in der die Erde einmal um die Sonne kreist
a day/ein Tag: the time in which the Earth turns once/die Zeit, in der sich die Erde einmal dreht
an hour/eine Stunde: a time of 60 minutes/eine Zeit von 60 Minuten
a computer/ein Computer: a machine that works with data by following programs/eine Maschine, die Daten nach Programmen verarbeitet
a program/ein Programm: a list of instructions for a computer/eine Liste von Befehlen für einen Computer
a robot/ein Roboter: a machine that does work by itself/eine Maschine, die selbstständig arbeitet
a file/eine Datei: data that is stored under a name/Daten, die unter einem Namen gespeichert sind
a keyboard/eine Tastatur: a device with keys for typing/ein Gerät mit Tasten zum Schreiben
the internet/das Internet: a network that connects computers all over the world/ein Netz, das Computer in der ganzen Welt verbindet
a language model/ein Sprachmodell: a program that predicts the next piece of a text/ein Programm, das das nächste Stück eines Textes vorhersagt
a token/ein Token: a piece of text that a language model reads or writes at once/ein Stück Text, das ein Sprachmodell auf einmal liest oder schreibt
a kernel/ein Kernel: a small program that runs on a processor many times at once/ein kleines Programm, das auf einem Prozessor vielfach zugleich läuft
quantisation/Quantisierung: storing numbers with fewer bits/das Speichern von Zahlen mit weniger Bits
a dictionary/ein Wörterbuch: a book that explains words/ein Buch, das Wörter erklärt
a library/eine Bibliothek: a place where books are kept and lent/ein Ort, an dem man Bücher aufbewahrt und ausleiht
a school/eine Schule: a place where children learn/ein Ort, an dem Kinder lernen
a hospital/ein Krankenhaus: a place where sick people are treated/ein Ort, an dem kranke Menschen behandelt werden
a baker/ein Bäcker: a person who makes bread/eine Person, die Brot backt
a doctor/ein Arzt: a person who treats sick people/eine Person, die kranke Menschen behandelt
a teacher/ein Lehrer: a person who teaches others/eine Person, die andere unterrichtet
a king/ein König: a man who rules a country/ein Mann, der ein Land regiert
a bridge/eine Brücke: a way over a river or a road/ein Weg über einen Fluss oder eine Straße
a clock/eine Uhr: a device that shows the time/ein Gerät, das die Zeit anzeigt
a key/ein Schlüssel: a thing that opens a lock/ein Ding, das ein Schloss öffnet
a knife/ein Messer: a tool for cutting/ein Werkzeug zum Schneiden
a hammer/ein Hammer: a tool for driving nails/ein Werkzeug zum Einschlagen von Nägeln
a bicycle/ein Fahrrad: a vehicle with two wheels and pedals/ein Fahrzeug mit zwei Rädern und Pedalen
a car/ein Auto: a vehicle with an engine and four wheels/ein Fahrzeug mit einem Motor und vier Rädern
a ship/ein Schiff: a large vehicle that travels on water/ein großes Fahrzeug, das auf dem Wasser fährt
bread/Brot: a food baked from flour and water/ein Lebensmittel, das aus Mehl und Wasser gebacken wird
milk/Milch: a white drink that comes from cows/ein weißes Getränk, das von Kühen kommt
honey/Honig: a sweet food that bees make/ein süßes Lebensmittel, das Bienen herstellen
rain/Regen: water that falls from clouds/Wasser, das aus Wolken fällt
snow/Schnee: frozen water that falls from clouds/gefrorenes Wasser, das aus Wolken fällt
a triangle/ein Dreieck: a shape with three sides/eine Figur mit drei Seiten
a circle/ein Kreis: a round shape whose points all lie equally far from its middle/eine runde Figur, deren Punkte alle gleich weit von der Mitte liegen
a prime number/eine Primzahl: a number above one that only one and itself divide/eine Zahl über eins, die nur durch eins und sich selbst teilbar ist
a sum/eine Summe: the result of an addition/das Ergebnis einer Addition
"""


def _pairs(text):
    return [
        [tuple(p.replace("_", " ").split("/")) for p in entry.split()] for entry in text.replace("\n", " ").split(";")
    ]


_CAPITALS, _OPPOSITES = _pairs(CAPITALS), _pairs(OPPOSITES)
_ELEMENTS = [(s, tuple(n.split("/")), z) for s, n, z in (e.split() for e in ELEMENTS.replace("\n", " ").split(";"))]
_MORE = [line.split(" = ") for line in MORE.strip().splitlines()]
_DEFINITIONS = []
for _line in DEFINITIONS.strip().splitlines():
    _term, _text = _line.split(": ", 1)
    _DEFINITIONS.append((tuple(_term.split("/")), tuple(_text.split("/"))))
WEEK = [
    ("Monday", "Montag"),
    ("Tuesday", "Dienstag"),
    ("Wednesday", "Mittwoch"),
    ("Thursday", "Donnerstag"),
    ("Friday", "Freitag"),
    ("Saturday", "Samstag"),
    ("Sunday", "Sonntag"),
]


def _worded(d, kind, key, wordings):
    """One of the wordings; which of them are in the set is decided for each fact by itself.

    The first is always learnt, so that every fact is in the training set.
    """
    i = d.randint(0, len(wordings) - 1)
    if i:
        d.claim("fact", kind, key, i)
    elif d.held:
        raise Retry
    return wordings[i]


def capital(d, ql, al):
    i, j = ql == "de", al == "de"
    country, town = d.choice(_CAPITALS)
    the = "der " if al == "de" and country[1] in ("Türkei", "Schweiz", "Slowakei", "Ukraine") else ""
    of = (
        {
            "Türkei": "der Türkei",
            "Schweiz": "der Schweiz",
            "Slowakei": "der Slowakei",
            "Ukraine": "der Ukraine",
            "Iran": "dem Iran",
            "Irak": "dem Irak",
        }.get(country[1], country[1])
        if i
        else country[0]
    )
    if d.chance(0.75):
        q = _worded(
            d,
            "capital",
            country[0],
            {
                "en": [
                    "What is the capital of {c}?",
                    "capital of {c}?",
                    "Name the capital of {c}.",
                    "Which city is the capital of {c}?",
                    "What's the capital city of {c}?",
                    "Tell me the capital of {c}.",
                    "{c}'s capital?",
                    "Do you know the capital of {c}?",
                ],
                "de": [
                    "Was ist die Hauptstadt von {c}?",
                    "Hauptstadt von {c}?",
                    "Nenne die Hauptstadt von {c}.",
                    "Welche Stadt ist die Hauptstadt von {c}?",
                    "Wie heißt die Hauptstadt von {c}?",
                    "Sag mir die Hauptstadt von {c}.",
                    "Kennst du die Hauptstadt von {c}?",
                ],
            }[ql],
        ).format(c=of)
        a, long = (
            town[j],
            (
                f"The capital of {country[0]} is {town[0]}."
                if not j
                else f"Die Hauptstadt von {the}{country[1]} ist {town[1]}."
            ),
        )
    else:
        q = _worded(
            d,
            "country",
            country[0],
            {
                "en": [
                    "Which country has the capital {t}?",
                    "{t} is the capital of which country?",
                    "Of which country is {t} the capital?",
                ],
                "de": [
                    "Welches Land hat die Hauptstadt {t}?",
                    "Von welchem Land ist {t} die Hauptstadt?",
                    "{t} ist die Hauptstadt welches Landes?",
                ],
            }[ql],
        ).format(t=town[i])
        a, long = (
            country[j],
            (
                f"{town[0]} is the capital of {country[0]}."
                if not j
                else f"{town[1]} ist die Hauptstadt von {the}{country[1]}."
            ),
        )
    return Item(q, a, long, f"{country[j]}: {town[j]}.", gold=a)


def element(d, ql, al):
    symbol, name, z = d.choice(_ELEMENTS)
    i, j = ql == "de", al == "de"
    kind = d.randint(0, 2)
    if kind == 0:
        q = _worded(
            d,
            "symbol",
            symbol,
            {
                "en": ["What is the chemical symbol of {n}?", "What is the symbol for {n}?", "Chemical symbol of {n}?"],
                "de": ["Was ist das chemische Zeichen von {n}?", "Wie lautet das Symbol für {n}?", "Symbol von {n}?"],
            }[ql],
        )
        a, long = symbol, f"{name[j]}: {symbol}."
    elif kind == 1:
        q = _worded(
            d,
            "element",
            symbol,
            {
                "en": [
                    "Which element has the symbol {s}?",
                    "What does {s} stand for in chemistry?",
                    "Which element is {s}?",
                ],
                "de": [
                    "Welches Element hat das Zeichen {s}?",
                    "Wofür steht {s} in der Chemie?",
                    "Welches Element ist {s}?",
                ],
            }[ql],
        )
        a, long = name[j], (f"{symbol} is {name[0]}." if not j else f"{symbol} ist {name[1]}.")
    else:
        q = _worded(
            d,
            "z",
            symbol,
            {
                "en": [
                    "What is the atomic number of {n}?",
                    "Which atomic number does {n} have?",
                    "Atomic number of {n}?",
                ],
                "de": ["Was ist die Ordnungszahl von {n}?", "Welche Ordnungszahl hat {n}?", "Ordnungszahl von {n}?"],
            }[ql],
        )
        a, long = (
            z,
            (f"The atomic number of {name[0]} is {z}." if not j else f"Die Ordnungszahl von {name[1]} ist {z}."),
        )
    return Item(q.format(n=name[i], s=symbol), a, long, f"{name[j]}, {symbol}, {z}.", gold=a)


def opposite(d, ql, al):
    i, j = ql == "de", al == "de"
    pair = d.choice(_OPPOSITES)
    x, y = pair if d.chance(0.5) else pair[::-1]
    q = _worded(
        d,
        "opposite",
        x[0],
        {
            "en": [
                "What is the opposite of {x}?",
                "Opposite of {x}?",
                "Give the opposite of {x}.",
                "What is the contrary of '{x}'?",
            ],
            "de": [
                "Was ist das Gegenteil von {x}?",
                "Gegenteil von {x}?",
                "Nenne das Gegenteil von {x}.",
                "Wie heißt das Gegenteil von '{x}'?",
            ],
        }[ql],
    )
    long = f"The opposite of {x[0]} is {y[0]}." if not j else f"Das Gegenteil von {x[1]} ist {y[1]}."
    return Item(q.format(x=x[i]), y[j], long, f"{x[j]} - {y[j]}.", gold=y[j])


# Words that are both an adjective or a noun and a verb: the verb is asked for with its "to".
_AMBIGUOUS = {e.removeprefix("to ") for e, _ in VERBS} & {e for e, _ in [*NOUNS, *ADJECTIVES]}


def translate(d, ql, al):
    en, de = d.choice(d.choice((NOUNS, ADJECTIVES, VERBS, WEEK)))
    bare = en.removeprefix("to ")
    if bare in _AMBIGUOUS:
        bare = en
    if d.chance(0.5):
        q = _worded(
            d,
            "to German",
            en,
            {
                "en": [
                    "What is '{x}' in German?",
                    "Translate {x} into German.",
                    "How do you say {x} in German?",
                    "{x} in German?",
                    "German for {x}",
                ],
                "de": [
                    "Was heißt '{x}' auf Deutsch?",
                    "Übersetze {x} ins Deutsche.",
                    "Wie sagt man {x} auf Deutsch?",
                    "{x} auf Deutsch?",
                ],
            }[ql],
        )
        a, x = de, bare
    else:
        q = _worded(
            d,
            "to English",
            en,
            {
                "en": [
                    "What is '{x}' in English?",
                    "Translate {x} into English.",
                    "How do you say {x} in English?",
                    "{x} in English?",
                ],
                "de": [
                    "Was heißt '{x}' auf Englisch?",
                    "Übersetze {x} ins Englische.",
                    "Wie sagt man {x} auf Englisch?",
                    "{x} auf Englisch?",
                ],
            }[ql],
        )
        a, x = en, de.split()[-1] if d.chance(0.7) else de
    return Item(q.format(x=x), a, f"{x} = {a}.", f"{en} = {de}.", gold=a)


def order(d, ql, al):
    """Which day or month comes before or after another."""
    from .conversion import MONTHS

    j = al == "de"
    ring = d.choice((WEEK, MONTHS))
    at, step = d.randint(0, len(ring) - 1), d.choice((1, -1))
    x, y = ring[at], ring[(at + step) % len(ring)]
    what = ("day", "Tag") if ring is WEEK else ("month", "Monat")
    where = ("after" if step > 0 else "before", "nach" if step > 0 else "vor")
    q = _worded(
        d,
        "order",
        (x[0], step),
        {
            "en": [
                f"Which {what[0]} comes {where[0]} {x[0]}?",
                f"What {what[0]} is {where[0]} {x[0]}?",
                f"What comes {where[0]} {x[0]}?",
            ],
            "de": [f"Welcher {what[1]} kommt {where[1]} {x[1]}?", f"Was kommt {where[1]} {x[1]}?"],
        }[ql],
    )
    a = y[j]
    long = f"{a} comes {where[0]} {x[0]}." if not j else f"{where[1].capitalize()} {x[1]} kommt {a}."
    return Item(q, a, long, f"{x[j]}, {a}." if step > 0 else f"{a}, {x[j]}.", gold=a)


def more(d, ql, al):
    i, j = ql == "de", al == "de"
    row = d.choice(_MORE)
    q = _worded(d, "more", row[0], row[i].split("|"))
    a, long = row[2 + j], row[4 + j]
    return Item(q, a, long, long, gold=a)


def define(d, ql, al):
    i, j = ql == "de", al == "de"
    term, text = d.choice(_DEFINITIONS)
    bare = (
        term[i].split(" ", 1)[-1] if term[i].split()[0] in ("a", "an", "the", "ein", "eine", "der", "das") else term[i]
    )
    q = _worded(
        d,
        "define",
        term[0],
        {
            "en": [
                "What is {t}?",
                "Define {b}.",
                "Explain what {t} is.",
                "What does '{b}' mean?",
                "Definition of {b}?",
                "what is {t}",
            ],
            "de": [
                "Was ist {t}?",
                "Definiere {b}.",
                "Erkläre, was {t} ist.",
                "Was bedeutet '{b}'?",
                "Definition von {b}?",
                "was ist {t}",
            ],
        }[ql],
    )
    t = term[j][0].upper() + term[j][1:]
    long = f"{t} is {text[0]}." if not j else f"{t} ist {text[1]}."
    short = text[j][0].upper() + text[j][1:] + "."
    return Item(q.format(t=term[i], b=bare), short, long, f"{bare}.", gold=text[j].split(" ", 1)[1])


def fact(d, ql, al):
    make = d.choices([capital, element, opposite, translate, order, more, define], [18, 10, 10, 26, 6, 16, 14])[0]
    return make(d, ql, al)
