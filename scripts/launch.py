#!/usr/bin/env python3
"""Starts training on several hosts and brings the run home: launch_mpirun.sh and launch_slurm.sh call it.

  launch.py mpirun HOSTFILE RANKS_PER_HOST [--hosts N] OPTION…     options of train_gpt
  launch.py slurm                          [--hosts N] OPTION…     inside a job's allocation

Of the hosts given the first N take part (default: all), the others are spares. A run that ends with an error
is started again from its newest checkpoint in --save: after a pause that doubles, without the hosts that it
was lost on, behind a checkpoint that leads to no finite loss, and over fewer replicas where hosts are missing
and the batch still divides. It stops for good after three attempts without a newer checkpoint.

DIR/launch.log (DIR: --save) has what was printed, DIR/launch.json what was started and how it ended, and
DIR/excluded-hosts a host a line, which may be edited: it is read before each attempt.
LAUNCH_PAUSE: seconds before the first new attempt [5]. LAUNCH_DIR: the folder of train_gpt [here].
LAUNCH_MPIRUN: more options of mpirun."""

import collections
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

DIVERGED = 3  # train_gpt's exit code: a loss that is not finite, or a spike
PROGRAM = Path(os.environ.get("LAUNCH_DIR", "."), "train_gpt").resolve()
ATTEMPTS = 3  # without a newer checkpoint
LONGEST_PAUSE = 300
# what tells on which host a run was lost
LOST = (
    re.compile(
        r"lost communication with a remote daemon.*?Remote daemon: \[\[[^\]]*\],\d+\] on node (\S+)", re.S
    ),
    re.compile(r"on node (\S+?) (?:exited on signal|but)"),
    re.compile(r"Node failure on ([^\s,.]+)"),
    re.compile(r"train_gpt: (\S+): (?:step \d+|parameters) "),
    re.compile(r"Could not resolve hostname (\S+):|connect to host (\S+) port"),
)
# of srun only the first: it then kills the tasks of all other nodes itself
FIRST_LOST = re.compile(r"srun: error: (\S+?): tasks? [\d,\-]+: (?:Killed|Segmentation|Bus error|Aborted)")
SPIKE = re.compile(r"train_gpt: step \d+: loss .* are (?:not finite|a spike)")


def stop(message):
    print(f"launch.py: {message}", file=sys.stderr, flush=True)
    sys.exit(1)


def usage():
    print(__doc__)
    sys.exit(1)


class Options:
    """Those of train_gpt that a launcher has to know; a config file says what the command line does not."""

    def __init__(self, words):
        self.words = words
        self.values = {}
        for name, value in zip(words, words[1:] + [""]):
            if name.startswith("--") and name[2:] not in self.values:
                self.values[name[2:]] = value
        if "config" in self.values:
            for line in Path(self.values["config"]).read_text().splitlines():
                name, _, value = line.split("#")[0].strip().partition(" ")
                self.values.setdefault(name.lstrip("-"), value.strip())

    def number(self, name, default):
        return int(self.values.get(name, default))

    def ranks_of_replica(self):
        return self.number("tensor-parallel", 1) * self.number("pipeline-parallel", 1)

    def without(self, name):
        at = self.words.index("--" + name) if "--" + name in self.words else len(self.words)
        return self.words[:at] + self.words[at + 2 :]


def newest_checkpoint(folder, before=None):
    """Its step, or -1; before: of those of earlier steps."""
    names = [p.parent.name for p in folder.glob("step-*/index.json")] if folder else []
    steps = [int(name[5:]) for name in names if re.fullmatch(r"step-\d+", name)]
    return max((step for step in steps if before is None or step < before), default=-1)


def read_lines(path):
    lines = path.read_text().splitlines() if path.exists() else []
    return [line.split()[0] for line in lines if line.split() and not line.startswith("#")]


