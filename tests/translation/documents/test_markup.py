"""Texts with markup: what the model reads of them, and where their tags are in the translation."""

import random
import re
import time

import pytest
import torch

from vanilla_transformer_hf.model.tokenizer.failures import TokenizerError
from vanilla_transformer_hf.translation.documents.inline import TooManyCharactersError, at_most_characters, unescape
from vanilla_transformer_hf.translation.documents.markup import MarkupText, tokens_of, with_translations
from vanilla_transformer_hf.translation.documents.places import aligner
from vanilla_transformer_hf.translation.results import Translation


PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>Dogs &amp; cats</title>
<style>p > a { color: red }</style><script>if (a < b && "</p>") { go("<b>") }</script></head>
<!--[if IE]><p>Old</p><![endif]-->
<body class='x "y"'><nav><ul><li><a href="/?a=1&amp;b=2">Home</a></li> <li>About us</li></ul></nav>
<h1>A <em>black</em> dog</h1>
<p>The dog
   runs<sup><a href="#n1">[1]</a></sup>.<br/>It is fast.<img src=dog.png alt="A > b"></p>
<table><tr><td>One<td>Two</table>
<pre>  first
  second</pre>
<svg viewBox="0 0 1 1"><text>Kept</text></svg>
<form><label for=q>Name</label> <input id=q placeholder="Kept"><button>Send</button></form>
<p translate="no">Kept <b>too</b></p><p class="a notranslate">Kept</p>
</body></html>
"""

# Mastodon's statuses: mentions and emoji are not to be translated, links show parts of an address.
STATUS = (
    '<p><span class="h-card" translate="no"><a href="https://a.example/@bob" class="mention">@<span>bob</span></a>'
    '</span> Look at <a href="https://b.example/c" rel="nofollow noopener" translate="no"><span class="invisible">'
    'https://</span><span class="">b.example/c</span></a>, nice <span translate="no">:smile:</span> dog</p>'
    '<p><a href="https://a.example/tags/dogs" class="mention hashtag" rel="tag">#<span>dogs</span></a></p>'
)
# Discourse's posts: quotes, code, lists, emoji as pictures.
POST = (
    '<aside class="quote" data-post="1"><div class="title">\n<img alt="" src="a.png" class="avatar"> bob:</div>\n'
    "<blockquote>\n<p>How?</p>\n</blockquote></aside>\n"
    '<p>Run <code>make &amp;&amp; go</code> now <img src="e.png" class="emoji" alt=":smile:"></p>\n'
    '<pre data-code-wrap="sh"><code class="lang-sh">ls -l\n</code></pre>\n<ul>\n<li>one</li>\n</ul>'
)


def translated(text, translate=str.upper, weights=None):
    """The text with its sentences translated by a function, and the sentences."""
    markup = MarkupText(text)
    found = [[Translation(translate(sentence.text))] for sentence in markup.sentences]
    ((best,),) = with_translations([markup], found, 1, lambda pairs: [weights] * len(pairs))
    return best, [sentence.text for sentence in markup.sentences]


def test_a_page_keeps_its_markup_and_what_is_no_text():
    page, sentences = translated(PAGE)
    assert sentences == [
        *("Dogs & cats", "Home", "About us", "A black dog", "The dog runs.", "It is fast."),
        *("One", "Two", "first", "second", "Name", "Send"),
    ]
    expected = PAGE.replace("The dog\n   runs", "THE DOG\n   RUNS")
    for sentence in sentences:
        expected = expected.replace(f">{sentence}", f">{sentence.upper()}")
    changed = {"Dogs &amp; cats": "DOGS &amp; CATS", "A <em>black</em> dog": "A <em>BLACK</em> DOG"}
    changed |= {"It is fast.": "IT IS FAST.", "  first\n  second": "  FIRST\n  SECOND"}
    for before, after in changed.items():
        expected = expected.replace(before, after)
    assert page == expected


@pytest.mark.parametrize(
    "text, expected",
    [
        ("a < b &lt;i&gt; &nbsp;c", "A < B &lt;I&gt; &nbsp;C"),
        ("I <3 you", "I <3 YOU"),
        ("<a href=x><div>In a link</div></a>", "<a href=x><div>IN A LINK</div></a>"),
        ("<p>one <b>two</p><p>three</b> four</p>", "<p>ONE <b>TWO</p><p>THREE</b> FOUR</p>"),
        ("</div></body>tail", "</div></body>TAIL"),
        ("go<!-- on --> now", "GO<!-- on --> NOW"),
        ("<p title=it's>a", "<p title=it's>A"),
        ("<a href=/x>One</a>, <B CLASS=y>two</B>", "<a href=/x>ONE</a>, <B CLASS=y>TWO</B>"),
        ("text<b> bold </b>text", "TEXT<b> BOLD </b>TEXT"),
        ("42 <b>*</b> &amp; <i></i>", "42 <b>*</b> &amp; <i></i>"),
        ("", ""),
        ("<p", "<p"),
        ("one <!-- two", "ONE <!-- two"),
        ("one <code>two <b>three", "ONE <code>two <b>three"),
        ("one <a href='two>three", "ONE <a href='two>three"),
        ("<pre>&lt;\n<3one</pre> ", "<pre>&lt;\n&lt;3ONE</pre> "),
    ],
)
def test_pieces_of_pages_keep_their_markup(text, expected):
    assert translated(text)[0] == expected


def test_statuses_and_posts_keep_what_is_not_language():
    status, sentences = translated(STATUS)
    assert sentences == ["Look at, nice dog"]
    assert status == STATUS.replace("Look at", "LOOK AT").replace("nice", "NICE").replace("dog</p>", "DOG</p>")
    post, sentences = translated(POST)
    assert sentences == ["bob:", "How?", "Run now", "one"]
    for text in ("bob:", "How?", "Run", "now", "one"):
        assert text.upper() in post
    assert post.lower() == POST.lower()


def test_tags_follow_their_words_where_the_order_changes():
    weights = torch.zeros(4, 4)
    weights[[0, 1, 2, 3], [3, 2, 0, 1]] = 1  # target word -> source word

    def translate(text):
        return "vier, drei eins zwei!"

    for text, expected in {
        "<i>one two</i> three four!": "vier, drei <i>eins zwei</i>!",
        "one <b>two</b> three <a>four</a>!": "<a>vier</a>, drei eins <b>zwei</b>!",
        "<p><b>one <i>two</i></b> three four!</p>": "<p>vier, drei <b>eins <i>zwei</i></b>!</p>",
        "one <img> two three four!": "vier, drei eins <img> zwei!",
        "<b>one two three four!</b>": "<b>vier, drei eins zwei!</b>",
        "one two three <code>x</code>, four!": "vier, drei <code>x</code> eins zwei!",
        "one two three four! <img>": "vier, drei eins zwei! <img>",
    }.items():
        assert translated(text, translate, weights)[0] == expected


def test_whatever_the_tags_none_is_lost_and_none_crosses_another():
    random.seed(1)
    tags = ["<img>", "<b>", "</b>", "<i>", "</i>", "<code>", "</code>", "<p>", "<pre>", "<!-- c -->", "<x"]
    pieces = ["one ", "two", ", ", " ", "(x)", "! ", "@a", "&amp;", "<", "\n", *tags]
    for _ in range(400):
        text = "".join(random.choices(pieces, k=12))
        found, _ = translated(text, lambda source: " ".join(random.choices(["ab", "(c", "d!", ""], k=4)))
        before, after = ([token.raw for token in tokens_of(each) if token.kind != "text"] for each in (text, found))
        assert sorted(before) == sorted(after)
        balanced = "<b>one <i>two</i> four</b> <u>five <img> six</u> seven"
        found, _ = translated(balanced, lambda source: "a b c d e f g", torch.rand(7, 6))
        tags, opened = re.findall(r"<(/?\w+)>", found), []
        for tag in tags:
            if tag[0] == "/":
                assert opened.pop() == tag[1:]
            elif tag != "img":
                opened.append(tag)
        assert not opened and re.sub("<.*?>", "", found).split() == list("abcdefg")


def test_hostile_markup_takes_no_longer_than_other_texts():
    began = time.process_time()
    for piece in (
        "<a x=",
        "<a b='",
        "<a ",
        "<!--",
        "<b>",
        "<b>a</b>",
        "</b>",
        "<code>",
        "<script>",
        "a <img> ",
        "<![",
    ):
        text = (piece * 20_000)[:20_000]
        assert "".join(token.raw for token in tokens_of(text)) == text
        translated(text)
    assert time.process_time() - began < 10  # html.parser: 30 seconds and more


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        *((f"&#{'1' * 5000};", "\ufffd"), (f"a&#{'0' * 5000}65b", "aAb"), (f"&#x{'f' * 5000};", "\ufffd")),
        *((f"&#x{'0' * 5000}41", "A"), (f"&#1114112;&#0;&amp;{' ' * 5000}", f"\ufffd\ufffd&{' ' * 5000}")),
    ],
    ids=lambda text: text[:12],
)
def test_numbers_of_characters_may_have_any_length(text, expected):
    assert unescape(text) == expected
    assert MarkupText(f"dog {text}").render(["x"], [None]).endswith("x" + " " * 5000 * text.endswith(" "))


def test_the_model_aligns_and_one_that_cannot_keeps_the_order(translator, monkeypatch):
    text = "<b>three</b> one, <i>two</i>"
    markup = MarkupText(text)
    found = [[Translation("zwei eins drei")]]
    assert with_translations([markup], found, 1, aligner(translator)) == [["<i>zwei</i> eins <b>drei</b>"]]
    monkeypatch.setattr(translator, "align", lambda *a, **k: (_ for _ in ()).throw(ValueError("no attention")))
    assert with_translations([markup], found, 1, aligner(translator)) == [["<b>zwei</b> eins <i>drei</i>"]]
    assert aligner(translator)([("a", "b")]) == [None]
    monkeypatch.setattr(translator, "align", lambda *a, **k: (_ for _ in ()).throw(TokenizerError("it fails")))
    with pytest.raises(TokenizerError, match="it fails"):  # on one text: the places of all are not guessed for that
        with_translations([markup], found, 1, aligner(translator))


def test_many_tags_and_words_take_no_longer_than_few():
    began = time.process_time()
    for text in (
        "<b>a</b> " * 4000,
        "<b>a</b>" * 4000,
        "<b></b> " * 4000 + "a",
        "<b>a</b>, <img> " * 2000,
        "a " * 20_000,
    ):
        page = MarkupText(text)
        (sentence,) = page.sentences
        assert page.render([sentence.text], [None]).count("<b>") == text.count("<b>")
    assert time.process_time() - began < 5


def test_tags_placed_by_attention_take_time_that_grows_with_the_square_of_their_number():
    def seconds(size):
        page, began = MarkupText("<b>a</b> " * size), time.process_time()
        assert page.render(["b " * (size - 1) + "b"], [torch.eye(size)]) == "<b>b</b> " * size
        return time.process_time() - began

    assert min(seconds(400) for _ in range(3)) < 6 * min(seconds(200) for _ in range(3))


def test_kept_elements_before_a_mark_stay_in_their_order():
    page = MarkupText("one <img 1> <img 2>, two")
    assert page.render(["eins, zwei"], [None]) == "eins <img 1> <img 2>, zwei"


@pytest.mark.parametrize("page", ["<p>the dog</p>", "<b>x</b> ", "<p>a {n, plural, other {x}}</p>"])
def test_characters_are_counted_while_a_page_is_read(page):
    """Too many of them are found in its beginning, and not when all of it is cut into tags and texts."""
    seconds = []
    for count in (2_000, 20_000):
        began = time.process_time()
        with pytest.raises(TooManyCharactersError, match="more than 100 characters"), at_most_characters(100):
            MarkupText(page * count)
        seconds.append(time.process_time() - began)
    assert seconds[1] < 0.2, seconds
