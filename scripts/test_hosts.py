#!/usr/bin/env python3
"""Training over four hosts: python3 scripts/test_hosts.py BUILD      BUILD: a folder of train_gpt in fp64

A host is a network namespace with a name, an sshd, a local folder and a monotonic clock of its own; mpirun
reaches it by ssh, and its ranks communicate over TCP. Losses must equal one process's to 1e-10. Mistakes that
users make with hosts must be rejected, or warned of, by name. Skipped without namespaces or sshd.
The last line is `N passed, N failed`."""

import json
import shutil
import subprocess

from faults import BUILD, DATA, MODEL, WORK, end, make_data, run, skipped, start, until
from faults_hosts import Hosts
from over_ranks import check, finish, json_lines, near

SSHD = shutil.which("sshd", path="/usr/sbin:/usr/bin:/sbin:/bin")
LOCAL = WORK / "local"  # another folder on each host
STEPS = ["--steps", 6, "--decay-tokens", 768, "--warmup-tokens", 0]
CONFIG = """Port 22
HostKey {work}/host_key
AuthorizedKeysFile {work}/user_key.pub
PidFile none
UsePAM no
StrictModes no
PermitRootLogin yes
AcceptEnv *
"""
CLIENT = """Host *
  IdentityFile {work}/user_key
  StrictHostKeyChecking no
  UserKnownHostsFile /dev/null
  LogLevel ERROR
  ConnectTimeout 10
"""


class SshHosts(Hosts):
    """The launcher's host h0, and h1 to h4, each with its sshd."""

    def __init__(self):
        super().__init__(5)
        LOCAL.mkdir()
        for name in ("host_key", "user_key"):
            run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(WORK / name)])
        (WORK / "sshd_config").write_text(CONFIG.format(work=WORK))
        hosts = "".join(f"Host {n}\n  HostName 10.99.0.{i + 1}\n" for i, n in enumerate(self.names))
        (WORK / "ssh_config").write_text(hosts + CLIENT.format(work=WORK))
        (WORK / "ssh").write_text(f'#!/usr/bin/env bash\nexec ssh -F {WORK}/ssh_config "$@"\n')
        (WORK / "ssh").chmod(0o755)
        if self.usable:
            self.daemons = [self.sshd(i, name) for i, name in enumerate(self.names) if i]
            self.usable = all(self.answers(name) for name in self.names[1:])

    def ssh(self, name, *words):
        """Runs a command on a host, from the launcher's host."""
        return run(self.inside("h0", [WORK / "ssh", name, *words]))

    def answers(self, name):
        return until(lambda: self.ssh(name, "true").returncode == 0, 10)

    def sshd(self, i, name, before="true"):
        """Starts a host's sshd, with its own local folder and a clock `i` days ahead of the launcher's."""
        script = f"hostname {name}; mount -t tmpfs local {LOCAL}; mkdir -p /run/sshd; {before}; "
        script += f"exec {SSHD} -D -e -f {WORK}/sshd_config 2> {WORK}/sshd-{name}"
        space = ["nsenter", f"--net=/run/netns/{self.prefix}{name}"]
        apart = ["unshare", "--uts", "--mount", "--time", "--monotonic", str(86400 * i), "--fork"]
        return subprocess.Popen([*space, *apart, "bash", "-c", script], start_new_session=True)

    def restart(self, name, before="true"):
        """Restarts its sshd, in a fresh mount namespace in which `before` was run."""
        i = self.names.index(name)
        self.signal(name, 9)
        self.daemons[i - 1].wait()
        self.daemons[i - 1] = self.sshd(i, name, before)
        self.answers(name)

    def received(self, name):
        """Bytes that have come to the host over its network."""
        counters = run(["ip", "-j", "-s", "-n", self.prefix + name, "link", "show", "eth0"]).stdout
        return json.loads(counters)[0]["stats64"]["rx"]["bytes"]

    def mpirun(self, each, options, ranks=8):
        """Ranks host after host, `each` on one; what they said, and the exit code."""
        (WORK / "hostfile").write_text("".join(f"{name} slots={each}\n" for name in self.names[1:]))
        words = ["mpirun", "--hostfile", WORK / "hostfile", "-n", ranks, "--map-by", "slot"]
        for name, value in self.mca(WORK / "ssh").items():
            words += ["--mca", name, value]
        words += ["-x", "OMP_NUM_THREADS=1", BUILD / "train_gpt", *MODEL, *STEPS, *options]
        process = start(self.inside("h0", words))
        return end(process, 90), process.returncode