class Launcher:
    def __init__(self, how, hosts, each, wanted, options):
        self.how, self.hosts, self.each, self.options = how, hosts, each, options
        self.wanted = wanted or len(hosts)
        self.folder = Path(options.values["save"]) if "save" in options.values else None
        self.excluded = set()
        self.child = None
        self.told = False
        self.stopping = False
        self.record = {"command": sys.argv, "pid": os.getpid(), "host": os.uname().nodename, "attempts": []}
        self.record["metrics"] = options.values.get("metrics", "")

    # ---- what is started

    def usable_hosts(self):
        if self.folder:
            self.excluded = set(read_lines(self.folder / "excluded-hosts"))  # as it was edited
        return [host for host in self.hosts if host not in self.excluded]

    def choose(self):
        """Hosts and number of ranks: all that are wanted, or as many whole replicas as the batch allows."""
        hosts = self.usable_hosts()[: self.wanted]
        ranks = len(hosts) * self.each
        replica = self.options.ranks_of_replica()
        batch = self.options.number("batch", 8)
        if len(hosts) == self.wanted:
            return hosts, ranks
        part = (
            self.options.number("micro-batch", 1) if self.options.values.get("micro-batch") != "auto" else 1
        )
        good = [d for d in range(1, ranks // replica + 1) if batch % (d * part) == 0]
        if not good:
            stop(
                f"{len(hosts)} of {self.wanted} hosts are left, {ranks} ranks: a replica takes {replica}: "
                f"mend hosts and take them out of {self.folder}/excluded-hosts, or add hosts"
            )
        ranks = good[-1] * replica
        needed = -(-ranks // self.each)
        print(
            f"launch.py: {len(hosts)} of {self.wanted} hosts are left: {good[-1]} replicas on {needed}",
            flush=True,
        )
        return hosts[:needed], ranks

    def command(self, hosts, ranks, resume_before):
        words = self.options.without("world-size")
        if newest_checkpoint(self.folder) >= 0:  # what --resume named is behind it
            words = Options(words).without("resume") + ["--resume", str(self.folder)]
        if resume_before is not None:
            words = words + ["--resume-before", str(resume_before)]
        program = [str(PROGRAM), *words, "--world-size", str(ranks)]
        if self.how == "slurm":
            mpi = os.environ.get("SLURM_MPI_TYPE", "pmix")
            where = [f"--nodelist={','.join(hosts)}", f"--nodes={len(hosts)}", f"--ntasks={ranks}"]
            return ["srun", f"--mpi={mpi}", "--kill-on-bad-exit=1", *where, *program]
        # a host whose link is down is noticed after some seconds, not never
        alive = {"oob_tcp_keepalive_time": 5, "oob_tcp_keepalive_intvl": 2, "oob_tcp_keepalive_probes": 3}
        settings = [word for name, value in alive.items() for word in ("--mca", name, str(value))]
        passed_on = [name for name in os.environ if name.startswith(("NCCL_", "CUDA_"))] + [
            "OMP_NUM_THREADS"
        ]
        exports = [word for name in passed_on for word in ("-x", name)]
        listed = ",".join(f"{host}:{self.each}" for host in hosts)
        extra = os.environ.get("LAUNCH_MPIRUN", "").split()
        placing = ["--map-by", f"ppr:{self.each}:node", "--bind-to", "none"]
        return [
            "mpirun",
            *extra,
            *settings,
            "--host",
            listed,
            "-n",
            str(ranks),
            *placing,
            *exports,
            *program,
        ]

    # ---- one attempt

    def keep(self, name, mode, text):
        """Into a file of the folder; where its disk is full the run goes on without."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with open(self.folder / name, mode) as file:
                file.write(text)
            return True
        except OSError as e:
            if not self.told:
                print(
                    f"launch.py: {self.folder / name}: {e.strerror}: not kept", file=sys.stderr, flush=True
                )
            self.told = True
            return False

    def write_record(self):
        text = json.dumps(self.record, indent=1) + "\n"
        if self.folder and self.keep(".launch.json.partial", "w", text):
            (self.folder / ".launch.json.partial").rename(self.folder / "launch.json")

    def run(self, command):
        """The exit code, and the end of what was printed."""
        tail = collections.deque(maxlen=20000)
        self.child = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="latin-1",
            start_new_session=True,  # a terminal's Ctrl-C comes through on_signal alone
        )
        if self.stopping:
            self.on_signal(None, None)
        for line in self.child.stdout:
            print(line, end="", flush=True)
            tail.append(line)
            if self.folder:
                self.keep("launch.log", "a", line)
        return self.child.wait(), "".join(tail)

    def exclude(self, printed):
        """The hosts that the run was lost on; those that are named are not taken again."""
        found = {
            name
            for pattern in LOST
            for groups in pattern.findall(printed)
            for name in ([groups] if isinstance(groups, str) else groups)
            if name in self.hosts
        }
        first = FIRST_LOST.search(printed)
        if first and first[1] in self.hosts:
            found.add(first[1])
        spares = len(self.usable_hosts()) > self.wanted
        # a rank that died alone may be no fault of its host: without a spare it is tried once more
        strikes = {host: sum(host in a["lost_on"] for a in self.record["attempts"]) for host in found}
        out = {host for host in found if spares or strikes[host] >= 1}
        if (len(self.usable_hosts()) - len(out)) * self.each < self.options.ranks_of_replica():
            out = set()  # what is left would hold no replica
        if out and self.folder:
            self.keep("excluded-hosts", "a", "".join(f"{host}\n" for host in sorted(out)))
        self.excluded |= out
        return sorted(found)

    def loop(self):
        signal.signal(signal.SIGTERM, self.on_signal)
        signal.signal(signal.SIGINT, self.on_signal)
        pause = float(os.environ.get("LAUNCH_PAUSE", "5"))
        failures, resume_before, best = 0, None, newest_checkpoint(self.folder)
        while True:
            hosts, ranks = self.choose()
            start = newest_checkpoint(self.folder, resume_before)
            command = self.command(hosts, ranks, resume_before)
            attempt = {
                "began": time.time(),
                "hosts": hosts,
                "ranks": ranks,
                "from_step": start,
                "lost_on": [],
            }
            self.record["attempts"].append(attempt)
            self.write_record()
            code, printed = self.run(command)
            end = newest_checkpoint(self.folder)
            attempt["lost_on"] = self.exclude(printed) if code else []
            attempt.update(ended=time.time(), exit_code=code, to_step=end)
            self.write_record()
            if code == 0 and self.how == "slurm" and "stopped by a signal" in printed and self.folder:
                subprocess.run(["scontrol", "requeue", os.environ.get("SLURM_JOB_ID", "")])
            if code == 0 or self.stopping:
                sys.exit(code)
            if not self.folder:
                stop(f"train_gpt ended with {code}, and there is no --save to go on from")
            progress, best = end > best, max(end, best)  # a step that was never saved before
            if progress:
                resume_before = None
            elif (code == DIVERGED or SPIKE.search(printed)) and start >= 0:  # the checkpoint leads there
                resume_before = start
            failures = 0 if progress else failures + 1
            if failures >= ATTEMPTS:
                stop(
                    f"{ATTEMPTS} attempts without a newer checkpoint than step {end}: see"
                    f" {self.folder}/launch.log"
                )
            wait = min(LONGEST_PAUSE, pause * 2**failures)
            print(
                f"launch.py: train_gpt ended with {code} at checkpoint {end}"
                f"{', lost on ' + ' '.join(attempt['lost_on']) if attempt['lost_on'] else ''}: "
                f"again in {wait:.0f} s",
                flush=True,
            )
            until = time.time() + wait
            while time.time() < until and not self.stopping:
                time.sleep(0.2)
            if self.stopping:
                sys.exit(code)

    def on_signal(self, number, frame):
        self.stopping = True
        if self.child and self.child.poll() is None:
            # mpirun and srun hand SIGUSR1 on; at SIGTERM mpirun kills its ranks after a second
            self.child.send_signal(signal.SIGUSR1)


def main(words):
    how = words[0] if words else ""
    if how == "mpirun" and len(words) >= 4:
        hostfile, each, rest = Path(words[1]), words[2], words[3:]
        if not hostfile.is_file() or not os.access(hostfile, os.R_OK):
            stop(f"{hostfile} cannot be read: give a file with a line a host")
        if not re.fullmatch("[1-9][0-9]*", each):
            stop(f"{each} ranks per host: wants a number")
        hosts, each = read_lines(hostfile), int(each)
        if not hosts:
            stop(f"{hostfile} names no host")
    elif how == "slurm" and len(words) >= 2:
        listed = ["scontrol", "show", "hostnames", os.environ.get("SLURM_JOB_NODELIST", "")]
        hosts, rest = subprocess.run(listed, stdout=subprocess.PIPE, text=True).stdout.split(), words[1:]
        each = int(os.environ.get("SLURM_NTASKS_PER_NODE", "1"))
        if not hosts:
            stop("SLURM_JOB_NODELIST names no host: start with sbatch scripts/launch_slurm.sh")
    else:
        usage()
    wanted = 0
    if rest[0] == "--hosts" and len(rest) > 2:
        wanted, rest = int(rest[1]), rest[2:]
    if wanted > len(hosts):
        stop(f"--hosts {wanted}: {len(hosts)} are given")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    if not os.access(PROGRAM, os.X_OK):
        stop(f"no {PROGRAM}: run make there, and start from there")
    Launcher(how, hosts, each, wanted, Options(rest)).loop()


if __name__ == "__main__":
    main(sys.argv[1:])
