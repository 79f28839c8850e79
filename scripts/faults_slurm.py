"""Runs under a real Slurm: a rank that is killed, time that is up, nodes that are drained."""

import atexit
import functools
import json
import os
import shutil
import signal
import subprocess
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
    metrics,
    run,
    skipped,
    steps_written,
    undisturbed,
    until,
)
from faults_hosts import Hosts
from over_ranks import check, environment

SLURM = """ClusterName=faults
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={munge}
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SelectType=select/linear
SlurmdParameters=config_overrides
KillWait=2
MpiDefault=pmix
{lines}
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def is_installed():
    return all(map(shutil.which, ("slurmctld", "slurmd", "sbatch", "munged")))


@functools.cache
def munge_socket():
    """The socket of a munged with its own key, which vouches for whoever asks, as on a cluster."""
    folder = WORK / "munge"
    folder.mkdir(mode=0o755)
    WORK.chmod(0o755)  # munged insists that all users can reach its socket
    key = os.open(folder / "key", os.O_WRONLY | os.O_CREAT, 0o600)
    os.write(key, os.urandom(1024))
    os.close(key)
    files = {"key-file": "key", "socket": "socket", "pid-file": "pid", "seed-file": "seed"}
    paths = [f"--{option}={folder / name}" for option, name in files.items()]
    log = open(folder / "log", "w")
    daemon = subprocess.Popen(["munged", "--foreground", *paths], stdout=log, stderr=log)
    atexit.register(daemon.kill)
    until((folder / "socket").exists, 10)
    return folder / "socket"


def configure(folder, *lines):
    """Writes slurm.conf: SLURM and these lines; returns the environment in which programs find it."""
    (folder / "state").mkdir(parents=True)
    settings = SLURM.format(folder=folder, munge=munge_socket(), lines="\n".join(lines))
    (folder / "slurm.conf").write_text(settings)
    found = {"SLURM_CONF": str(folder / "slurm.conf"), "LAUNCH_DIR": str(BUILD), "LAUNCH_PAUSE": "0.5"}
    return dict(environment, **found)


def one_node():
    """kill -9 of a rank under Slurm, and ranks that hang: the run goes on."""
    if not is_installed():
        return skipped("Slurm", "not installed: bash scripts/install.sh --with-cluster-tests")
    folder, port = WORK / "slurm", 20000 + os.getpid() % 20000
    ports = [f"SlurmctldPort={port}", f"SlurmdPort={port + 1}"]
    node = "NodeName=n1 NodeHostname=localhost CPUs=2 State=UNKNOWN"
    variables = configure(folder, "SlurmctldHost=localhost", *ports, node)
    daemons = [
        subprocess.Popen(
            words,
            env=variables,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        for words in (["slurmctld", "-D"], ["slurmd", "-D", "-N", "n1"])
    ]

    try:
        idle = lambda: "idle" in run(["sinfo", "-h"], variables, 10).stdout
        begun = until(idle, 20)
        check(begun, "Slurm's daemons begin")
        if not begun:
            return
        undisturbed()

        batch = [
            *"sbatch --nodes=1 --ntasks-per-node=4 --gpus-per-node=0 --overcommit --output".split(),
            folder / "log"
        ]
        words = [
            *batch, f"--chdir={REPOSITORY}", REPOSITORY / "scripts/launch_slurm.sh", "--train", DATA, *MODEL,
            *LONG
        ]

        lines = WORK / "slurm.jsonl"
        words += ["--pipeline-parallel", 2, "--save", WORK / "slurmed", "--metrics", lines]
        here = subprocess.run(
            [str(w) for w in words],
            env=variables | {"LAUNCH_SILENCE": "20"},
            capture_output=True,
            text=True,
            cwd=REPOSITORY,
        )
        begun = until(lambda: steps_written(lines) >= 60, 40)
        log = lambda: (folder / "log").read_text() if (folder / "log").exists() else ""
        check(begun, f"a job begins: {here.stdout} {here.stderr} {log()[-400:]}")
        if not begun:
            return
        os.kill(ranks()[0], signal.SIGKILL)
        at = steps_written(lines)
        again = until(lambda: "at checkpoint" in log() and steps_written(lines) > at + 20, 60)
        for rank in ranks() if again else []:  # they hang, and hold their nodes when srun is gone
            os.kill(rank, signal.SIGSTOP)

        ended = until(lambda: not run(["squeue", "-h"], variables).stdout.strip(), 120)
        good = ended and metrics(lines) == undisturbed()
        attempts = json.loads((WORK / "slurmed/launch.json").read_text())["attempts"]
        check(good and len(attempts) == 3, f"killed under Slurm: {len(attempts)} attempts, {log()[-600:]}")
        check("srun is silent: killed" in log(), f"ranks that hang: {log()[-600:]}")
    finally:
        run(["scancel", "--full", "--state=RUNNING"], variables, 10)
        for daemon in daemons:
            os.killpg(daemon.pid, signal.SIGKILL)


def ranks():
    """Process ids of the first job's ranks."""
    pids = run(["pgrep", "-f", f"{BUILD}/train_gpt.*slurmed"]).stdout.split()
    comm = lambda pid: Path(f"/proc/{pid}/comm")
    return [int(pid) for pid in pids if comm(pid).exists() and comm(pid).read_text().strip() == "train_gpt"]