MONOTONIC = ["python3", "-c", "'import time; print(time.monotonic())'"]


def losses(name):
    path = WORK / f"{name}.jsonl"
    return [line["loss"] for line in json_lines(path)] if path.exists() else []


def alone():
    words = [BUILD / "train_gpt", "--train", DATA, *MODEL, *STEPS, "--metrics", WORK / "alone.jsonl"]
    result = run(list(map(str, words)))
    check(result.returncode == 0 and len(losses("alone")) == 6, f"one process: {result.stderr}")
    return losses("alone")


def layouts(hosts, wanted):
    """Two ranks a host, then one: data, pipeline, and finally tensor parallelism cross the network."""
    grid = ["--tensor-parallel", 2, "--pipeline-parallel", 2]
    before = hosts.received("h3")
    said, code = hosts.mpirun(2, ["--train", DATA, *grid, "--metrics", WORK / "two.jsonl"])
    check(code == 0 and near(losses("two"), wanted), f"2 x 2 x 2 over four hosts: {said[-600:]}")
    check("more than one host" not in said, f"a note without need: {said[-600:]}")
    came = hosts.received("h3") - before
    check(came > 100_000, f"ranks of other hosts talk over the network: {came} bytes")

    seconds = lambda name: float(hosts.ssh(name, *MONOTONIC).stdout)
    check(seconds("h3") - seconds("h1") > 86400, "clocks of hosts are days apart")
    traced = ["--trace", WORK / "trace.json"]
    said, code = hosts.mpirun(1, ["--train", DATA, *grid, "--metrics", WORK / "one.jsonl", *traced], ranks=4)
    check(code == 0 and near(losses("one"), wanted), f"tensor groups over two hosts: {said[-600:]}")
    note = "2 of 2 tensor-parallel groups of 2 span more than one host (rank 0 on h1 and rank 1 on h2)"
    check(note in said, f"it is noted: {said[-600:]}")
    events = [e for e in json.loads((WORK / "trace.json").read_text())["traceEvents"] if e["ph"] == "X"]
    ends = [e["ts"] + e["dur"] for e in events]

    # clocks are days apart; the picture shows one step
    longest = (max(ends) - min(e["ts"] for e in events)) / 1e6
    check(len({e["pid"] for e in events}) >= 2 and longest < 60, f"a trace of {longest:.3f} s")


def refusals(hosts):
    """What is different on one host: each ends all ranks with 1, and says which, and what to do."""

    def refused(what, text, options):
        said, code = hosts.mpirun(2, options)
        check(code == 1 and text in said, f"{what}: exit code {code}, not {text}: {said[-800:]}")

    train = ["--train", DATA]
    refused("a local --save", f"--save {LOCAL}: is not the folder", [*train, "--save", LOCAL])
    data = LOCAL / "text.bin"
    for name in hosts.names[1:4]:
        hosts.ssh(name, "cp", DATA, data)
    refused("data that h4 has not", f"[rank 6 to 7] train_gpt: {data}", ["--train", data])
    hosts.ssh("h4", f"head -c 60000 {DATA} > {data}")
    said, code = hosts.mpirun(2, ["--train", data])
    check(code == 1 and "6 to 7" in said and "text.bin" in said, f"data cut short on h4: {said[-800:]}")

    other = WORK / "other"
    shutil.copy(BUILD / "train_gpt", other)
    with open(other, "ab") as file:
        file.write(b"\0")
    hosts.restart("h2", f"mount --bind {other} {BUILD / 'train_gpt'}")
    refused("h2 has another build", "rank 2 to 3: the program differs from rank 0's: copy one build", train)
    hosts.restart("h2")
    said, code = hosts.mpirun(2, [*train, "--pipeline-parallel", 2, "--metrics", WORK / "again.jsonl"])
    check(code == 0 and near(losses("again"), losses("alone")), f"with one build again: {said[-600:]}")


def main():
    make_data()
    wanted = alone()
    if not SSHD or not shutil.which("ip"):
        skipped("four hosts", "no sshd or no ip: bash scripts/install.sh --with-cluster-tests")
        return finish()
    with SshHosts() as hosts:
        if not hosts.usable:
            skipped("four hosts", "no network namespaces, or sshd does not answer")
        else:
            layouts(hosts, wanted)
            refusals(hosts)
    shutil.rmtree(WORK, ignore_errors=True)
    finish()


main()
