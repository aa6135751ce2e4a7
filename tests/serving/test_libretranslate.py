"""
What clients of LibreTranslate send and read. The requests were recorded from Mastodon's, Discourse's and Weblate's
code, LibreTranslate's own page, and libretranslatepy.
"""

import json
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
from libretranslatepy import LibreTranslateAPI

from vanilla_transformer_hf.serving import application
from vanilla_transformer_hf.serving.application import ServedModel, create_application
from vanilla_transformer_hf.serving.batcher import Batcher
from vanilla_transformer_hf.serving.languages import LanguageDetector, english_name
from vanilla_transformer_hf.serving.protocols import Limits


TWO = {"en-de": ("en", {"de": None}), "de-en": ("de", {"en": None})}


def test_languages_have_english_names_and_all_targets(serve):
    models = {**TWO, "en-fr": ("en", {"fr": None}), "to-all": (None, {"de": "<de>", "sv": "<sv>"})}
    found = serve(models).get("/languages").json()
    assert [(each["name"], each["targets"]) for each in found] == [
        ("English", ["de", "fr"]), ("German", ["en", "sv"]), ("French", []), ("Swedish", ["de"])
    ]  # fmt: skip
    names = {"zh-Hant": "Chinese (Traditional)", "numbers": "numbers", "xx": "xx", "": ""}
    assert {code: english_name(code) for code in names} == names
    assert serve({"one": (None, {})}).get("/languages").json() == []


def test_unknown_languages_of_a_multilingual_model_are_those_that_it_translates_to(serve):
    client = serve({"all": (None, {"de": None, "sv": None})})
    assert client.post("/translate", json={"q": "two", "source": "sv", "target": "de"}).status_code == 200
    answer = client.post("/translate", json={"q": "two", "source": "fr", "target": "de"})
    assert answer.status_code == 400 and "not a source language here: de-sv, sv-de" in answer.json()["error"]


def test_the_language_of_texts_is_detected_among_those_that_fit_the_target(serve):
    client = serve({**TWO, "fr-en": ("fr", {"en": None})})
    texts = {"en": "Where is the station?", "de": "Wo ist der Bahnhof?", "fr": "Où est la gare ?"}
    for code, text in texts.items():
        found = client.post("/detect", data={"q": text}).json()
        assert found[0]["language"] == code and 50 < found[0]["confidence"] <= 100
    for code in ("de", "fr"):
        answer = client.post("/translate", json={"q": [texts[code]] * 2, "source": "auto", "target": "en"}).json()
        assert [each["language"] for each in answer["detectedLanguage"]] == [code, code]
        assert len(answer["translatedText"]) == 2
    answer = client.post("/translate", json={"q": texts["fr"], "source": "auto", "target": "de"}).json()
    assert answer["detectedLanguage"]["language"] == "en" and answer["detectedLanguage"]["confidence"] < 50
    nothing = client.post("/translate", json={"q": "42", "source": "auto", "target": "de"}).json()
    assert nothing == {"translatedText": "42", "detectedLanguage": {"language": "en", "confidence": 0.0}}
    assert client.post("/detect", json={"q": ""}).json() == [{"language": "en", "confidence": 0.0}]


def test_without_lingua_one_source_language_is_the_answer_and_several_an_error(serve, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "lingua", None)
    client = serve()
    assert client.post("/detect", json={"q": "two"}).json() == [{"language": "en", "confidence": 0.0}]
    answer = client.post("/translate", json={"q": "two", "source": "auto", "target": "de"}).json()
    assert answer == {"translatedText": "zwei", "detectedLanguage": {"language": "en", "confidence": 0.0}}
    client = serve({**TWO, "fr-de": ("fr", {"de": None})})
    answer = client.post("/translate", json={"q": "two", "source": "auto", "target": "de"})
    assert answer.status_code == 400 and answer.json()["error"].startswith("source: languages are not detected here")
    assert client.post("/translate", json={"q": "two", "source": "auto", "target": "en"}).status_code == 200
    assert client.post("/detect", json={"q": "two"}).status_code == 501


