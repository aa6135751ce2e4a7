"""Where texts that are too long are cut."""

import time

import pytest
from machine import is_within

from vanilla_transformer_hf.translation.text.splitting import pair_parts, sentences, split_parts, split_text


def words(texts):
    return [len(text.split()) for text in texts]


def parts(text, limit, count=words):
    return [text[start:end] for start, end in split_text(text, limit, count)]


@pytest.mark.parametrize(
    "expected",
    [
        ["He came.", "She left!", "Why?", "“Really?”", "No …", "Yes."],
        ["he came.", "she left . . .", "all in small letters ."],
        ["Dr. Smith met J. R. Brown on the 3. of May, e.g. in Mt. Vernon.", "Then they left."],
        ["Version 1.5 is out.", "It costs 3.50 now."],
        ["... What?", "Nothing.", "“Who?”"],
        ["One sentence without an end"],
    ],
)
def test_sentences(expected):
    text = "  ".join(expected)
    assert [text[start:end] for start, end in sentences(text)] == expected


# Language -> sentences that stand together on a line.
TOGETHER = [
    ("en", ["Dr. Smith met J. R. Brown in Mt. Vernon, e.g. at St. Paul's.", "Then they left."]),
    ("en", ["He is 42.", "She is 12.", "It costs $3.50 at 3.30 p.m. today."]),
    ("en", ["1. Buy milk.", "2. Buy eggs."]),
    ("en", ["He ran 5 km.", "She weighs 50 kg.", "They watch TV.", "I don't.", "You do."]),
    ("en", ["The U.S. Army is big.", "See Fig. 3 and pp. 4 to 6.", "No. 5 is alive.", "No.", "He said no."]),
    (
        "en",
        ["“Really?” he asked.", "“Yes!”", "She left (quickly.)", "[It rained.]", 'He said "No."', "Then... nothing."],
    ),
    ("en", ["Wait!!!", "What?!", "No...", "Yes.", "Wait… what is it?", "Where are you?", "i am here."]),
    ("en", ["Two dogs are playing.", "a man reads at example.com.", "A Fire Dept. engine comes."]),
    ("en", ["a man , reading .", "two dogs run .", "a sign that says &quot; stop ! &quot; in the snow . &quot;"]),
    (
        "de",
        [
            "Am 3. Mai kam der 1. FC Köln, z. B. Prof. Dr. Müller bzw. d. h. Nr. 5 dort.",
            "Das war 1999.",
            "Dann ging er.",
        ],
    ),
    (
        "de",
        ["Papst Johannes Paul II. starb 2005.", "„Wirklich?“, fragte er.", "„Ja.“", "»Was?« fragte sie.", "»Nichts.«"],
    ),
    (
        "fr",
        ["Il est là !", "Où ça ?", "M. Dupont est là, p. ex. demain.", "« Quoi ? » dit-il.", "« Rien. »", "Il part."],
    ),
    ("es", ["¿Qué?", "¡No!", "El Sr. García vive en EE.UU. hoy."]),
    ("cs", ["Dne 3. května přišel vlk.", "Pak odešel."]),
    ("hu", ["1999. május 3. napján született.", "Utána elment."]),
    ("ru", ["А. С. Пушкин жил на ул. Ленина.", "Потом он ушёл."]),
    ("hi", ["यह एक किताब है।", "वह एक आदमी है।"]),
    ("ar", ["هل أنت هنا؟", "نعم أنا هنا.", "شكرا"]),
    ("ur", ["یہ کتاب ہے۔", "وہ آدمی ہے۔"]),
    ("hy", ["Բարեւ։", "Ինչպես ես։"]),
    ("ko", ["저는 학생입니다.", "당신은요?"]),
    (None, ["Dr. Meier kam am 3. Mai.", "He left!", "Er ging."]),
]


@pytest.mark.parametrize(("language", "expected"), TOGETHER)
def test_sentences_by_language(language, expected):
    text = " ".join(expected)
    assert [text[start:end] for start, end in sentences(text, language)] == expected


@pytest.mark.parametrize(
    "expected",
    [
        ["他说：“好。”", "然后走了。"],
        ["これはペンです。", "あれは本です。"],
        ["ሰላም ነው።", "እንዴት ነህ።"],
        ["နေကောင်းလား။", "ကောင်းပါတယ်။"],
    ],
)
def test_marks_that_need_no_space(expected):
    text = "".join(expected)
    assert [text[start:end] for start, end in sentences(text)] == expected


