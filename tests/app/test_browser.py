"""The page in a real browser: Chromium, driven by Playwright."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import numpy as np
import pytest
import torch
from PIL import Image

from helpers.browser import chromium, drag
from helpers.connections import Spy

pytest.importorskip("gradio")
#: Milliseconds. Nothing takes as long but what never comes; on a machine that does much else a click may take seconds.
PATIENCE = 180_000


@pytest.fixture(scope="module")
def uploads(tmp_path_factory) -> Path:
    """The folder for temporary files of the server."""
    return tmp_path_factory.mktemp("temporary")


@pytest.fixture(scope="module")
def left_open() -> list[Tab]:
    """Tabs that are still open when the server is stopped."""
    return []


@pytest.fixture(scope="module")
def served(tmp_path_factory, uploads, browser, left_open) -> Iterator[str]:
    """The command, run as a user does; its address.

    In the end it is stopped, while the browser and what was left open in it are there. It stops soon, and leaves
    nothing behind.
    """
    folder, spy = uploads, Spy(tmp_path_factory.mktemp("spy"))
    with chromium.served(spy.environment | {"TMPDIR": str(folder), "OMP_NUM_THREADS": "1"}) as address:
        yield address
        started = time.monotonic()
    assert time.monotonic() - started < PATIENCE / 1000
    assert not [p for p in folder.rglob("*") if "hilrp-serve" in str(p)]
    assert (spy.watched(), spy.asked()) == (1, set())
    for tab in left_open:
        tab.close()


#: Another explanation is there: not only its address, but its page, drawn.
SHOWN = """old => {
    const frame = document.querySelector("iframe.viewer"), src = frame?.getAttribute("src");
    if (!src || src === old || !frame.contentWindow.location.href.endsWith(src.slice(1))) return false;
    return Boolean(frame.contentDocument.querySelector("#region, #said")?.textContent);
}"""


#: A network on which the end of the stream of answers arrives late; `closing` counts how often it was on its way.
LATE = """
const fetched = window.fetch;
window.closing = 0;
window.fetch = async (...args) => {
  const answer = await fetched(...args);
  if (!String(args[0].url ?? args[0]).includes("/queue/data")) return answer;
  const decoder = new TextDecoder(), encoder = new TextEncoder();
  const late = new TransformStream({ async transform(chunk, to) {
    for (const message of decoder.decode(chunk, { stream: true }).split(/(?<=\\n\\n)/)) {
      if (message.includes("close_stream")) {
        window.closing += 1;
        await new Promise((done) => setTimeout(done, 3000));
      }
      to.enqueue(encoder.encode(message));
    }
  } });
  return new Response(answer.body.pipeThrough(late), { headers: answer.headers });
};
"""

#: A browser so busy that timers are late, as on a machine that does much else: keys are not.
LATE_TIMERS = """
const timer = window.setTimeout;
window.setTimeout = (call, delay, ...rest) => timer(call, (delay ?? 0) + 400, ...rest);
"""


class Tab:
    """An open tab, and what is seen in it."""

    def __init__(self, browser, address: str, script: str = "", width: int = 1400, scheme: str = "light") -> None:
        self.asked: list[str] = []
        self.errors: list[str] = []
        context = browser.new_context(
            viewport={"width": width, "height": 1500}, color_scheme=scheme, accept_downloads=True
        )
        self.page = context.new_page()
        self.page.set_default_timeout(PATIENCE)
        self.page.add_init_script(script)
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.goto(address)
        self.frame = self.page.frame_locator("iframe.viewer")
        self.page.wait_for_function(SHOWN, arg="")

    @property
    def title(self) -> str:
        return self.frame.locator("h1").inner_text()

    @property
    def headline(self) -> str:
        return self.frame.locator("#headline").inner_text()

    def spend(self, passes: int) -> None:
        self.page.locator("#passes").get_by_label(str(passes), exact=True).click()

    @property
    def problem(self) -> str:
        return self.page.locator("#status").inner_text().strip()

    def shows(self, action: Callable[[], object]) -> str:
        """Does something, waits for another explanation, and returns what it is of."""
        before = self.page.locator("iframe.viewer").get_attribute("src")
        action()
        try:
            self.page.wait_for_function(SHOWN, arg=before)
        except Exception as late:
            late.add_note(f"The page says: {self.problem or 'nothing'}. Errors: {self.errors}. Lists: {self.lists}")
            raise
        return self.title

    @property
    def lists(self) -> list[str]:
        return self.page.locator("input[role=combobox]").evaluate_all("all => all.map((each) => each.value)")

    def upload(self, *files: Path) -> None:
        self.page.set_input_files("#upload input[type=file]", [str(f) for f in files])

    def choose(self, field: str, text: str) -> None:
        """Types into a list what is wanted: it replaces what is there."""
        box = self.page.locator(f"#{field} input")
        box.click()
        self.page.keyboard.type(text)
        self.page.wait_for_function("([box, text]) => box.value === text", arg=[box.element_handle(), text])
        self.page.get_by_role("option", name=text).first.wait_for()
        self.page.keyboard.press("Enter")

    def drag(self, left: float, top: float, right: float, bottom: float) -> str:
        """Drags a rectangle, in parts of the picture, and returns what is said of it."""
        drag(self.page, self.frame.locator("#view"), left, top, right, bottom)
        return self.frame.locator("#region").inner_text()

    def pixels(self) -> list[int]:
        """What is drawn."""
        return self.frame.locator("#view").evaluate(
            "c => Array.from(c.getContext('2d').getImageData(0, 0, c.width, c.height).data).filter((_, i) => i % 397 "
            "=== 0)"
        )

    def close(self) -> None:
        self.page.context.close()


@pytest.fixture
def tab(browser, served) -> Iterator[Tab]:
    found = Tab(browser, served)
    yield found
    found.close()
    assert found.errors == []


def minus(text: str) -> str:
    """A text whose numbers Python can read."""
    return text.replace("\u2212", "-")


def exported(tab: Tab, kind: str, folder: Path) -> Path:
    tab.page.get_by_role("tab", name="Export").click()
    with tab.page.expect_download() as download:
        tab.page.locator(f'#exports a[href$="/{kind}"]').click()
    path = folder / download.value.suggested_filename
    download.value.save_as(path)
    return path


def test_look_at_a_scene(tab, tmp_path):
    """What a new user sees and does: nothing has to be set up, a class is clicked, two are contrasted."""
    assert tab.title == "red ring"
    assert tab.page.locator("#predictions label").count() == 5
    assert tab.shows(lambda: tab.page.locator("#predictions label").nth(1).click()) == "yellow star"
    assert tab.shows(lambda: tab.choose("against", "red ring")) == "yellow star rather than red ring"
    assert tab.shows(lambda: tab.page.locator("#predictions label").nth(0).click()) == "red ring"
    assert tab.shows(lambda: tab.choose("label", "blue cross")) == "blue cross"
    assert "valid" in tab.frame.locator(".badge").inner_text()
    assert tab.frame.locator("canvas.stage").count() == 5
    assert tab.frame.locator("svg").count() == 1
    assert re.search(
        "Of the [0-9.]+ by which \u201cblue cross\u201d scores (higher|lower) than on the picture's mean colour, "
        "[0-9]+ % comes from the marked region; nothing is missing.$",
        tab.headline,
    )
    assert {url.split("/")[2] for url in tab.asked if url.startswith("http")} == {tab.page.url.split("/")[2]}


def test_read_the_map(tab, tmp_path):
    """What a rectangle holds is what the map holds there."""
    values = np.load(exported(tab, "npz", tmp_path))["map"][0]
    tab.page.get_by_role("tab", name="Explanation").click()
    assert tab.drag(0.002, 0.002, 0.998, 0.998).startswith("This region holds 100 % of the image")
    said = tab.drag(0.501, 0.501, 0.998, 0.998)
    corner = values[64:, 64:]
    share = round(100 * corner[corner > 0].sum() / values[values > 0].sum())
    assert f"holds {share} % of the image" in said
    assert "on 25 % of the picture" in said
    assert f"Together +{corner.sum():.2f}" in said
    before = tab.pixels()
    tab.frame.locator("#smoothing").fill("9")
    assert tab.pixels() != before
    assert tab.frame.locator("#region").inner_text() == said
    tab.page.keyboard.press("Escape")
    tab.frame.locator("#opacity").fill("0")
    bare = tab.pixels()
    tab.frame.locator("#positive").uncheck()
    tab.frame.locator("#negative").uncheck()
    tab.frame.locator("#opacity").fill("100")
    assert tab.pixels() == bare
    tab.frame.locator("#positive").check()
    assert tab.pixels() != bare


def test_one_pass_has_no_errors(tab):
    """Nor have rules without a reference, which can't have more."""
    assert "known from 8 passes on" in tab.frame.locator("main").inner_text()
    said = tab.drag(0.3, 0.3, 0.7, 0.7)
    assert "of the difference" in said
    assert "\u00b1" not in tab.frame.locator("main").inner_text()
    tab.page.get_by_role("button", name="Rules").click()
    tab.shows(lambda: tab.choose("rules", "hilrp"))
    assert tab.page.locator("#passes input:disabled").count() == 6
    assert "need something to compare with" in tab.page.locator("#passes").inner_text()
    assert re.search(r"^Of the score [0-9.]+ of .* comes from the marked region", tab.headline)
    tab.shows(lambda: tab.choose("reference", "a black picture"))
    assert tab.page.locator("#passes input:disabled").count() == 0
    assert "than on black, " in tab.headline