def test_languages_that_lingua_does_not_know_are_not_detected():
    assert LanguageDetector(["numbers"], ["de"]).detect(["zwei"]) == [("numbers", 0.0)]
    assert LanguageDetector(["numbers", "en"], ["de"]).detect(["where is the station"])[0][0] == "en"
    with pytest.raises(ValueError, match="expected one of none is known"):
        LanguageDetector([], []).detect(["one"])


def test_of_two_models_of_one_pair_the_first_answers_or_the_named_one(serve, caplog):
    caplog.set_level("INFO", "vanilla_transformer_hf")
    client = serve({"news": ("en", {"de": None}), "talks": ("en", {"de": None})})
    body = {"q": "two", "source": "en", "target": "de"}
    for wanted, name in (
        ({}, "news"),
        ({"model": ""}, "news"),
        ({"model": "talks"}, "talks"),
        ({"source": "auto"}, "news"),
    ):
        caplog.clear()
        assert client.post("/translate", json={**body, **wanted}).status_code == 200
        assert f"{name}: 1 texts" in caplog.text
    assert client.post("/translate", json={"q": "two"}).status_code == 200
    assert client.post("/", json={"inputs": "two", "parameters": {"src_lang": "en"}}).status_code == 200
    answer = client.post("/translate", data={**body, "model": "songs"}).json()
    assert answer == {"error": "model: 'songs' is not a model here: expected news, talks", "field": "model"}
    answer = client.post("/translate", json={"q": "two", "target": "fr"}).json()
    assert answer["error"] == "target: 'fr' is not a target language here: en-de"


def test_fields_that_nobody_knows_are_ignored_and_named(serve, caplog):
    caplog.set_level("INFO", "vanilla_transformer_hf")
    client = serve()
    answer = client.post("/translate", json={"q": "two", "formality": 3, "tone, or\n": {}, "secret": "x"})
    assert answer.json() == {"translatedText": "zwei"}
    assert answer.headers["X-Ignored-Fields"] == "formality, tone%2C%20or%0A" and "formality" not in caplog.text
    assert "X-Ignored-Fields" not in client.post("/translate", json={"q": "two"}).headers
    assert client.post("/translate", json={"q": "two", "": 1}).headers["X-Ignored-Fields"] == '""'
    with client.stream("POST", "/translate", json={"q": "two", "stream": True, "é": 1}) as events:
        assert events.headers["X-Ignored-Fields"] == "%C3%A9"


@pytest.mark.parametrize("origins", [["*"], ["https://Page.example/"]])
def test_pages_of_allowed_origins_may_read_the_answers(serve, origins):
    page = {"origin": "https://page.example"}
    client = serve(origins=origins)
    asked = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "content-type"}
    preflight = client.options("/translate", headers={**page, **asked})
    assert preflight.status_code == 200 and "content-type" in preflight.headers["access-control-allow-headers"]
    for answer in (
        preflight,
        client.post("/translate", json={"q": "two"}, headers=page),
        client.post("/translate", json={"q": 3}, headers=page),
        client.get("/languages", headers=page),
    ):
        assert answer.headers["access-control-allow-origin"] in ("*", "https://page.example")
    other = client.post("/translate", json={"q": "two"}, headers={"origin": "https://other.example"})
    assert ("access-control-allow-origin" in other.headers) == (origins == ["*"])
    assert "access-control-allow-origin" not in serve().post("/translate", json={"q": "two"}, headers=page).headers


