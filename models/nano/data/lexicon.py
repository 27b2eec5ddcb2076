"""Words that the generators draw from. Pairs are (English, German)."""

NAMES = """Anna Ben Clara David Emma Felix Greta Henry Ida Jonas Karla Leo Mia Noah Olga Paul Quentin Rosa Simon Tina
Ulla Victor Wanda Xaver Yara Zoe Adam Bella Carlo Dora Emil Fiona Gustav Hanna Igor Julia Kurt Lena Max Nina Oskar Petra
Ralf Sara Tom Uwe Vera Willi Alma Boris Celia Dirk Elsa Frank Gina Hugo Iris Jan Kim Lars Mona Nils""".split()
SURNAMES = """Adler Bauer Cole Dahl Ebert Falk Graf Hill Irving Jung Kern Lang Moss North Otto Parker Quill Reed Stone
Thorn Unger Vogel Wood York Zander Baker Carter Fisher Gardner Hunter Marsh Page Rivers Shaw Turner Winter""".split()
CITIES = """Berlin Hamburg Munich Cologne Bonn Bremen Leipzig Dresden Vienna Zurich Paris Lyon London Leeds Oxford Rome
Milan Madrid Lisbon Porto Oslo Bergen Stockholm Helsinki Copenhagen Warsaw Prague Budapest Athens Dublin Boston Chicago
Denver Dallas Seattle Toronto Tokyo Osaka Sydney Cairo Delhi Lima Quito Nairobi""".split()
CITY_DE = {"Munich": "München", "Cologne": "Köln", "Vienna": "Wien", "Zurich": "Zürich", "Rome": "Rom", "Milan": "Mailand",
           "Lisbon": "Lissabon", "Copenhagen": "Kopenhagen", "Warsaw": "Warschau", "Prague": "Prag", "Athens": "Athen",
           "Tokyo": "Tokio", "Cairo": "Kairo"}
COLOURS = [("red", "rot"), ("blue", "blau"), ("green", "grün"), ("yellow", "gelb"), ("black", "schwarz"),
           ("white", "weiß"), ("brown", "braun"), ("grey", "grau"), ("orange", "orange"), ("purple", "lila"), ("pink", "rosa")]
JOBS = [("teacher", "Lehrer"), ("doctor", "Arzt"), ("baker", "Bäcker"), ("farmer", "Bauer"), ("painter", "Maler"),
        ("pilot", "Pilot"), ("lawyer", "Anwalt"), ("nurse", "Pfleger"), ("cook", "Koch"), ("judge", "Richter"),
        ("plumber", "Klempner"), ("gardener", "Gärtner"), ("engineer", "Ingenieur"), ("writer", "Autor"),
        ("driver", "Fahrer"), ("singer", "Sänger"), ("tailor", "Schneider"), ("carpenter", "Tischler")]