def test_passes_and_their_errors(tab, tmp_path, monkeypatch):
    """What is said of a rectangle, here and in the page that is exported, is what the library says of it."""
    tab.shows(lambda: tab.spend(16))
    names: dict[str, object] = {}
    code = exported(tab, "py", tmp_path).read_text()
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "code", "exec"), names)
    explanation = names["explanation"]
    assert explanation.passes == 16
    mask = torch.zeros(128, 128)
    mask[32:80, 48:112] = 1
    region = explanation.region(mask)
    alone = tab.page.context.new_page()
    alone.goto(exported(tab, "html", tmp_path).as_uri())
    tab.page.get_by_role("tab", name="Explanation").click()
    for page, place in ((tab.page, tab.frame), (alone, alone)):
        place.locator("#region", has_text="Hover").wait_for()
        drag(page, place.locator("#view"), 48.5 / 128, 32.5 / 128, 111.5 / 128, 79.5 / 128)
        sentence = explanation.sentence(0, names["loaded"], mask).replace("the region", "the marked rectangle")
        assert place.locator("#headline").inner_text() == sentence
        said = place.locator("#region").inner_text()
        total, error = map(float, re.search(r"Together \+([0-9.]+) \u00b1 ([0-9.]+) ", said).groups())
        digits = len(str(error).partition(".")[2])
        assert total == round(float(region.relevance), digits)
        assert error == round(float(region.stderr), digits) > 0
        low, high = (100 * float(end / explanation.ledger.explained) for end in region.interval(0.95))
        assert f"95 % interval: {low:.0f} % to {high:.0f} %" in said
        value, error = map(
            float,
            re.search(r"row 79: \+?([0-9.-]+) \u00b1 ([0-9.]+)", minus(place.locator("#pixel").inner_text())).groups(),
        )
        digits = len(f"{error:f}".rstrip("0").partition(".")[2])
        assert error == pytest.approx(float(explanation.stderr[0, 79, 111]), abs=0.6 * 10**-digits)
        assert value == pytest.approx(float(explanation.map[0, 79, 111]), abs=0.6 * 10**-digits)
    alone.close()


