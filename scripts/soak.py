#!/usr/bin/env python3
"""Injects a random fault every 20 s into a run of 2 x 2 x 2 ranks over two hosts and a spare: its losses must
equal those of an undisturbed run bit for bit. Where too few hosts are left, the launcher goes on with one
replica, which adds up in another order: the next 500 steps must be near. Later ones need not: at this
learning rate two runs part exponentially (1e-8 grows to 1e-6 in 2,000 steps, to 1e-2 in 4,000).

  python3 scripts/soak.py BUILD [--minutes 30] [--seed N]     hosts are network namespaces: wants root"""

import json
import os
import random
import signal
import sys
import threading
import time

if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
    sys.exit(__doc__)
signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # what it has made is taken away

from faults import (  # noqa: E402
    BUILD,
    DATA,
    REPOSITORY,
    WORK,
    checkpoints,
    command,
    metrics,
    run,
    steps_written,
    until,
    write_into,
)
from faults_hosts import Hosts  # noqa: E402
from over_ranks import check, environment, finish

EVERY = 20  # seconds
COMM_TIMEOUT = 10
LAYOUT = ["--tensor-parallel", 2, "--pipeline-parallel", 2]
SAVE_EVERY, KEEP = 50, 4
SETTINGS = ["--save-every", SAVE_EVERY, "--keep", KEEP, "--comm-timeout", COMM_TIMEOUT]


def argument(name, default):
    return int(sys.argv[sys.argv.index(name) + 1]) if name in sys.argv else default


def attempts():
    return json.loads((WORK / "soak/launch.json").read_text())["attempts"]


def victim():
    """A host that takes part now."""
    return random.choice(attempts()[-1]["hosts"])


def kill_ranks(hosts):
    host = victim()
    hosts.signal(host, signal.SIGKILL, "train_gpt")
    return f"kill -9 of the ranks on {host}"


def kill_rank(hosts):
    host = victim()
    hosts.signal(host, signal.SIGKILL, "train_gpt", most=1)
    return f"kill -9 of one rank on {host}"


def lose_host(hosts):
    """Its link goes down and its processes stop; it comes back when the others have noticed."""
    host = victim()
    hosts.link(host, "down")
    hosts.signal(host, signal.SIGSTOP)
    time.sleep(15)
    hosts.signal(host, signal.SIGKILL)
    hosts.link(host, "up")
    return f"the link of {host} down and its processes stopped for 15 s"


def stop_ranks(hosts):
    """For longer than --comm-timeout: they are found to hang."""
    host = victim()
    hosts.signal(host, signal.SIGSTOP, "train_gpt")
    time.sleep(COMM_TIMEOUT + 8)
    hosts.signal(host, signal.SIGCONT, "train_gpt")
    return f"the ranks of {host} hang for {COMM_TIMEOUT + 8} s"


def pause_host(hosts):
    host = victim()
    hosts.signal(host, signal.SIGSTOP, "train_gpt")
    time.sleep(4)
    hosts.signal(host, signal.SIGCONT, "train_gpt")
    return f"the ranks of {host} stand still for 4 s"


def end_daemon(hosts):
    host = victim()
    hosts.signal(host, signal.SIGTERM, "orted")
    return f"the daemon of {host} ends"


def damage_newest(hosts):
    """The newest checkpoint is damaged, then the run is lost."""
    names = checkpoints(WORK / "soak")
    if len(names) > 1:
        write_into(WORK / "soak" / names[-1] / "rank-00001.bin", 64, b"damage")
    return f"{' '.join(names[-1:])} damaged, and {kill_ranks(hosts)}"


def swap_newest(hosts):
    """The two newest checkpoints get each other's names, then the run is lost."""
    names = checkpoints(WORK / "soak")[-2:]
    if len(names) > 1:
        a, b = (WORK / "soak" / name for name in names)
        for old, new in ((a, WORK / "soak/aside"), (b, a), (WORK / "soak/aside", b)):
            old.rename(new)
    return f"{' and '.join(names)} have each other's names, and {kill_ranks(hosts)}"


def unreadable_newest(hosts):
    """The newest checkpoint's index cannot be read, then the run is lost."""
    names = checkpoints(WORK / "soak")
    if len(names) > 1:
        index = WORK / "soak" / names[-1] / "index.json"
        index.unlink()
        index.mkdir()
    return f"{' '.join(names[-1:])} cannot be read, and {kill_ranks(hosts)}"