# Nouns with the German article.
NOUNS = [
    ("apple", "der Apfel"), ("bread", "das Brot"), ("house", "das Haus"), ("tree", "der Baum"), ("dog", "der Hund"),
    ("cat", "die Katze"), ("bird", "der Vogel"), ("fish", "der Fisch"), ("horse", "das Pferd"), ("cow", "die Kuh"),
    ("pig", "das Schwein"), ("mouse", "die Maus"), ("bear", "der Bär"), ("wolf", "der Wolf"), ("fox", "der Fuchs"),
    ("table", "der Tisch"), ("chair", "der Stuhl"), ("door", "die Tür"), ("window", "das Fenster"), ("lamp", "die Lampe"),
    ("book", "das Buch"), ("pen", "der Stift"), ("paper", "das Papier"), ("letter", "der Brief"), ("school", "die Schule"),
    ("street", "die Straße"), ("bridge", "die Brücke"), ("river", "der Fluss"), ("lake", "der See"), ("sea", "das Meer"),
    ("mountain", "der Berg"), ("forest", "der Wald"), ("garden", "der Garten"), ("flower", "die Blume"), ("grass", "das Gras"),
    ("sun", "die Sonne"), ("moon", "der Mond"), ("star", "der Stern"), ("sky", "der Himmel"), ("cloud", "die Wolke"),
    ("rain", "der Regen"), ("snow", "der Schnee"), ("wind", "der Wind"), ("fire", "das Feuer"), ("water", "das Wasser"),
    ("stone", "der Stein"), ("gold", "das Gold"), ("silver", "das Silber"), ("iron", "das Eisen"), ("glass", "das Glas"),
    ("milk", "die Milch"), ("cheese", "der Käse"), ("butter", "die Butter"), ("egg", "das Ei"), ("salt", "das Salz"),
    ("sugar", "der Zucker"), ("soup", "die Suppe"), ("cake", "der Kuchen"), ("tea", "der Tee"), ("coffee", "der Kaffee"),
    ("wine", "der Wein"), ("beer", "das Bier"), ("meat", "das Fleisch"), ("rice", "der Reis"), ("potato", "die Kartoffel"),
    ("carrot", "die Karotte"), ("onion", "die Zwiebel"), ("pear", "die Birne"), ("cherry", "die Kirsche"), ("lemon", "die Zitrone"),
    ("head", "der Kopf"), ("hand", "die Hand"), ("foot", "der Fuß"), ("eye", "das Auge"), ("ear", "das Ohr"),
    ("nose", "die Nase"), ("mouth", "der Mund"), ("heart", "das Herz"), ("hair", "das Haar"), ("arm", "der Arm"),
    ("mother", "die Mutter"), ("father", "der Vater"), ("brother", "der Bruder"), ("sister", "die Schwester"), ("child", "das Kind"),
    ("friend", "der Freund"), ("king", "der König"), ("queen", "die Königin"), ("man", "der Mann"), ("woman", "die Frau"),
    ("car", "das Auto"), ("train", "der Zug"), ("ship", "das Schiff"), ("plane", "das Flugzeug"), ("bicycle", "das Fahrrad"),
    ("wheel", "das Rad"), ("key", "der Schlüssel"), ("clock", "die Uhr"), ("bag", "die Tasche"), ("box", "die Kiste"),
    ("bottle", "die Flasche"), ("cup", "die Tasse"), ("plate", "der Teller"), ("knife", "das Messer"), ("fork", "die Gabel"),
    ("spoon", "der Löffel"), ("bed", "das Bett"), ("room", "das Zimmer"), ("kitchen", "die Küche"), ("wall", "die Wand"),
    ("roof", "das Dach"), ("floor", "der Boden"), ("shirt", "das Hemd"), ("shoe", "der Schuh"), ("hat", "der Hut"),
    ("coat", "der Mantel"), ("ring", "der Ring"), ("money", "das Geld"), ("year", "das Jahr"), ("month", "der Monat"),
    ("week", "die Woche"), ("day", "der Tag"), ("night", "die Nacht"), ("morning", "der Morgen"), ("evening", "der Abend"),
    ("summer", "der Sommer"), ("winter", "der Winter"), ("spring", "der Frühling"), ("autumn", "der Herbst"), ("world", "die Welt"),
    ("country", "das Land"), ("city", "die Stadt"), ("village", "das Dorf"), ("island", "die Insel"), ("language", "die Sprache"),
    ("word", "das Wort"), ("number", "die Zahl"), ("question", "die Frage"), ("answer", "die Antwort"), ("music", "die Musik"),
    ("song", "das Lied"), ("picture", "das Bild"), ("game", "das Spiel"), ("ball", "der Ball"), ("dream", "der Traum")]
ADJECTIVES = [("big", "groß"), ("small", "klein"), ("old", "alt"), ("new", "neu"), ("young", "jung"), ("good", "gut"),
              ("bad", "schlecht"), ("warm", "warm"), ("cold", "kalt"), ("fast", "schnell"), ("slow", "langsam"),
              ("high", "hoch"), ("low", "niedrig"), ("long", "lang"), ("short", "kurz"), ("strong", "stark"),
              ("weak", "schwach"), ("light", "leicht"), ("heavy", "schwer"), ("hard", "hart"), ("soft", "weich"),
              ("loud", "laut"), ("quiet", "leise"), ("clean", "sauber"), ("dirty", "schmutzig"), ("empty", "leer"),
              ("full", "voll"), ("rich", "reich"), ("poor", "arm"), ("happy", "glücklich"), ("sad", "traurig"),
              ("bright", "hell"), ("dark", "dunkel"), ("deep", "tief"), ("wide", "breit"), ("narrow", "schmal"),
              ("thick", "dick"), ("thin", "dünn"), ("wet", "nass"), ("dry", "trocken"), ("sweet", "süß"),
              ("bitter", "bitter"), ("cheap", "billig"), ("expensive", "teuer"), ("healthy", "gesund"), ("sick", "krank"),
              ("right", "richtig"), ("wrong", "falsch"), ("open", "offen"), ("tired", "müde"), ("hungry", "hungrig")]