def test_libretranslates_page_is_told_what_it_may_show(serve):
    client = serve()
    settings = client.get("/frontend/settings").json()
    assert settings["language"]["target"] == {"code": "de", "name": "German"} and settings["charLimit"] == 50_000
    assert not (settings["suggestions"] or settings["keyRequired"])
    assert serve(api_keys=["key"]).get("/frontend/settings").json()["keyRequired"]
    refused = client.post("/suggest", data={"q": "two", "s": "zwei", "source": "en", "target": "de"})
    assert refused.status_code == 403 and "suggestions are off" in refused.json()["error"]
    assert serve(api_keys=["key"]).post("/detect", data={"q": "two"}).status_code == 403


def test_requests_of_weblate_and_of_the_documentation(serve):
    client = serve()
    weblate = {"api_key": "", "q": "three one", "source": "en", "target": "de"}
    assert client.post("/translate", data=weblate).json() == {"translatedText": "eins drei"}
    documented = {
        "q": "three one", "source": "auto", "target": "de", "format": "text", "alternatives": 3, "api_key": ""
    }  # fmt: skip
    answer = client.post("/translate", json=documented).json()
    assert answer["translatedText"] == "eins drei" and len(answer["alternatives"]) == 3
    assert answer["detectedLanguage"]["language"] == "en"


def test_libretranslatepy_works(opened_translator, listen):
    application = create_application([ServedModel("en-de", Batcher(opened_translator), "en", {"de": None})])
    client = LibreTranslateAPI(listen(application))
    assert client.translate("three one", "en", "de") == "eins drei"
    assert client.detect("Where is the station?")[0]["language"] == "en"
    assert [(each["code"], each["name"]) for each in client.languages()] == [("en", "English"), ("de", "German")]


def test_requests_of_mastodon(serve):
    client = serve(TWO)
    status = '<p><span translate="no"><a href="https://a.example/@bob">@<span>bob</span></a></span> three one</p>'
    body = {"q": [status, "two", ""], "source": "en", "target": "de", "format": "html", "api_key": None}
    answer = client.post("/translate", json=body)
    assert answer.json() == {"translatedText": [status.replace("three one", "eins drei"), "zwei", ""]}
    answer = client.post("/translate", json={**body, "source": "auto"}).json()
    assert len(answer["translatedText"]) == len(answer["detectedLanguage"]) == 3
    listed = {each["code"]: each["targets"] for each in client.get("/languages").json()}
    assert listed == {"en": ["de"], "de": ["en"]}


def test_requests_of_discourse(serve):
    client = serve()
    post = "<p><b>one two</b></p>\n<pre><code>one</code></pre>\n<ul>\n<li>five</li>\n</ul>"
    assert client.post("/detect", data={"q": post, "api_key": ""}).json()[0]["language"] == "en"
    form = {"q": post, "source": "en", "target": "de", "format": "html", "api_key": ""}
    expected = "<p><b>zwei eins</b></p>\n<pre><code>one</code></pre>\n<ul>\n<li>fünf</li>\n</ul>"
    assert client.post("/translate", data=form).json() == {"translatedText": expected}


def test_markup_is_escaped_has_alternatives_and_is_answered_whole(serve):
    client = serve()
    body = {"q": "one &lt;b&gt; two", "format": "html", "alternatives": 2}
    answer = client.post("/translate", json=body).json()
    assert "<" not in answer["translatedText"] and len(answer["alternatives"]) == 2
    answer = client.post("/translate", json={**body, "q": ["<hr>", ""]}).json()
    assert answer == {"translatedText": ["<hr>", ""], "alternatives": [["<hr>", "<hr>"], ["", ""]]}
    answer = client.post("/translate", json={"q": "<b>two</b>", "format": "html", "stream": True})
    assert answer.text == 'event: answer\ndata: {"translatedText": "<b>zwei</b>"}\n\n'
    answer = client.post("/translate", json={"q": "two", "format": "xml"})
    assert answer.json()["error"] == "format: must be 'text' or 'html', got 'xml'"


SUBTITLES = b"1\n00:00:01,000 --> 00:00:02,000\n<i>three</i> one\n"


