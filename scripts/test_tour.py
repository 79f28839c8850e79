#!/usr/bin/env python3
"""Checks of the guided tour, in headless Chromium where that is installed: every chapter is walked.

Usage: python3 scripts/test_tour.py
Builds the tour into a scratch folder. Without a browser: each operation has its text, excerpts are at the
lines that they name, the server rejects unknown requests. With one: no errors on the console, every number on
a page equals the program's, the keyboard reaches every control, axe-core finds no violations, in both themes
and two widths. (scripts/install.sh --with-browser)
"""

import json
import re
import shutil
import sys
import tempfile
import threading
import urllib.error
import urllib.request
from pathlib import Path

from over_ranks import check, finish, limited

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts/tour"))
import facts  # noqa: E402
import operations  # noqa: E402
import server  # noqa: E402

CHAPTERS = ("step", "kernels", "tensor", "pipeline", "data", "planet", "recipe", "corpus")
WIDTHS = (1200, 390)


def chapter_data(folder, name):
    text = (folder / f"{name}.data.js").read_text()
    return json.loads(text[text.index("=") + 1 : text.rindex(";")])


def test_texts(folder):
    """What needs no browser."""
    recorded = {line["name"] for line in chapter_data(folder, "step")["lines"]}
    for layout in chapter_data(folder, "tensor").get("layouts", []):
        recorded |= {line["name"] for line in layout["lines"] if line["kind"] == "compute"}
        for name in {line["name"] for line in layout["lines"] if line["kind"] == "call"}:
            check(name in operations.CALLS, f"scripts/tour/operations.py says nothing of the call {name}")
    for name in sorted(recorded):
        check(name in operations.OPERATIONS, f"scripts/tour/operations.py says nothing of {name}")
    for name in CHAPTERS:
        page = (folder / f"{name}.html").read_text()
        made = "missing" not in chapter_data(folder, name)
        unfilled = re.search(r"\{\{", page) or (made and re.search(r"data-fact[^>]*>…", page))
        check(not unfilled, f"{name}.html has places that nobody has filled")
        check(made, f"{name}: {chapter_data(folder, name).get('missing')}")
        check(
            "https://" not in page and "http://" not in page.replace("http://www.w3.org", ""),
            f"{name}.html asks the network for something",
        )


def excerpts_of(folder):
    """(file, first, last, code as it is shown) of all chapters."""
    found = []
    for source in chapter_data(folder, "step").get("sources", {}).values():
        found += [(s["file"], s["first"], s["last"], s["html"]) for s in source.values()]
    shown = r'data-file="([^"]+)" data-first="(\d+)" data-last="(\d+)"><pre>(.*?)</pre>'
    for name in CHAPTERS:
        found += re.findall(shown, (folder / f"{name}.html").read_text(), re.S)
    return found


def test_excerpts(folder):
    plain = {"&lt;": "<", "&gt;": ">", "&quot;": '"', "&#39;": "'", "&amp;": "&"}
    all_of_them = excerpts_of(folder)
    check(len(all_of_them) > 30, f"{len(all_of_them)} excerpts")
    for file, first, last, html in all_of_them:
        text = re.sub(r"<[^>]+>", "", html)
        for name, sign in plain.items():
            text = text.replace(name, sign)
        want = "\n".join((ROOT / file).read_text().splitlines()[int(first) - 1 : int(last)])
        check(text.strip() == want.strip(), f"the excerpt of {file}, lines {first} to {last}")