def test_cancel_passes(tab):
    """While they run they are counted; cancelled, they leave the explanation that was there."""
    before = tab.page.locator("iframe.viewer").get_attribute("src")
    assert not tab.page.locator("#cancel-passes").is_visible()
    tab.spend(64)
    tab.page.locator("#viewer", has_text=re.compile("[0-9]+/64 passes")).wait_for()
    tab.page.locator("#cancel-passes").click()
    tab.page.wait_for_selector("#status .problem")
    assert tab.problem.startswith("Cancelled.")
    assert tab.page.locator("iframe.viewer").get_attribute("src") == before
    assert tab.page.locator("#passes input:checked").input_value() == "1"
    assert not tab.page.locator("#cancel-passes").is_visible()
    tab.shows(lambda: tab.spend(4))


def test_pictures_of_ones_own(tab, tmp_path, uploads):
    rng = np.random.default_rng(0)
    files = [tmp_path / "first.png", tmp_path / "large.jpg"]
    for path, size in zip(files, ((96, 96), (2600, 2100)), strict=True):
        Image.fromarray(rng.integers(0, 255, (*size[::-1], 3), dtype=np.uint8)).save(path)
    tab.shows(lambda: tab.upload(*files))
    kept = [path for path in uploads.rglob("*") if path.is_file() and not path.name.startswith("mine")]
    assert not any(path.stat().st_size for path in kept)
    assert "large.jpg" in tab.frame.locator("main").inner_text()
    assert "was scaled down to 2048 x 1654" in tab.frame.locator("main").inner_text()
    assert tab.page.locator("#pictures label").count() == 3
    tab.shows(lambda: tab.page.locator("#pictures label").nth(1).click())
    assert "first.png" in tab.frame.locator("main").inner_text()
    broken = tmp_path / "scan.dcm"
    broken.write_bytes(b"DICM")
    before = tab.title
    tab.upload(broken)
    tab.page.wait_for_selector("#status .problem")
    assert tab.problem.startswith("scan.dcm: not a readable image")
    assert tab.title == before
    tab.shows(lambda: tab.page.locator("#predictions label").nth(1).click())
    assert tab.problem == ""


