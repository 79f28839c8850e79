"""Slow and late ranks, and lost hosts: network namespaces stand in for hosts."""

import json
import os
import re
import shlex
import signal
import time
from pathlib import Path

import launch
from faults import (
    BUILD,
    DATA,
    LONG,
    MODEL,
    REPOSITORY,
    WORK,
    command,
    end,
    metrics,
    run,
    shimmed,
    skipped,
    start,
    steps_written,
    undisturbed,
    until,
)
from over_ranks import check, environment, json_lines


def slow_rank():
    """A rank whose GEMMs take longer from some step on is named within 20 steps, with its host."""
    slowly = WORK / "slowly"
    words = command("--steps", 100000, "--metrics", "slow.jsonl", ranks=2)
    process = start(words, shimmed(FAULT_RANK=1, GEMM_SECONDS=0.001, GEMM_FILE=slowly))
    until(lambda: steps_written(WORK / "slow.jsonl") >= 20)
    slowly.touch()
    at = steps_written(WORK / "slow.jsonl")
    until(lambda: steps_written(WORK / "slow.jsonl") >= at + 25)
    process.send_signal(signal.SIGTERM)
    text = end(process)
    host = os.uname().nodename
    check(f"slow: rank 1 on {host}" in text, f"a slow rank: {text[-300:]}")
    lines = json_lines(WORK / "slow.jsonl")
    named = [line["step"] for line in lines if 1 in line.get("slow_ranks", [])]
    check(named and named[0] <= at + 20, f"slowed from step {at} on, named at {named[:1]}")


def late_rank():
    """A rank that is late for the first group, past the timeout, is named; the others are not."""
    r = run(command("--steps", 1, "--comm-timeout", 4, ranks=6), shimmed(FAULT_RANK=2, LATE_SECONDS=12))
    named = set(re.findall(r"waits for ranks? ([\d ]+), which does not answer", r.stderr))
    check(r.returncode != 0 and named == {"2"}, f"a late rank: {r.returncode} {named} {r.stderr[-300:]}")


def with_few_descriptors(words, most):
    """Over TCP; mpirun is scheduled before its ranks, as in replica.sh."""
    limited = ["bash", "-c", f'ulimit -n {most}; exec chrt --idle 0 "$@"', "limited"]
    return [*words[:3], "--mca", "btl", "tcp,self", *limited, *words[3:]]


def late_among_many():
    """Of 40 ranks that wait for two, a few ask the others, not all of them all: sockets would run out."""
    words = command("--steps", 1, "--comm-timeout", 6, "--batch", 40, "--micro-batch", 1, ranks=40)
    r = run(with_few_descriptors(words, 80), shimmed(FAULT_RANK="3,30", LATE_SECONDS=40), timeout=200)
    found = re.findall(r"waits for ranks? ([\d ]+), which does not answer", r.stderr)
    check(r.returncode != 0 and "3 30" in found, f"of 40: {r.returncode} {found} {r.stderr[-600:]}")
    check(len(found) < 20, f"{len(found)} of 40 ranks have asked to the end")


def many_ranks():
    """64 ranks over TCP, 4 x 4 x 4, each with 48 descriptors at most: too few for a socket to every other."""
    words = command("--steps", 1, "--tensor-parallel", 4, "--pipeline-parallel", 4, ranks=64)
    words[words.index("--layers") + 1] = "4"
    r = run(with_few_descriptors(words, 48), timeout=400)
    check(
        r.returncode == 0 and "equal on all 64 ranks" in r.stdout,
        f"64 ranks: {r.returncode} {r.stderr[-600:]}",
    )


