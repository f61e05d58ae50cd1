"""The page in a real browser: it draws, it answers clicks, and it neither complains nor calls anyone."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html import unescape

import matplotlib.image
import pytest

from isogon.report.run._page import write_page
from isogon.report.run._tables import summarise

CHROMIUM = shutil.which("chromium")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on the PATH")

QUIET = "--disable-gpu --disable-background-networking --disable-component-update --disable-sync --no-first-run"

# Runs after the page's own script: clicks as a person would, and leaves what it saw in the document.
CLICKS = """
<script>
const visible = () => panels.data.map((trace) => trace.visible);
const lines = () => panels.querySelectorAll(".scatterlayer .trace").length;
const pause = () => new Promise((done) => setTimeout(done, 1000));
const press = (node) => ["mousedown", "mouseup"].forEach(
  (kind) => node.dispatchEvent(new MouseEvent(kind, { bubbles: true, view: window })));
(async () => {
  const seen = {};
  await pause();
  seen.names = [...panels.querySelectorAll(".legendtext")].map((text) => text.textContent);
  seen.buttons = [...panels.querySelectorAll(".modebar-btn")].map((button) => button.dataset.title);
  seen.lines = lines();
  press(panels.querySelectorAll(".legendtoggle")[1]);
  await pause();
  seen.legend = { visible: visible(), lines: lines() };
  document.getElementById("opening").click();
  await pause();
  boxes[0].click();
  await pause();
  seen.box = { visible: visible(), lines: lines() };
  document.querySelector(".findings button").click();
  await pause();
  seen.finding = boxes.map((box) => box.checked);
  document.getElementById("every").click();
  const filter = document.getElementById("filter");
  filter.value = "BODY.3";
  filter.dispatchEvent(new Event("input"));
  seen.found = boxes.filter((box) => box.parentElement.offsetHeight > 0).map((box) => box.parentElement.textContent);
  document.getElementById("linear").click();
  await pause();
  seen.scales = run.heights.map((axis) => panels.layout[axis].type);
  seen.requests = performance.getEntriesByType("resource").map((entry) => entry.name);
  const told = document.createElement("pre");
  told.id = "seen";
  told.textContent = JSON.stringify(seen);
  document.body.append(told);
})();
</script>
"""


@pytest.fixture
def browse(tmp_path):
    """Open a page; (stdout, the lines of its console)."""

    def open_page(page, *options):
        command = [CHROMIUM, "--headless", "--no-sandbox", *QUIET.split(), "--enable-logging=stderr"]
        command += [f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=20000", "--window-size=1400,1100"]
        done = subprocess.run(
            [*command, *options, page.as_uri()], capture_output=True, text=True, timeout=120, check=True
        )
        return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]

    return open_page


def clicked(text):
    return text.replace("</body>", CLICKS + "</body>")


@pytest.mark.parametrize("which", ["run_folder", "evil_folder"])
def test_the_page_draws_without_a_word_in_the_console(which, request, tmp_path, browse):
    page = write_page(summarise(request.getfixturevalue(which)), tmp_path / "run.html")
    _, console = browse(page, f"--screenshot={tmp_path / 'shot.png'}")
    assert console == []
    image = matplotlib.image.imread(tmp_path / "shot.png")[..., :3]
    panels = image[200:900, 330:]
    blue = (panels[..., 2] > panels[..., 0] + 0.3).mean()
    assert blue > 0.001, "the second layer's line is blue"


def test_the_console_is_really_heard(tmp_path, browse):
    page = tmp_path / "loud.html"
    page.write_text("<script>nothing.at.all()</script>")
    assert "nothing is not defined" in browse(page)[1][0]


def test_clicks_do_what_they_say(run_folder, tmp_path, browse):
    run = summarise(run_folder)
    page = write_page(run, tmp_path / "run.html")
    page.write_text(clicked(page.read_text(encoding="utf-8")), encoding="utf-8")
    dom, console = browse(page, "--dump-dom")
    assert console == []
    seen = json.loads(re.search(r'<pre id="seen">(.*?)</pre>', dom).group(1))
    layers = [run.layers[place] for place in _embedded(dom)["layer_of"]]
    assert seen["names"] == run.layers
    assert seen["lines"] == len(run.lines)
    hidden = {layer for layer, shown in zip(layers, seen["legend"]["visible"], strict=True) if shown is not True}
    assert hidden == {"stem.conv.weight"}, "a click in the legend hides that layer in every panel"
    assert seen["legend"]["lines"] == len(run.lines) - 7
    assert {layer for layer, shown in zip(layers, seen["box"]["visible"], strict=True) if shown is not True} == {"all"}
    assert seen["box"]["lines"] == len(run.lines) - 7
    named = {run.findings[0].layer, "all"}
    assert seen["finding"] == [layer in named for layer in run.layers]
    assert seen["found"] == ["body.3.conv.weight"]
    assert seen["scales"] == ["linear"] * 4
    assert seen["requests"] == []
    assert not [title for title in seen["buttons"] if re.search("share|cloud|studio", title, re.IGNORECASE)]


def test_the_second_figure_is_drawn_too(metrics_folder, evil, tmp_path, browse):
    page = write_page(summarise(metrics_folder), tmp_path / "run.html")
    dom, console = browse(page, "--dump-dom")
    assert console == []
    assert "<title>broken</title>" not in dom
    figure = dom.split('id="epochs"', 1)[1].split("<footer>", 1)[0]
    names = [unescape(name) for name in re.findall(r'class="legendtext"[^>]*>([^<]*)</text>', figure)]
    assert [name.replace("&lt;", "<").replace("&gt;", ">") for name in names] == ["loss", "val/loss", "accuracy", evil]
    assert len(re.findall(r'class="trace scatter', figure)) == 4


def test_a_hostile_name_is_shown_and_not_run(evil_folder, evil, tmp_path, browse):
    run = summarise(evil_folder)
    page = write_page(run, tmp_path / "run.html")
    page.write_text(clicked(page.read_text(encoding="utf-8")), encoding="utf-8")
    dom, console = browse(page, "--dump-dom")
    assert console == []
    assert "<title>broken</title>" not in dom
    assert "<img" not in re.sub(r"<script.*?</script>", "", dom, flags=re.DOTALL)
    seen = _embedded(dom, r'<pre id="seen">(.*?)</pre>')
    assert seen["names"] == [re.sub("<", "&lt;", name).replace(">", "&gt;") for name in run.layers]
    assert evil in run.layers


def _embedded(dom, pattern=r'<script type="application/json" id="run">(.*?)</script>'):
    return json.loads(re.search(pattern, dom, re.DOTALL).group(1))


# The first time it is loaded a person hides a layer, and it is loaded again, sooner than by itself.
CHOICE = """
<script>
sessionStorage.loads = Number(sessionStorage.loads || 0) + 1;
if (sessionStorage.loads === "1") { boxes[1].click(); document.getElementById("linear").click(); location.reload(); }
const told = document.createElement("pre");
told.id = "seen";
told.textContent = JSON.stringify({
  loads: Number(sessionStorage.loads), shown: boxes.map((box) => box.checked),
  linear: document.getElementById("linear").checked });
document.body.append(told);
</script>
"""


def test_the_page_of_a_run_under_way_loads_itself_again_and_keeps_what_was_chosen(run_folder, tmp_path, browse):
    page = write_page(summarise(run_folder), tmp_path / "run.html", renew=3600)
    page.write_text(page.read_text(encoding="utf-8").replace("</body>", CHOICE + "</body>"), encoding="utf-8")
    dom, console = browse(page, "--dump-dom")
    assert console == []
    seen = json.loads(re.search(r'<pre id="seen">(.*?)</pre>', dom).group(1))
    assert seen["loads"] == 2
    assert seen["shown"] == [True, False, True, True]
    assert seen["linear"]