def test_models_and_their_questions(tab):
    """Segmentation, detection, captions; and a name that nobody has."""
    published = tab.page.locator("#published input, #published textarea")
    published.fill("zoo/nonsense")
    published.press("Enter")
    tab.page.wait_for_selector("#status .problem")
    assert "no model of that name" in tab.problem
    tab.shows(lambda: tab.choose("model", "zoo/segmenter"))
    assert "in the region" in tab.title
    tab.drag(0.502, 0.502, 0.748, 0.873)
    tab.shows(lambda: tab.frame.locator("#ask").click())
    assert tab.page.locator("#region input, #region textarea").input_value() == "64, 64, 96, 112"
    assert "query" in tab.shows(lambda: tab.choose("model", "zoo/detector"))
    tab.page.get_by_role("tab", name="Compare methods").click()
    assert tab.page.locator("#compare").is_disabled()
    assert "one class of a picture" in tab.page.locator("#why").inner_text()
    tab.page.get_by_role("tab", name="Explanation").click()
    tab.shows(lambda: tab.choose("model", "zoo/towers"))
    caption = tab.page.locator("#caption input, #caption textarea")
    caption.fill("a striped blue cross")
    assert "a striped blue cross" in tab.shows(lambda: caption.press("Enter"))


def test_an_answer_word_by_word(tab, tmp_path):
    """A question is typed, its answer is words, and each word that is clicked has its own map."""
    assert tab.shows(lambda: tab.choose("model", "zoo/captioner")) == "describe the picture"
    question = tab.page.locator("#question input, #question textarea")
    assert tab.page.locator("#predictions label").count() == 5
    question.fill("what texture has the red ring?")
    assert tab.shows(lambda: question.press("Enter")) == "what texture has the red ring?"
    assert tab.shows(lambda: tab.page.locator("#predictions label").nth(0).click()) == "describe the picture"
    words, said = tab.frame.locator(".words button"), tab.frame.locator("#said")
    seen = set()
    for i in (1, 2):
        words.nth(i).click()
        seen.add(said.inner_text())
        assert words.nth(i).inner_text().splitlines()[0] in said.inner_text()
    assert len(seen) == 2
    assert exported(tab, "html", tmp_path).stat().st_size > 10_000
    assert "explain_answer" in tab.page.locator("#code").inner_text()