ENDLESS = ["--pipeline-parallel", 2, "--save-every", 10, "--keep", 3, "--decay-tokens", 50000]


class SlurmHosts(Hosts):
    """slurmctld on h0, a slurmd on each of h1 to h4."""

    def __init__(self):
        super().__init__(5)
        self.folder = WORK / "slurm-hosts"
        of_node = "NodeName={0} NodeHostname={0} NodeAddr=10.99.0.{1} CPUs=8 State=UNKNOWN"
        nodes = [of_node.format(name, i + 1) for i, name in enumerate(self.names) if i]
        own = [
            "SlurmctldHost=h0(10.99.0.1)",
            f"TmpFS={self.folder}/tmp-%n",
            "SchedulerParameters=sched_interval=1",
        ]
        self.variables = configure(self.folder, *own, *nodes)
        self.variables |= {f"OMPI_MCA_{name}": str(value) for name, value in self.mca(self.agent).items()}
        self.variables["OMP_WAIT_POLICY"] = "passive"
        if not self.usable:
            return

        for i, name in enumerate(self.names):
            for own in ("spool", "tmp"):
                (self.folder / f"{own}-{name}").mkdir()
            daemon = ["slurmd", "-D", "-N", name] if i else ["slurmctld", "-D"]
            log = open(self.folder / f"daemon-{name}", "w")
            subprocess.Popen(
                self.inside(name, daemon), env=self.variables, stdout=log, stderr=log, start_new_session=True
            )

        begun = until(lambda: self.ask("sinfo", "-h", "-N", "-t", "idle").count("idle") == 4, 30)
        check(begun, "Slurm's daemons begin on four nodes")
        self.usable = self.usable and begun

    def ask(self, *words):
        return run(self.inside("h0", words), self.variables, 10).stdout

    def submit(self, log, *words, **more):
        """launch_slurm.sh on two nodes, two ranks on each; the job's number."""
        batch = ["env", "-C", REPOSITORY, "sbatch", "--parsable", "--nodes=2", "--output", log]
        batch += ["--ntasks-per-node=2", "--gpus-per-node=0"]
        train = ["--train", DATA, *MODEL, *ENDLESS, "--steps", 100000]
        said = run(self.inside("h0", [*batch, *words, *train]), dict(self.variables, **more))
        return said.stdout.strip() or said.stderr

    def nodes_of(self, job):
        return self.ask("squeue", "-h", "-j", job, "-o", "%N")