class Hosts:
    """Network namespaces on one bridge, each with a name of its own: hosts, as far as mpirun can tell."""

    made = 0  # a namespace may outlive its name for a while, so no name is reused in a process

    def __init__(self, count):
        self.names = [f"h{i}" for i in range(count)]  # the launcher's is the first
        Hosts.made += 1
        self.prefix = f"f{os.getpid() % 100000}{chr(96 + Hosts.made)}"
        self.agent = WORK / "agent"
        self.agent.write_text(
            "#!/usr/bin/env bash\nhost=$1\nshift\n"
            f'exec nsenter --net="/run/netns/{self.prefix}$host" unshare --uts bash -c'
            ' \'hostname "$0"; eval "$*"\''
            ' "$host" "$@"\n'
        )
        self.agent.chmod(0o755)
        self.usable = not run(["ip", "link", "add", self.bridge, "type", "bridge"]).returncode

        self.usable = self.usable and not run(["ip", "link", "set", self.bridge, "up"]).returncode
        for i, name in enumerate(self.names):
            space, outside = self.prefix + name, f"v{self.prefix}{i}"
            for line in (
                f"ip netns add {space}",
                f"ip link add {outside} type veth peer name eth0 netns {space}",
                f"ip link set {outside} master {self.bridge} up",
                f"ip -n {space} addr add 10.99.0.{i + 1}/24 dev eth0",
                f"ip -n {space} link set eth0 up",
                f"ip -n {space} link set lo up",
            ):
                self.usable = self.usable and not run(line.split()).returncode

    @property
    def bridge(self):
        return f"b{self.prefix}"

    def __enter__(self):
        return self

    def __exit__(self, *error):
        for name in self.names:
            self.signal(name, signal.SIGKILL)
            run(["ip", "netns", "del", self.prefix + name])
        run(["ip", "link", "del", self.bridge])

    def inside(self, name, words):
        return [str(self.agent), name, " ".join(map(shlex.quote, map(str, words)))]

    def signal(self, name, number, part=""):
        """Signals a host's processes whose program's name contains `part`."""
        listed = run(["ip", "netns", "pids", self.prefix + name]).stdout.split()
        for process in map(int, listed):
            try:
                words = Path(f"/proc/{process}/cmdline").read_text(errors="replace").split("\0")
                if part in words[0]:
                    os.kill(process, number)
            except (OSError, ProcessLookupError):
                pass

    def link(self, name, state):
        run(["ip", "-n", self.prefix + name, "link", "set", "eth0", state])

    @staticmethod
    def mca(agent):
        """Open MPI's settings: `agent` reaches hosts, and between all ranks everything goes over TCP."""
        return {
            "plm_rsh_agent": agent,
            "btl": "tcp,self",
            "btl_tcp_if_include": "eth0",
            "oob_tcp_if_include": "eth0",
            "plm_rsh_no_tree_spawn": 1,
        }

    def launch(self, hosts, wanted, options, each=2):
        """launch_mpirun.sh on the first host, which runs no ranks itself."""
        hostfile = WORK / "hostfile"
        hostfile.write_text("".join(f"{host}\n" for host in hosts))
        settings = " ".join(f"--mca {name} {value}" for name, value in self.mca(self.agent).items())
        launcher = ["bash", REPOSITORY / "scripts/launch_mpirun.sh", hostfile, each, "--hosts", wanted]
        words = launcher + ["--train", DATA, *MODEL, *options]
        variables = dict(environment, LAUNCH_MPIRUN=settings, LAUNCH_PAUSE="0.5", LAUNCH_DIR=str(BUILD))
        return start(self.inside(self.names[0], words), variables)


def finished(process, name, seconds=240):
    text = end(process, seconds)
    lines = WORK / f"{name}.jsonl"
    good = process.returncode == 0 and metrics(lines) == undisturbed()
    check(good, f"{name}: {process.returncode}, step {max(metrics(lines), default=0)}: {text[-900:]}")
    return text


def lost_hosts():
    """Two hosts of three: one's link goes down, and its processes stop; a rank is killed; a host's daemon
    ends. The launcher brings each run home, with the losses of an undisturbed one."""
    undisturbed()
    with Hosts(4) as hosts:
        if not hosts.usable:
            return skipped("hosts that go", "no network namespaces")
        for name in ("link", "killed", "again"):
            lines = WORK / f"{name}.jsonl"
            options = [
                *LONG, *"--pipeline-parallel 2 --comm-timeout 10 --save".split(), WORK / name, "--metrics",
                lines
            ]
            process = hosts.launch(["h1", "h2", "h3"], 2, options)
            check(until(lambda: steps_written(lines) >= 60), f"{name}: begins")

            began = time.time()
            if name == "link":
                hosts.link("h2", "down")
                hosts.signal("h2", signal.SIGSTOP)
                at = steps_written(lines)
                restarted = until(lambda: steps_written(lines) > at + 5, 90)
                took = time.time() - began
                check(restarted and took < 60, f"again on spares after {took:.0f} s")
                hosts.signal("h2", signal.SIGKILL)
                hosts.link("h2", "up")
            elif name == "killed":
                hosts.signal("h1", signal.SIGKILL, "train_gpt")
            else:
                hosts.signal("h2", signal.SIGTERM, "orted")

            text = finished(process, name)
            record = json.loads((WORK / name / "launch.json").read_text())
            check(len(record["attempts"]) == 2, f"{name}: {len(record['attempts'])} attempts {text[-300:]}")
            if name == "link":
                check(
                    record["attempts"][1]["hosts"] == ["h1", "h3"],
                    f"spares: {record['attempts'][1]['hosts']}",
                )