def test_compare_and_cancel(tab):
    tab.page.get_by_role("tab", name="Compare methods").click()
    methods = tab.page.locator("#methods")
    for name in ("SmoothGrad", "Grad-CAM", "Attention-gradient"):
        methods.get_by_label(name, exact=True).uncheck()
    tab.page.locator("#compare").click()
    tab.page.wait_for_function(
        "() => document.querySelectorAll('#compared tr').length === 5 && "
        "!document.querySelector('#compared').innerText.includes('Now ')"
    )
    text = tab.page.locator("#compared").inner_text()
    assert "pointing" in text
    assert "passes" in text
    for name in ("RISE", "Occlusion", "LIME", "SmoothGrad", "VarGrad", "GradientSHAP"):
        methods.get_by_label(name, exact=True).check()
    tab.page.locator("#compare").click()
    tab.page.wait_for_function("() => document.querySelector('#compared').innerText.includes('Now ')")
    tab.page.locator("#cancel").click()
    tab.page.wait_for_function("() => document.querySelector('#compared').innerText.includes('Stopped')")
    assert tab.page.locator("#compared tr").count() < 11


def test_export(tab, tmp_path):
    made = {kind: exported(tab, kind, tmp_path) for kind in ("png", "svg", "pdf", "npz", "json", "py", "html")}
    assert all(path.name == f"scene_14-red_ring.{kind}" for kind, path in made.items())
    assert json.loads(made["json"].read_text())["explained"] == "red ring"
    alone = tab.page.context.new_page()
    alone.goto(made["html"].as_uri())
    alone.locator("#region", has_text="Hover").wait_for()
    drawn = alone.locator("#view").evaluate(
        "c => new Set(c.getContext('2d').getImageData(0, 0, c.width, c.height).data).size"
    )
    assert drawn > 20
    assert "explain(x, 3)" in tab.page.locator("#code").inner_text()


def test_in_the_dark_on_a_phone(browser, served):
    """The explanation in its frame is as dark as the page, and nothing is wider than a phone."""
    tab = Tab(browser, served, width=390, scheme="dark")
    assert tab.page.evaluate("document.documentElement.scrollWidth") == 390
    grounds = [
        page.locator(place).first.evaluate("e => getComputedStyle(e).backgroundColor")
        for page, place in ((tab.frame, "body"), (tab.page, "#model"), (tab.page, "body"))
    ]
    assert all(max(map(int, re.findall("[0-9]+", ground)[:3])) < 60 for ground in grounds)
    tab.page.evaluate("document.body.classList.remove('dark')")  # as ?__theme=light has it
    assert tab.frame.locator("body").evaluate("e => getComputedStyle(e).backgroundColor") == "rgb(255, 255, 255)"
    tab.close()