def test_segments_know_what_stands_before_them_and_where_their_words_are():
    text = "\ufeff A  dog. \u200b A\u00a0cat.\r\n\r\n\tNo end \n"
    segments, after = split_parts(text, "en", in_sentences=True)
    assert [(each.text, each.before, each.first_word) for each in segments] == [
        ("A dog.", " ", 0), ("A cat.", None, 2), ("No end", "\r\n\r\n\t", 4),
    ]  # fmt: skip
    assert after == " \n"
    assert [each.text for each in split_parts(text, "en")[0]] == ["A dog. A cat.", "No end"]
    assert split_parts(" \n ") == ([], " \n ")


def test_lines_and_sentences_of_pairs():
    def pairs(source, target, in_sentences=True):
        found = pair_parts((source, target), ("en", "de"), in_sentences)
        return [(one.text, other.text) for one, other in found]

    assert pairs("A. One two.\nThree! ", "Eins zwei.\n\n Drei!") == [
        ("A. One two.", "Eins zwei."),
        ("Three!", "Drei!"),
    ]
    assert pairs("One two. Three!", "Eins zwei. Drei!") == [("One two.", "Eins zwei."), ("Three!", "Drei!")]
    assert pairs("One two. Three!", "Eins zwei, drei!") == [("One two. Three!", "Eins zwei, drei!")]
    assert pairs("One two. Three!", "Eins zwei. Drei!", False) == [("One two. Three!", "Eins zwei. Drei!")]
    assert pairs("One two.\nThree!", "Eins  zwei. Drei!") == [("One two. Three!", "Eins zwei. Drei!")]
    assert pairs("", " ") == [("", "")]


def test_no_sentence_goes_on_in_another_line():
    text = "twenty-one\nforty\n\n  Mt.\nVernon"
    assert [text[start:end] for start, end in sentences(text)] == ["twenty-one", "forty", "Mt.", "Vernon"]


def test_chinese_and_japanese_need_no_space():
    text = "「一二三。」四五六！七八？"
    assert [text[start:end] for start, end in sentences(text)] == ["「一二三。」", "四五六！", "七八？"]


def test_each_sentence_is_a_part_of_its_own():
    assert parts("one two. three four. five six.", 4) == ["one two.", "three four.", "five six."]


def test_a_long_sentence_is_cut_at_clauses_then_words_then_characters():
    assert parts("a b c, d e, f g h, one. two.", 5) == ["a b c, d e,", "f g h, one.", "two."]
    assert parts("a b, c d; e f, g h", 5) == ["a b, c d;", "e f, g h"], "semicolons come before commas"
    assert parts("a b c d e f g", 4) == ["a b c d", "e f g"], "of about the same length"
    assert parts("a b c d e f, g", 5) == ["a b c", "d e f,", "g"]
    characters = parts("x" * 50, 7, lambda texts: list(map(len, texts)))
    assert "".join(characters) == "x" * 50 and {len(part) for part in characters} <= {6, 7}


def test_parts_of_a_long_sentence_are_shorter_than_the_longest_sentence():
    """A model has seen few sentences of the greatest length, and lost 25 % of the words of parts as long as that."""
    text = "a b c d e fa. a b c d, e f g h, i j k la."
    assert [text[start:end] for start, end in split_text(text, 8, words, 4)] == [
        "a b c d e fa.", "a b c d,", "e f g h,", "i j k la.",
    ]  # fmt: skip
    assert parts(text, 8) == ["a b c d e fa.", "a b c d, e f g h,", "i j k la."]


def test_nothing_is_lost_where_tokens_of_a_text_are_not_those_of_its_pieces():
    text = "one two, three. four five six seven, eight nine ten. eleven twelve"
    for limit in range(2, 40):
        found = parts(text, limit, lambda texts: [len(text) + 3 * text.count(" ") for text in texts])
        assert "".join("".join(found).split()) == "".join(text.split())
        assert all(len(part) + 3 * part.count(" ") <= limit for part in found)


@pytest.mark.parametrize(
    "piece", ["one two. ", "one two, ", "one ", "x", ". ", "“", "。", "one\n\n", "  ", "Dr. ", "3. ", "?“ "]
)
def test_the_time_is_linear(piece):
    """A megabyte took 25 to 67 seconds."""
    text = piece * (2**20 // len(piece.encode()))
    counted = []

    def count(texts):
        counted.append(sum(map(len, texts)))
        return [-(-len(text) // 4) for text in texts]

    start = time.process_time()
    found = parts(text, 100, count)
    assert is_within(time.process_time() - start, 20), "about 2 seconds where nothing else runs"
    assert sum(counted) <= 8 * len(text), "no text is counted again and again"
    assert sum(len("".join(part.split())) for part in found) == len("".join(text.split()))