def asked(port, path, host="127.0.0.1"):
    request = urllib.request.Request(f"http://127.0.0.1:{port}/{path}", headers={"Host": host})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_server(port):
    code, text = asked(port, "api/plan?tensor-parallel=8&pipeline-parallel=35&world-size=2240&recompute=full")
    check(code == 200 and "2240 ranks" in text, f"a plan: {code} {text[:200]}")
    code, text = asked(port, "api/plan?tensor-parallel=16&pipeline-parallel=105&world-size=280")
    check(code == 200 and "train_gpt:" in text, f"what the program refuses: {code} {text[:200]}")
    code, text = asked(port, "api/pipeline?p=16&m=32&v=1")
    check(code == 200 and len(json.loads(text)["spans"]) == 2 * 16 * 32, f"a schedule: {code} {text[:100]}")
    refused = (
        "api/plan?train=/etc/passwd", "api/plan?world-size=1000000", "api/plan?hardware=/tmp/x",
        "api/pipeline?p=4&p=8", "api/pipeline?p=4;ls", "api/shell?x=1", "api/pipeline?" + "p=4&" * 50,
    )  # fmt: skip
    for query in refused:
        code, text = asked(port, query)
        check(code == 400, f"{query}: {code} {text[:100]}")
    for path in ("../../../etc/passwd", "%2e%2e/%2e%2e/etc/passwd", "..%2fREADME.md"):
        check(asked(port, path)[0] == 404, f"{path} is not of the site")
    check(asked(port, "api/plan", host="evil.example")[0] == 403, "another host's page")
    check(asked(port, "%00")[0] == 400, "a path that is none")


# ---- with a browser --------------------------------------------------------------------------------------


def start_browser():
    """A driver, or None and why."""
    if not shutil.which("chromedriver"):
        return None, "chromedriver is not here: scripts/install.sh --with-browser"
    try:
        from selenium import webdriver
    except ImportError:
        return None, "selenium is not here: scripts/install.sh --with-browser"
    options = webdriver.ChromeOptions()
    for option in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"):
        options.add_argument(option)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    service = webdriver.ChromeService(shutil.which("chromedriver"))
    browser = webdriver.Chrome(options, service)
    browser.set_script_timeout(120)
    return browser, ""


def complaints_of(browser):
    """What axe-core finds wrong with the page, as text."""
    import axe_core_python

    script = (Path(axe_core_python.__file__).parent / "axe.min.js").read_text()
    browser.execute_script(script)
    result = browser.execute_async_script("axe.run().then(arguments[arguments.length - 1])")
    return [f"{v['id']}: {v['nodes'][0]['html'][:120]}" for v in result["violations"]]


def test_keyboard(browser, name):
    """Tab reaches every visible control."""
    from selenium.webdriver.common.keys import Keys

    controls = browser.execute_script(
        "const which = ['button', 'input', 'select', 'summary', 'canvas[tabindex]'].map((e) => 'main ' + e);"
        "return [...document.querySelectorAll(which.join())]"
        ".filter((e) => e.offsetParent && !e.closest('.operations')).length"
    )
    reached = set()
    body = browser.switch_to.active_element
    browser.execute_script("document.activeElement.blur(); window.scrollTo(0, 0)")

    for _ in range(600):
        browser.switch_to.active_element.send_keys(Keys.TAB)
        body = browser.switch_to.active_element
        where = browser.execute_script(
            "const e = arguments[0]; const all = [...document.querySelectorAll('*')];"
            "return [all.indexOf(e), !!e.closest('main') && !e.closest('.operations')"
            " && e.matches('button, input, select, summary, canvas')]", body)  # fmt: skip
        if where[0] in reached:
            break
        reached.add(where[0])
        if where[1]:
            controls -= 1

    check(controls == 0, f"{name}: the keyboard does not reach {controls} controls")


WALK = """
const done = arguments[arguments.length - 1];
const turn = () => new Promise((go) => setTimeout(go, 20));
const all = (which) => [...document.querySelectorAll('main ' + which)];
const worst = [];  // of each sum over ranks that was shown: parallel.js
const note = () => worst.push(...all('[data-worst]').map((sum) => Number(sum.dataset.worst)));
(async () => {
  for (let i = 0; i < all('.row button').length; i++) { all('.row button')[i].click(); await turn(); note(); }
  for (const select of all('select'))
    for (const option of select.options) {
      select.value = option.value;
      select.dispatchEvent(new Event('change'));
      await turn();
      note();
    }
  for (const button of all('.operations button')) { button.click(); note(); }
  for (const input of all('input[type=range], input[type=number]'))
    for (const value of [0, Math.floor(input.max / 2), input.max]) {
      input.value = value;
      input.dispatchEvent(new Event('input'));
    }
  setTimeout(() => done(worst), 500);
})();
"""