def test_a_file_is_translated_and_fetched(serve):
    """The request of LibreTranslate's page: a form with the file, `source` auto, and an empty key."""
    client = serve()
    form = {"source": "auto", "target": "de", "api_key": ""}
    answer = client.post("/translate_file", data=form, files={"file": ("C:\\films\\ein.film.srt", SUBTITLES)})
    assert answer.status_code == 200 and answer.json()["detectedLanguage"]["language"] == "en"
    url = answer.json()["translatedFileUrl"]
    assert url.startswith("http://testserver/download_file/") and url.endswith(".ein.film_de.srt")
    fetched = client.get(url)
    assert fetched.content == SUBTITLES.replace(b"<i>three</i> one", b"eins <i>drei</i>")
    assert fetched.headers["content-disposition"] == "attachment; filename*=UTF-8''ein.film_de.srt"
    assert fetched.headers["x-content-type-options"] == "nosniff"
    settings = client.get("/frontend/settings").json()
    assert settings["filesTranslation"] and {".txt", ".docx", ".odt"} < set(settings["supportedFilesFormat"])


def test_forms_bring_glossaries_and_memories(serve):
    client = serve()
    aids = {"glossary": json.dumps({"two": "vier"}), "memory": json.dumps({"one five": "UNO"})}
    answer = client.post("/translate_file", data=aids, files={"file": ("a.txt", b"one five\ntwo one")})
    assert "X-Ignored-Fields" not in answer.headers
    first, second = client.get(answer.json()["translatedFileUrl"]).text.splitlines()
    assert first == "UNO" and "vier" in second
    assert client.post("/translate", data={"q": "one five", **aids}).json() == {"translatedText": "UNO"}


@pytest.mark.parametrize(
    ("form", "upload", "status", "message"),
    [
        ({}, None, 400, "file: missing; send one file"),
        ({}, ("", b"two"), 400, "file: missing; send one file"),
        ({}, ("a.pdf", b"two"), 400, "file: 'a.pdf' is not a document: expected .txt"),
        ({}, ("a.docx", b"two"), 400, "file: a.docx: not an office document"),
        ({}, ("a.po", b"\xff"), 400, "file: a.po: not a gettext catalogue"),
        ({}, ("a.txt", b"two " * 20), 413, "file: more than 50 characters, which it may have"),
        ({}, ("a.txt", b"\n" * 3000), 413, "the body has more than 2,000 bytes"),
        ({"target": "fr"}, ("a.txt", b"two"), 400, "target: 'fr' is not a target language"),
        ({"model": "x"}, ("a.txt", b"two"), 400, "model: 'x' is not a model here"),
        ({"glossary": "two"}, ("a.txt", b"two"), 400, "glossary: must be an object of texts"),
        ({"memory": "[1]"}, ("a.txt", b"two"), 400, "memory: must be an object of texts"),
        (
            {"glossary": '{"two": "fünf"}'.encode("cp1252")},
            ("a.txt", b"two"),
            400,
            "the body is not a valid form: its text",
        ),
    ],
)
def test_files_that_cannot_be_translated_are_one_line(serve, form, upload, status, message):
    client = serve(limits=Limits(characters=50, file_bytes=2000))
    files = {"file": upload} if upload else {"other": ("", b"")}
    answer = client.post("/translate_file", data={"source": "en", "target": "de", **form}, files=files)
    assert answer.status_code == status and answer.json()["error"].startswith(message)


def test_files_need_a_form_a_key_and_a_server_that_takes_them(serve):
    client = serve()
    assert client.post("/translate_file", json={"file": "two"}).status_code == 415
    assert client.post("/translate_file", data={"file": "two"}).status_code == 415
    assert client.post("/translate", files={"q": ("a.txt", b"two")}).status_code == 400
    sent = {"files": {"file": ("a.txt", b"two")}, "data": {"api_key": "x"}}
    assert serve(api_keys=["key"]).post("/translate_file", **sent).json()["field"] == "api_key"
    client = serve(limits=Limits(file_bytes=0))
    assert client.post("/translate_file", **sent).status_code == 403
    settings = client.get("/frontend/settings").json()
    assert not settings["filesTranslation"] and settings["supportedFilesFormat"] == []


