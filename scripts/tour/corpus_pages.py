"""Pages made for the tour's last chapter, and what each step of ./corpus does with them."""

import gzip
import html
import json
import re
from pathlib import Path

import runs

CORPUS = runs.BUILD / "corpus"
RIVER = (
    "The history of the town is known from letters that were written by its people in the first years"
    " of the century, when the river was used by most of them to go to the market and to the church on"
    " the other side. In the summer of that year the bridge was built, and with it came the merchants"
    " who had until then gone by the road over the hills. What they brought to the town was more than"
    " cloth and salt: it was the news of the world, and the habit of asking for it."
)
BAKERS = (
    "Bakers have known for a long time that dough which rests overnight in a cold room tastes better"
    " than dough which is hurried. What happens in these hours is slow work: enzymes in the flour take"
    " starch apart, and the sugar that they set free feeds the yeast and browns the crust in the oven."
    " A baker who has the time needs half of the yeast, and the bread will keep for a day longer than"
    " the bread of one who has not."
)
GERMAN = (
    "Die Geschichte der Stadt ist aus Briefen bekannt, die ihre Bewohner in den ersten Jahren des"
    " Jahrhunderts schrieben, als der Fluss von den meisten benutzt wurde, um zum Markt und zur Kirche"
    " auf der anderen Seite zu gelangen. Im Sommer jenes Jahres wurde die Brücke gebaut, und mit ihr"
    " kamen die Händler."
)
QUESTION = (
    "To keep a cut apple from turning brown before the guests arrive you should rub the white side"
    " with the juice of half a lemon and put it in the coldest part of the kitchen"
)
COOKING = (
    "There are many small things that a cook learns only by doing them, and most of them are about"
    " time. The soup that was made in the morning is better at night, and the one who waits for the"
    " pan to be hot before the fish goes in will not have to ask why it sticks to the iron. "
    + QUESTION
    + ". What the books do not say is that the same is true of people who come to dinner: they are happy"
    " when there is bread on the table, and when nobody is in a hurry to bring them what comes after"
    " it. So the best of cooks are those who are never seen to be at work, because they were at work"
    " before."
)


def page(title, *paragraphs):
    menu = "".join(f"<li><a href='/{name}'>{name}</a></li>" for name in ("Home", "News", "Contact", "Log in"))
    text = "".join(f"<p>{html.escape(p)}</p>" for p in paragraphs)
    return (
        f"<html><head><title>{title}</title></head><body><ul>{menu}</ul><h1>{title}</h1>{text}</body></html>"
    )


PAGES = {
    "an article": page("The town on the river", RIVER),
    "another article": page("Why dough should sleep", BAKERS),
    "a copy of the first on another site": page("History!", RIVER, "Share this with your friends today."),
    "the first in German": page("Die Stadt am Fluss", GERMAN),
    "a page of links": page("All our offers", *[f"Offer {i}: click here" for i in range(30)]),
    "an article that quotes a test's question": page("What cooks know", COOKING),
}
STEPS = ("extract", "clean", "dedup", "decontaminate", "tokens")
WHY = {  # step: why a document did not survive it
    "extract": "no main text in the wanted language is left",
    "clean": "dropped by rule",
    "dedup": "a near-duplicate of a document that comes before it",
    "decontaminate": "no long enough piece is left around a test's question",
}


def record_of(number, text):
    body = b"HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=utf-8\r\n\r\n" + text.encode()
    head = (
        f"WARC/1.0\r\nWARC-Type: response\r\nWARC-Record-ID: <urn:uuid:{number}>\r\nWARC-Target-URI:"
        f" http://tour.example/{number}\r\nWARC-Date: 2021-04-10T00:00:00Z\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body + b"\r\n\r\n"


def documents(folder):
    """Of a step's output: page number -> text."""
    found = {}
    for file in sorted(Path(folder).rglob("*.jsonl")):
        for line in file.read_text().splitlines():
            document = json.loads(line)
            number = int(re.search(r"\d+", document["id"])[0])
            found[number] = found.get(number, "") + document["text"] + "\n"
    return found


def everything(work):
    if not CORPUS.exists():
        return {"missing": "./corpus is not built: bash scripts/install.sh --with-corpus, then make corpus"}
    try:
        return run_steps(work)
    except runs.ProgramError as error:
        return {"missing": str(error)}


def run_steps(work):
    crawl = work / "crawl.warc.gz"
    crawl.write_bytes(b"".join(gzip.compress(record_of(i, text)) for i, text in enumerate(PAGES.values())))
    question = {"context": QUESTION, "continuations": ["a"], "gold": 0}
    questions = work / "questions.jsonl"
    questions.write_text(json.dumps(question) + "\n")
    step_options = {
        "decontaminate": ["--against", f"requests={questions}", "--margin", 40, "--shortest-piece", 100]
    }

    source, after = crawl, {}
    for step in STEPS[:-1]:
        folder = work / step
        options = ["--output", folder, *step_options.get(step, []), "--compress", "none"]
        runs.run([CORPUS, step, *options, f"pages={source}"])
        after[step] = documents(folder)
        source = next(folder.rglob("*.jsonl"))

    runs.run([CORPUS, "tokens", "--output", work / "tokens", f"pages={source}"])
    out = []
    for number, (name, text) in enumerate(PAGES.items()):
        texts = {step: after[step][number] for step in STEPS[:-1] if number in after[step]}
        lost = next((step for step in STEPS[:-1] if step not in texts), None)
        out.append({
            "name": name, "html": text, "texts": texts, "end": lost or "tokens", "why": WHY.get(lost, ""),
        })  # fmt: skip

    return {"steps": list(STEPS), "pages": out}