def fewer_replicas():
    """One of two hosts goes, and there is no spare: the run goes on with one replica; when the host is back
    and the run is lost once more, it has two again."""
    wanted = undisturbed()
    with Hosts(3) as hosts:
        if not hosts.usable:
            return skipped("a host that comes back", "no network namespaces")
        lines = WORK / "fewer.jsonl"
        options = [*LONG, "--pipeline-parallel", 2, "--comm-timeout", 10]
        options += ["--save", WORK / "fewer", "--metrics", lines]
        process = hosts.launch(["h1", "h2"], 2, options)
        check(until(lambda: steps_written(lines) >= 60), "with two hosts it begins")
        hosts.link("h2", "down")
        hosts.signal("h2", signal.SIGSTOP)
        record = lambda: json.loads((WORK / "fewer/launch.json").read_text())["attempts"]
        again = until(lambda: len(record()) > 1 and max(metrics(lines)) > record()[1]["from_step"] + 25, 120)
        check(again, "with one host it goes on")
        hosts.signal("h2", signal.SIGKILL)
        hosts.link("h2", "up")
        hosts.signal("h1", signal.SIGKILL, "train_gpt")

        text = end(process, 240)
        got, ranks = metrics(lines), [attempt["ranks"] for attempt in record()]
        check(process.returncode == 0 and ranks == [4, 2, 4], f"4, 2, 4 ranks: {ranks} {text[-900:]}")
        last = max(wanted)
        good = sorted(got) == sorted(wanted) and abs(got[last][0] - wanted[last][0]) < 0.02 * wanted[last][0]
        check(good, f"its losses: step {max(got)}, {got[max(got)]} for {wanted[last]}")


def launcher_attempts():
    """Three attempts without a newer checkpoint are enough; one goes back behind a checkpoint that diverges,
    and steps that were set aside count again (launch.py: Attempts)."""
    tried = launch.Attempts(10)
    for begun, saved, diverged in ((10, 10, False), (10, 10, False), (10, 20, False), (20, 20, False)):
        tried.count(begun, saved, saved > begun, diverged)
    check(tried.failures == 1 and not tried.are_used_up(), f"a newer checkpoint: {vars(tried)}")
    tried.count(20, 20, False, True)
    check(tried.resume_before == 20 and tried.divergences == 1, f"it diverged: {vars(tried)}")
    tried.count(10, 15, True, False)
    check(tried.failures == 0 and tried.resume_before is None, f"saved anew: {vars(tried)}")
    tried.count(15, 30, True, True)
    check(tried.divergences == 0 and tried.furthest == 30, f"further than ever: {vars(tried)}")
    for i in range(3):
        check(not tried.are_used_up(), f"{i} attempts")
        tried.count(30, 30, False, False)
    check(tried.are_used_up(), "three attempts")
    none = launch.Attempts(-1)
    none.count(-1, -1, False, True)
    check(none.resume_before is None, "no checkpoint leads there")