def second_launcher(hosts):
    """Another launcher on the same run is refused, and disturbs nothing."""
    (WORK / "soak-hosts").write_text("h1\n")
    launcher = ["python3", str(REPOSITORY / "scripts/launch.py"), "mpirun", str(WORK / "soak-hosts"), "1"]
    r = run([*launcher, *command("--save", WORK / "soak")[1:]], dict(environment, LAUNCH_DIR=str(BUILD)))
    check(r.returncode == 1 and "another launcher works on this run" in r.stderr, f"two: {r.stderr[-300:]}")
    return "a second launcher"


FAULTS = (
    kill_ranks,
    kill_rank,
    lose_host,
    stop_ranks,
    pause_host,
    end_daemon,
    damage_newest,
    swap_newest,
    unreadable_newest,
    second_launcher,
)


def main():
    seed = argument("--seed", int(time.time()))
    random.seed(seed)
    minutes = argument("--minutes", 30)
    text = WORK / "text.txt"
    text.write_text((REPOSITORY / "README.md").read_text() * 3)
    made = run(
        [str(BUILD / "tokenize"), "--vocabulary", "bytes", "--output", str(DATA)[: -len(".bin")], str(text)]
    )
    if made.returncode:
        sys.exit(f"soak.py: {made.stderr.strip()}")

    # the same learning rates however many steps there will be
    same = ["--decay-tokens", 10**8, "--check-every", 25, *LAYOUT]
    done = []
    with Hosts(4) as hosts:
        if not hosts.usable:
            sys.exit("soak.py: no network namespaces here: run it as root on Linux")
        options = [
            "--steps", 10**6, *same, *SETTINGS, "--save", WORK / "soak", "--metrics", WORK / "soak.jsonl"
        ]
        process = hosts.launch(["h1", "h2", "h3"], 2, options, each=4)

        printed = []
        reader = threading.Thread(target=lambda: printed.extend(process.stdout), daemon=True)
        reader.start()
        print(f"seed {seed}", flush=True)

        limit = time.time() + minutes * 60
        while process.poll() is None and time.time() < limit:
            if not until(lambda: process.poll() is not None, EVERY):
                at = steps_written(WORK / "soak.jsonl")
                done.append(random.choice(FAULTS)(hosts))
                print(f"after {at} lines of metrics: {done[-1]}", flush=True)

        # goes on until it is well again, and is asked to end
        at = steps_written(WORK / "soak.jsonl")
        check(until(lambda: steps_written(WORK / "soak.jsonl") > at + 100, 300), "the run goes on")
        for launcher in run(["pgrep", "-f", f"scripts/launch.py.*{WORK}"]).stdout.split():
            os.kill(int(launcher), signal.SIGTERM)
        until(lambda: process.poll() is not None, 120)
        reader.join(5)

    check(process.returncode == 0, f"the launcher: {process.returncode} {''.join(printed)[-1500:]}")
    got = metrics(WORK / "soak.jsonl")
    steps = max(got)
    print(f"the undisturbed run of {steps} steps", flush=True)
    calm = ["--steps", steps, *same, "--metrics", WORK / "calm.jsonl"]
    r = run(command(*calm, ranks=8), timeout=7200)
    check(r.returncode == 0, f"undisturbed: {r.stderr[-400:]}")
    wanted = metrics(WORK / "calm.jsonl")
    # steps of both replicas; one that goes on alone may find the newest checkpoints damaged
    alone = min((a["from_step"] for a in attempts() if a["ranks"] < 8), default=None)
    whole = steps if alone is None else alone - (KEEP - 1) * SAVE_EVERY
    differ = [s for s in wanted if got.get(s) != wanted[s] and s <= whole]
    check(got.keys() == wanted.keys() and not differ, f"losses: of {whole} steps {len(differ)} differ")
    near = range(whole + 1, min(steps, whole + 500) + 1)
    far = max((abs(x - y) / (1 + abs(y)) for s in near for x, y in zip(got[s], wanted[s])), default=0)
    check(far < 1e-5, f"losses: within 500 steps {far:.1e} from the undisturbed run's")
    print(
        f"{len(done)} faults, {len(attempts())} attempts, {steps} steps: {whole} to the last bit, the next"
        f" {len(near)} within {far:.1e}"
    )
    finish()


main()
