#!/usr/bin/env python3
"""Checks ./corpus against literal, slow programs: python3 scripts/test_corpus.py ./corpus ./train_gpt

The last line is `N passed, N failed`. What is compared with is written here from the papers and from the
rules, not from the program: min-hash buckets, components, decontamination, the Pareto rule, WARC in all its
states.
"""

import sys
import tempfile

import corpus_crawl
import corpus_duplicates
import corpus_pages
import corpus_quality
import corpus_runs
from over_ranks import finish

CHAPTERS = {
    name[5:]: function
    for module in (corpus_crawl, corpus_pages, corpus_quality, corpus_duplicates, corpus_runs)
    for name, function in vars(module).items()
    if name.startswith("test_")
}


def main():
    for name in sys.argv[3:] or CHAPTERS:
        print("==", name, flush=True)
        with tempfile.TemporaryDirectory() as work:
            CHAPTERS[name](work)
    finish()


main()