def test_two_people_at_once(browser, served):
    """Each sees what is theirs; what is closed is forgotten."""
    first, second = Tab(browser, served), Tab(browser, served)
    first.choose("scene", "3: a yellow triangle")
    second.choose("scene", "11: a blue triangle")
    for tab, name, number in ((first, "yellow triangle", 3), (second, "blue triangle", 11)):
        tab.frame.locator("h1", has_text=name).wait_for()
        assert f"scene {number}," in tab.frame.locator("main").inner_text()
        assert tab.page.locator("#pictures label").count() == 2
    address = served + first.page.locator("iframe.viewer").get_attribute("src").removeprefix("./")
    assert second.page.request.get(address).status == 200
    first.close()
    deadline = time.monotonic() + PATIENCE / 1000
    while second.page.request.get(address).status != 404:
        assert time.monotonic() < deadline
        time.sleep(0.2)
    assert second.title == "blue triangle"
    second.close()


def test_a_click_while_the_stream_ends_is_answered(browser, served):
    """The server ends the stream of answers when it owes none; whoever clicks before hearing of it gets his answer."""
    tab = Tab(browser, served, LATE)
    ended = tab.page.evaluate("closing")
    tab.shows(lambda: tab.page.locator("#predictions label").nth(1).click())
    tab.page.wait_for_function("ended => closing > ended", arg=ended)
    assert tab.shows(lambda: tab.page.locator("#predictions label").nth(0).click()) == "red ring"
    tab.close()


def test_what_is_typed_into_a_list_replaces_its_name_on_a_busy_machine(browser, served):
    tab = Tab(browser, served, LATE_TIMERS)
    assert tab.shows(lambda: tab.choose("label", "blue cross")) == "blue cross"
    tab.page.locator("#label input").click()
    tab.page.locator("#label input").click()  # the second click puts the caret somewhere
    chosen = "e => e.value.slice(e.selectionStart, e.selectionEnd)"
    assert tab.page.locator("#label input").evaluate(chosen) == ""
    tab.page.locator("#head").click()
    box = tab.page.locator("#label input").bounding_box()
    tab.page.mouse.move(box["x"] + box["width"] / 3, box["y"] + box["height"] / 2)
    tab.page.mouse.down()
    tab.page.locator("#label").evaluate("e => { e.style.marginTop = '200px'; }")  # the page is still being laid out
    tab.page.mouse.up()
    assert tab.page.locator("#label input").evaluate(chosen) == "blue cross"
    tab.page.keyboard.type("yellow star")
    assert tab.shows(lambda: tab.page.keyboard.press("Enter")) == "yellow star"
    tab.close()


def test_forged_requests(served, tmp_path):
    """A path in a request, of a file that was never sent: neither read nor deleted."""
    secret = tmp_path / "secret.png"
    Image.new("RGB", (8, 8)).save(secret)
    with urlopen(f"{served}config") as answer:
        events = json.load(answer)["dependencies"]
    upload = next(each["id"] for each in events if any(name == "upload" for _, name in each["targets"]))
    file = {"path": str(secret), "meta": {"_type": "gradio.FileData"}, "is_stream": True}
    body = json.dumps({"data": [[file]], "fn_index": upload, "session_hash": "forged"}).encode()
    join = Request(f"{served}gradio_api/queue/join", body, {"Content-Type": "application/json"})
    with pytest.raises(HTTPError, match="403"):
        urlopen(join, timeout=30)
    assert secret.exists()


def test_it_stops_while_a_tab_is_open(browser, served, uploads, left_open, tmp_path):
    """And leaves nothing behind, not even a checkpoint that was dropped and never loaded: see where it is stopped."""
    weights = tmp_path / "mine.safetensors"
    weights.write_bytes(b"0" * 100_000)
    tab = Tab(browser, served)
    left_open.append(tab)
    tab.page.get_by_role("button", name="Weights of your own").click()
    tab.page.set_input_files("#checkpoint input[type=file]", [str(weights)])
    tab.page.locator("#checkpoint", has_text="mine").wait_for()
    tab.shows(lambda: tab.page.locator("#predictions label").nth(1).click())
    assert "mine" in tab.page.locator("#checkpoint").inner_text()
    assert [path.stat().st_size for path in uploads.rglob("mine*")] == [100_000]