VERBS = [("to go", "gehen"), ("to come", "kommen"), ("to see", "sehen"), ("to hear", "hören"), ("to speak", "sprechen"),
         ("to eat", "essen"), ("to drink", "trinken"), ("to sleep", "schlafen"), ("to work", "arbeiten"), ("to play", "spielen"),
         ("to read", "lesen"), ("to write", "schreiben"), ("to learn", "lernen"), ("to buy", "kaufen"), ("to sell", "verkaufen"),
         ("to give", "geben"), ("to take", "nehmen"), ("to run", "laufen"), ("to swim", "schwimmen"), ("to fly", "fliegen"),
         ("to sing", "singen"), ("to laugh", "lachen"), ("to cry", "weinen"), ("to love", "lieben"), ("to help", "helfen"),
         ("to find", "finden"), ("to search", "suchen"), ("to open", "öffnen"), ("to close", "schließen"), ("to wait", "warten"),
         ("to think", "denken"), ("to know", "wissen"), ("to live", "leben"), ("to build", "bauen"), ("to cook", "kochen")]
OTHER_WORDS = """strawberry banana computer elephant butterfly chocolate library mountain umbrella adventure piano
keyboard engine rocket planet galaxy bottle pencil candle ladder hammer needle button basket blanket pillow mirror
garage cinema theatre museum market harbour castle tunnel station airport hospital kitchen balcony cellar meadow valley
desert jungle volcano glacier waterfall thunder lightning rainbow shadow silence memory promise secret journey holiday
birthday wedding family neighbour stranger captain soldier wizard dragon giant monster robot machine battery signal
message packet header kernel buffer thread memory vector matrix tensor token layer number letter alphabet sentence
paragraph chapter novel story poem letter stamp envelope calendar minute second century history science biology physics
chemistry algebra geometry triangle circle square rectangle cylinder pyramid diamond emerald ruby marble granite
Mississippi parallel committee bookkeeper banana pepper coffee address possess success bubble giggle puzzle rabbit""".split()
WORDS = sorted({e for e, _ in NOUNS} | {e for e, _ in ADJECTIVES} | {w.lower() for w in OTHER_WORDS})
WORDS_DE = sorted({d.split()[-1] for _, d in NOUNS} | {d for _, d in ADJECTIVES} | {d for _, d in VERBS})

_ONSET = "b bl br c ch d dr f fl fr g gl gr h j k kl kr l m n p pl pr qu r s sch sh sl sp st str t th tr v w z".split()
_NUCLEUS = "a e i o u a e i o ai ea ee io ou au ei".split()
_CODA = ["", "", "", "n", "r", "l", "s", "t", "m", "nd", "rk", "st", "ck", "x", "p"]


def invented(d, syllables=None):
    """A word that does not exist."""
    n = syllables or d.choice((1, 2, 2, 2, 3))
    return "".join(d.choice(_ONSET) + d.choice(_NUCLEUS) + d.choice(_CODA) for _ in range(n))


def code(d):
    """An identifier such as K7-204 or ab3f9c."""
    kind = d.randint(0, 3)
    if kind == 0:
        return f"{d.choice('ABCDEFGHKLMNPRSTUVWXZ')}{d.randint(0, 9)}-{d.randint(100, 999)}"
    if kind == 1:
        return "".join(d.choice("0123456789abcdef") for _ in range(6))
    if kind == 2:
        return f"{invented(d, 1)}_{d.randint(1, 99)}"
    return f"{d.choice('ABCDEFGHKLMNPRSTUVWXZ')}{d.choice('ABCDEFGHKLMNPRSTUVWXZ')}{d.randint(10, 9999)}"


def city(name, lang):
    return CITY_DE.get(name, name) if lang == "de" else name