def four_nodes():
    """The time is up while a node is drained: the job is queued again and goes on on other nodes, with the
    losses of an undisturbed run. Without PMI nobody trains alone. Ranks that do not fill their nodes fill
    one after the other."""
    if not is_installed():
        return skipped("Slurm over hosts", "not installed: bash scripts/install.sh --with-cluster-tests")
    with SlurmHosts() as hosts:
        if not hosts.usable:
            return skipped("Slurm over hosts", "no network namespaces")
        script, folder, lines = REPOSITORY / "scripts/launch_slurm.sh", WORK / "timed", WORK / "timed.jsonl"
        log = hosts.folder / "log"
        options = ["--exclude=h1", "--cpus-per-task=2", "--time=1", "--signal=B:TERM@50", script]
        options += ["--save", folder, "--metrics", lines]
        job = hosts.submit(log, *options)
        said = lambda: log.read_text()[-900:] if log.exists() else ""
        begun = until(lambda: steps_written(lines) >= 20, 40)
        check(begun, f"a job on two nodes begins: {job} {said()}")
        if not begun:
            return

        nodes = hosts.nodes_of(job)
        check(nodes.strip() == "h[2-3]", f"without h1, which is excluded: {nodes}")
        rank = run(["pgrep", "-f", f"{BUILD}/train_gpt.*timed"]).stdout.split()
        threads = [Path(f"/proc/{n}/environ").read_text(errors="replace") for n in rank]
        check(any("OMP_NUM_THREADS=2" in text for text in threads), "--cpus-per-task is OpenMP's threads")
        hosts.ask("scontrol", "update", "nodename=h3", "state=drain", "reason=test")
        waits = until(lambda: "PENDING" in hosts.ask("squeue", "-h", "-j", job, "-o", "%T"), 60)
        at = steps_written(lines)
        check(waits and list(folder.glob("step-*")), f"saved and queued again after step {at}: {said()}")
        time.sleep(5)  # so that the old script's end is not mistaken for the next one's

        def goes_on():  # a job that was queued again waits for two minutes
            hosts.ask("scontrol", "update", f"jobid={job}", "starttime=now", "timelimit=10")
            time.sleep(1)
            return steps_written(lines) > at + 10

        again = until(goes_on, 60)
        nodes = hosts.nodes_of(job)
        check(again and nodes.strip() == "h[2,4]", f"it goes on without the drained node: {nodes} {said()}")
        hosts.ask("scancel", "--full", job)
        until(lambda: not hosts.ask("squeue", "-h").strip(), 30)
        done = metrics(lines)
        wanted = WORK / "untimed.jsonl"
        until_there = ["--steps", max(done), "--metrics", wanted, "--save", WORK / "untimed"]
        made = run(command(*ENDLESS, *until_there, ranks=4))
        good = made.returncode == 0 and done == metrics(wanted)
        check(good, f"the losses of an undisturbed run: {len(done)} steps {made.stderr[-300:]}")

        log = hosts.folder / "no-pmi"
        hosts.submit(log, script, "--save", WORK / "no-pmi", SLURM_MPI_TYPE="none")
        until(lambda: "MPI sees none of them" in said(), 60)
        hosts.ask("scancel", "--full", "--user=root")
        check("srun started 4 tasks, but MPI sees none of them" in said(), f"without PMI: {said()}")
        check(not list(WORK.glob("no-pmi/step-*")), "nobody trained alone")

        starter = launch.Launcher("slurm", ["h1", "h2"], 4, 2, launch.Options([])).starter
        words = [*starter(["h1", "h2"], 6, 4, "six"), "printenv", "SLURM_NODEID"]
        there = ["salloc", "--quiet", "--nodes=2", "--ntasks-per-node=4", "--nodelist=h1,h2", *words]
        done = run(hosts.inside("h0", there), hosts.variables, 60)
        nodes = "".join(sorted(done.stdout.split()))
        check(nodes == "000011", f"six ranks on two nodes of four: {nodes} {done.stderr[-300:]}")