def test_a_text_that_is_not_utf_8_has_the_encoding_that_is_named_and_none_is_guessed(serve):
    client, sent = serve(), {"files": {"file": ("a.txt", "two\n“…”\n".encode("cp1252"))}}
    url = client.post("/translate_file", **sent, data={"encoding": "cp1252"}).json()["translatedFileUrl"]
    assert client.get(url).content.decode() == "zwei\n“…”\n"
    for encoding, message in ((None, "file: a.txt, byte 5: not UTF-8; name its encoding"),
                              ("ascii", "file: a.txt, byte 5: not ascii"), ("punycode", "encoding: must be"),
                              ("cp1", "encoding: must be an encoding of text such as cp1252, got 'cp1'")):  # fmt: skip
        answer = client.post("/translate_file", **sent, data={"encoding": encoding} if encoding else {})
        assert answer.status_code == 400 and answer.json()["error"].startswith(message)


def test_markup_of_one_client_is_read_one_after_the_other(serve, monkeypatch):
    running, most = [], Counter()

    class Slow(application.MarkupText):
        def __init__(self, text):
            running.append(text)
            most[text] = max(most[text], running.count(text))
            time.sleep(0.05)
            running.remove(text)
            super().__init__(text)

    monkeypatch.setattr(application, "MarkupText", Slow)
    client = serve(api_keys=["a", "b"])

    def ask(key):
        sent = {"q": f"<b>{key}</b>", "format": "html", "api_key": key}
        assert client.post("/translate", json=sent).status_code == 200

    with ThreadPoolExecutor(8) as threads:
        [*threads.map(ask, "aaaabbbb")]
    assert most == {"<b>a</b>": 1, "<b>b</b>": 1}


def test_a_file_is_gone_when_its_time_is_over(serve):
    client = serve(limits=Limits(file_seconds=0.01))
    url = client.post("/translate_file", files={"file": ("a.txt", b"two")}).json()["translatedFileUrl"]
    time.sleep(0.02)
    assert client.get(url).status_code == 404
    for path in ("/download_file/x", "/download_file/..%2Fa", "/download_file/" + "a" * 32 + ".txt"):
        assert client.get(path).status_code == 404


def test_requests_of_libretranslates_page(serve):
    """What its app.js sends: settings and languages, forms with every field, and what it reads of the answers."""
    client = serve(TWO)
    settings, languages = client.get("/frontend/settings").json(), client.get("/languages").json()
    codes = {each["code"] for each in languages}
    assert all(target in codes for each in languages for target in each["targets"])
    assert {settings["language"][side]["code"] for side in ("source", "target")} <= {"auto", *codes}
    parts = {"q": "three one", "source": "auto", "target": "de", "format": "text", "api_key": ""}
    multipart = {name: (None, value) for name, value in parts.items()}
    answer = client.post("/translate", files=multipart).json()
    assert answer["translatedText"] == "eins drei" and answer["detectedLanguage"]["language"] == "en"
    html = {**multipart, "q": (None, "<b>three</b> one"), "format": (None, "html"), "alternatives": (None, "2")}
    answer = client.post("/translate", files=html).json()
    assert answer["translatedText"] == "eins <b>drei</b>" and len(answer["alternatives"]) == 2
    assert client.post("/detect", files={"q": (None, "Where is the station?")}).json()[0]["language"] == "en"
    suggestion = dict.fromkeys(("q", "s", "source", "target", "api_key"), (None, "x"))
    assert "error" in client.post("/suggest", files=suggestion).json()