IN_FLIGHT = """
const done = arguments[arguments.length - 1], [p, m] = arguments;
const choices = document.querySelectorAll('main select');
choices[0].value = p;
choices[0].dispatchEvent(new Event('change'));
choices[1].value = m;
choices[1].dispatchEvent(new Event('change'));
setTimeout(() => {
  const row = [...document.querySelectorAll('main tr')].find((r) => r.textContent.startsWith('at most'));
  done([...row.querySelectorAll('td')].map((cell) => Number(cell.textContent)));
}, 500);
"""


def test_in_flight(browser, port):
    """1F1B holds p - r micro-batches on stage r, or all where there are fewer."""
    browser.get(f"http://127.0.0.1:{port}/pipeline.html")
    for p, m in ((4, 8), (8, 16), (8, 4), (1, 4)):
        held = browser.execute_async_script(IN_FLIGHT, str(p), str(m))
        check(held == [min(p - r, m) for r in range(p)], f"{p} stages, {m} micro-batches: {held} in flight")


def test_pages(folder, port, browser, pictures):
    from selenium.webdriver.common.by import By

    known = json.loads((folder / "facts.json").read_text())
    for name in ("index", *CHAPTERS):
        for width in WIDTHS:
            for theme in ("light", "dark"):
                browser.set_window_size(width, 900)
                browser.get(f"http://127.0.0.1:{port}/{name}.html")
                browser.execute_script(f"setTheme('{theme}')")
                if name == "pipeline":  # its first drawing needs a turn of the event loop
                    browser.execute_async_script("setTimeout(arguments[0], 200)")
                wide = browser.execute_script(
                    "return document.documentElement.scrollWidth - window.innerWidth"
                )
                check(wide <= 0, f"{name}, {width} wide: {wide} more than the window")
                complaints = complaints_of(browser)
                check(not complaints, f"{name}, {width}, {theme}: axe-core: {complaints}")
                if pictures:
                    height = browser.execute_script("return document.documentElement.scrollHeight")
                    browser.set_window_size(width, min(height + 100, 6000))
                    browser.save_screenshot(str(pictures / f"{name}-{width}-{theme}.png"))

        for number in browser.find_elements(By.CSS_SELECTOR, "[data-fact]"):
            value = known[name][number.get_attribute("data-fact")]
            want = facts.shown(value, number.get_attribute("data-how"))
            check(number.get_attribute("textContent") == want, f"{name}: {number.get_attribute('data-fact')}")
        browser.set_window_size(WIDTHS[0], 900)
        test_keyboard(browser, name)
        worst = browser.execute_async_script(WALK)  # every button, choice and position
        check(max(worst, default=0) < 1e-5, f"{name}: sums over ranks: {max(worst, default=0)}")
        check(bool(worst) == (name == "tensor"), f"{name}: {len(worst)} sums over ranks")
        said = [e["message"] for e in browser.get_log("browser") if e["level"] in ("SEVERE", "WARNING")]
        check(not said, f"{name}: the console says {said[:3]}")


def main():
    pictures = Path(sys.argv[1]) if len(sys.argv) > 1 else None
    with tempfile.TemporaryDirectory() as scratch:
        work = Path(scratch)
        folder = work / "site"
        libraries = limited(["bash", "scripts/install.sh", "--with-tour"], 300, cwd=ROOT)
        if libraries.returncode:
            print(f"the tour was not built: {libraries.stderr.strip()[-300:]}")
            return finish()

        built = limited(["bash", "scripts/tour.sh", "--output", folder], 900, cwd=ROOT)
        check(built.returncode == 0, f"the tour is built: {built.stderr[-2000:]}")
        if built.returncode == 0:
            test_texts(folder)
            test_excerpts(folder)
            live = server.start(folder, 0)
            for page in folder.glob("*.html"):  # as scripts/tour.sh serves them
                page.write_text(page.read_text().replace("Tour.live = false", "Tour.live = true"))
            threading.Thread(target=live.serve_forever, daemon=True).start()
            test_server(live.server_port)
            browser, why = start_browser()
            if browser:
                test_pages(folder, live.server_port, browser, pictures)
                test_in_flight(browser, live.server_port)
                browser.quit()
            else:
                print(f"the pages were not walked: {why}")
            live.shutdown()

    finish()


main()