def launcher_rules():
    """Who was lost, by what mpirun and srun print; how many replicas hosts hold during a batch ramp."""
    hosts = [f"node{i}.cluster" for i in range(1, 5)]
    launcher = launch.Launcher("mpirun", hosts, 2, 3, launch.Options(["--save", str(WORK / "rules")]))
    launcher.answers = lambda host: host != "node2.cluster"

    ended = "MPI_ABORT was invoked on rank {0} in communicator MPI_COMM_WORLD"
    failed = "[rank {0}] train_gpt: CUDA: unspecified launch failure\n" + ended
    for printed, wanted in (
        (failed.format(1), {"node2.cluster": "lost"}),  # which does not answer: rank 1 missed it
        ("on node node3 exited on signal 9", {"node3.cluster": "lost"}),
        # Open MPI 5
        (
            "prterun noticed that process rank 4 with PID 7 on node node3 exited on\nsignal 9 (Killed).",
            {"node3.cluster": "lost"},
        ),
        (
            "PRTE has lost communication with a remote daemon.\n\n"
            "  HNP daemon   : [prterun-a-34@0,0] on node a\n"
            "  Remote daemon: [prterun-a-34@0,1] on node node1\n",
            {"node1.cluster": "lost"},
        ),
        (
            "ORTE has lost communication with a remote daemon.\n\n"
            "  Remote daemon: [[1,0],2] on node node3.local\n",
            {"node3.cluster": "lost"},
        ),
        ("train_gpt: node1.cluster.local: step 7 read other", {"node1.cluster": "memory"}),
        ("train_gpt: node3: step 7, computed twice, gave", {"node3.cluster": "memory"}),
        (
            "[rank 0] waits for rank 5, which does not answer: it\n"
            + ended.format(3)
            + "\nsrun: error: node1: tasks 0-1: Killed",
            {"node3.cluster": "hangs"},
        ),
        ("srun: error: node2: tasks 2-3: Segmentation fault", {"node2.cluster": "lost"}),
        ("srun: error: node3: task 4: Bus error", {"node3.cluster": "lost"}),
        ("slurmstepd: error: *** JOB 7 CANCELLED, Node failure on node3 ***", {"node3.cluster": "lost"}),
        ("srun: error: node3: task 4: Killed\nsrun: error: node1: task 0: Killed", {"node3.cluster": "lost"}),
        ("train_gpt: node3: step 12 read other\n" + ended.format(4), {"node3.cluster": "memory"}),
        ("ssh: Could not resolve hostname node3: Name or service not known", {"node3.cluster": "lost"}),
        ("ssh: connect to host node3 port 22: Connection refused", {"node3.cluster": "lost"}),
        (
            "[rank 0] waits for ranks 0 5, which does not answer: it",
            {"node1.cluster": "hangs", "node3.cluster": "hangs"},
        ),
        ("a message that names nobody", {"node2.cluster": "lost"}),
    ):
        found = launcher.lost_hosts(printed, hosts[:3])
        check(found == wanted, f"lost on {wanted}: {found} by {printed}")
    launcher.answers = lambda host: True
    found = launcher.lost_hosts(failed.format(3), hosts[:3])
    check(found == {"node2.cluster": "fails"}, f"a rank that fails where all hosts answer: {found}")
    # MPICH; a device that hangs, whoever says so; what srun killed afterwards
    called = "application called MPI_Abort(MPI_COMM_WORLD, 1) - process 3"
    for printed, wanted in (
        (f"Abort(1) on node 0 (rank 3 in comm 0): {called}", {"node2.cluster": "fails"}),
        (called, {"node2.cluster": "fails"}),
        ("on node elsewhere exited on signal 9", {}),
        ("all ranks answer, and wait in different calls\n" + ended.format(3), {}),
        ("slurmstepd: error: Job step aborted: Waiting\nsrun: error: node1: tasks 0-1: Killed", {}),
    ):
        found = launcher.lost_hosts(printed, hosts[:3])
        check(found == wanted, f"lost on {wanted}: {found} by {printed}")
    launcher.answers = lambda host: False
    found = launcher.lost_hosts("a message that names nobody", hosts[:3])
    check(found == {}, f"where no host answers it is none's fault: {found}")
    launcher.starter = lambda *_: ["false"]
    check(not launch.Launcher.answers(launcher, "node1.cluster"), "a host where a program fails")
    said = "train_gpt: step 7: loss 9.5, gradient norm 2: "
    check(all(launch.SPIKE.search(said + why) for why in ("a spike", "not finite")), "both kinds of spikes")
    launcher.answers = lambda host: host != "node2.cluster"

    addresses = [f"10.0.0.{i}" for i in range(1, 5)]
    for printed, wanted in (
        ("ssh: connect to host 10.0.0.2 port 22: No route to host", {"10.0.0.2": "lost"}),
        ("[rank 3] train_gpt: node2: step 7 read other", {"10.0.0.2": "memory"}),
        ("mpirun noticed that process rank 3 with PID 0 on node n2 exited on signal 9", {"10.0.0.2": "lost"}),
        (
            "mpirun noticed that process rank 3 with PID 0 on node n2 exited on signal 9\n"
            "[rank 3] train_gpt: n2: step 7 read other",
            {"10.0.0.2": "memory"},
        ),
    ):
        found = launch.named_hosts(printed, addresses, addresses[:3], 2)
        check(found == wanted, f"lost on {wanted}: {found} by {printed}")

    # two hosts whose names differ in their domains alone
    twins = ["gpu1.rackA", "gpu1.rackB"]
    found = launch.named_hosts("on node gpu1.rackA exited on signal 9", twins, twins, 2)
    check(found == {"gpu1.rackA": "lost"}, f"of two with one first label: {found}")
    check(launch.named_hosts("on node gpu1 exited on signal 9", twins, twins, 2) == {}, "neither is blamed")
    for label in ("", "[1,0]<stdout>:", "0: "):
        line = label + "step      1/20  loss 5.8"
        check(launch.STEP.search(f"first\n{line}"), f"a step: {line}")

    recipe = (
        "--batch 1920 --ramp-start 32 --ramp-increment 32 --tensor-parallel 8 --pipeline-parallel 35".split()
    )
    starts_lower = [*recipe[:3], "2", *recipe[4:]]
    in_parts = [*recipe, "--micro-batch", "16"]
    on_its_own = [*recipe, "--micro-batch", "auto"]
    for options, wanted in (
        (recipe, 4),
        (recipe[:2] + recipe[6:], 6),
        (starts_lower, 2),
        (in_parts, 2),
        (on_its_own, 4),
    ):
        large = launch.Launcher("mpirun", ["h"] * 240, 8, 240, launch.Options(options))
        check(large.replicas(239) == wanted, f"replicas on 239 hosts: {large.replicas(239)} for {wanted}")

    # what a resumed run is not given it takes from its checkpoint
    kept = WORK / "kept/step-00000010"
    kept.mkdir(parents=True)
    (kept / "index.json").write_text(json.dumps({"options": {"batch": "9", "micro-batch": "9"}}))
    for words, wanted in ((["--save", str(WORK / "kept")], 1), (["--resume", str(kept), "--save", "x"], 1)):
        resumed = launch.Launcher("mpirun", ["h"] * 3, 1, 3, launch.Options(words))
        check(resumed.replicas(2) == wanted, f"{words}: {resumed.replicas(2)} replicas of a batch of 9")
    newest = launch.Options(["--resume", str(kept)]).folder()
    check(newest == WORK / "kept", f"back into the newest checkpoint's folder: {newest}")
    again = launch.Launcher("mpirun", ["h"], 1, 1, launch.Options(["--resume", "x", "--save", str(newest)]))
    began = again.command(["h"], 1, None)
    check(began.count("--resume") == 1 and began[began.index("--resume") + 1] == str(newest), f"{began}")

    # one that Slurm queues again goes on where it was, though its checkpoint is not the newest any more
    newer = WORK / "kept/step-00000020"
    newer.mkdir()
    (newer / "index.json").write_text("{}")
    named = launch.Options(["--resume", str(kept)])
    os.environ["SLURM_RESTART_COUNT"] = "1"
    check(named.folder() == WORK / "kept", f"queued again: {named.folder()}")
    del os.environ["SLURM_RESTART_COUNT"]
    check(named.folder() is None, f"an old checkpoint: {named.folder()}")
    found = [launch.newest_checkpoint(WORK / "kept", before) for before in (None, 20, 10)]
    check(found == [20, 10, -1], f"checkpoints before: {found}")
    stamps = [launch.stamp_of(WORK / "kept", step) for step in (20, 30, -1)]
    check(stamps == [(newer / "index.json").stat().st_mtime_ns, None, None], f"when written: {stamps}")
    (newer / "DAMAGED").touch()
    check(launch.newest_checkpoint(WORK / "kept") == 10, "a damaged checkpoint does not count")

    # options as train_gpt reads them: the last of several; a file's behind a mark and tabs
    config = WORK / "rules.conf"
    config.write_text("\ufeffsave\t/a  # here\nbatch 8\n\n", encoding="utf8")
    several = ["--save", "/b", "--save", "/c", "--config", "/none", "--config", str(config)]
    read = launch.Options(several).values
    check(read["save"] == "/c" and read["batch"] == "8", f"options: {read}")
    left = launch.Options(several[:4] + ["--steps", "1e3"])
    check(left.without("save") == ["--steps", "1e3"], f"without any of several: {left.without('save')}")
    check(left.number("steps", 5) == 1000, "a number as train_gpt reads it")
    read = launch.Options(["--config", str(config)]).values
    check(read["save"] == "/a", f"options of a file: {read}")
    config.write_text("save /a#1\n")
    check(launch.Options(["--config", str(config)]).values["save"] == "/a#1", "a # within a word")
    config.write_text("# ours\nnode1 slots=8\n")
    check(list(launch.read_hosts(config)) == ["node1"], f"a comment is no host: {launch.read_hosts(config)}")
    for options, wanted in (
        ("--resume a", "a"),
        ("--resume a --save b", "b"),
        ("--resume a --save no", "None"),
        ("--resume a/step-00000010", "None"),
    ):
        folder = launch.Options(options.split()).folder()
        check(str(folder) == wanted, f"{options} saves in {wanted}: {folder}")

    # a host that is lost on again and again without a spare is not taken back at once, nor one written down
    launcher.wanted = 4
    (WORK / "rules").mkdir()
    launcher.record["attempts"].append({"lost_on": ["node3.cluster"]})
    launcher.exclude({"node3.cluster": "lost", "node2.cluster": "lost"})
    (WORK / "rules/excluded-hosts").open("a").write("node4.cluster\n")
    launcher.answers = lambda host: True
    launcher.usable_hosts()
    launcher.take_back()
    left = (WORK / "rules/excluded-hosts").read_text().split()
    check(left[:2] == ["node3.cluster", "fails"] and left[3:] == ["node4.cluster"], f"taken back: {left}")
    (WORK / "rules/excluded-hosts").write_text("node1.cluster memory then\nnode2.cluster hangs then\n")
    launcher.usable_hosts()
    launcher.take_back()
    left = (WORK / "rules/excluded-hosts").read_text()
    check(left == "node1.cluster memory then\n", f"bad memory: {left}")
    (WORK / "rules/excluded-hosts").write_text("node4.cluster")  # by hand, without the line's end
    launcher.exclude({"node3.cluster": "lost"})
    left = (WORK / "rules/excluded-hosts").read_text().split()
    check(left[:2] == ["node4.cluster", "node3.cluster"], f"a line without its end: {left}")

    # without a spare the first loss of a host that answers is forgiven; so is any, if nothing were left
    rules = WORK / "rules/excluded-hosts"
    rules.write_text("")
    launcher.exclude({"node1.cluster": "lost"})
    check(rules.read_text() == "", f"a first loss: {rules.read_text()}")
    launcher.exclude({"node3.cluster": "memory"})
    check(rules.read_text().split()[:2] == ["node3.cluster", "memory"], f"memory: {rules.read_text()}")
    launcher.wanted, launcher.options = 3, launch.Options(["--pipeline-parallel", "6"])
    launcher.exclude({"node3.cluster": "lost"})
    check(len(rules.read_text().splitlines()) == 1, f"the last replica: {rules.read_text()}")
    # those that lose runs are taken back where no replica is left, and no more than are missing
    rules.write_text("node1.cluster fails then\nnode2.cluster fails then\n")
    launcher.usable_hosts()
    launcher.take_back()
    check(rules.read_text() == "node2.cluster fails then\n", f"as many as are missing: {rules.read_text()}")

    # a replica of three ranks on hosts of two
    fewer = launch.Launcher("mpirun", hosts[:3], 2, 3, launch.Options(["--pipeline-parallel", "3"]))
    fewer.excluded = {hosts[0]: ""}
    check(fewer.choose() == (hosts[1:3], 3), f"hosts that a replica ends on: {fewer.choose()}")

    # --resume-before holds until a step has been taken
    once = launch.Launcher("mpirun", hosts, 1, 1, launch.Options(["--save", "x", "--resume-before", "7"]))
    before = once.command(hosts[:1], 1, None)
    once.ran = True
    check("--resume-before" in before and "--resume-before" not in once.command(hosts[:1], 1, None), "once")
