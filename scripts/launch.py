#!/usr/bin/env python3
"""Starts training on several hosts, and restarts lost runs; launch_mpirun.sh and launch_slurm.sh call it.

  launch.py mpirun HOSTFILE RANKS_PER_HOST [--hosts N] OPTION…     options of train_gpt
  launch.py slurm                          [--hosts N] OPTION…     inside a job's allocation

The first N of the hosts take part (default: all), the others are spares. A run that ends with an error is
restarted from its newest checkpoint in --save: after a pause, without the hosts that it was lost on, from an
older checkpoint if the newest leads to a non-finite loss or a spike, and with fewer replicas if too few hosts
are left and the batch still divides. The launcher gives up after three attempts without a newer checkpoint,
and at once if no step has run and no host is to blame: a wrong option, say.
A host on which a run was lost is excluded if there is a spare for it, if it cannot start a program, or at its
second loss. If hosts are short, those that can start programs again are readmitted, except hosts with memory
errors and those that somebody has added to DIR/excluded-hosts; hosts that start programs but lose runs, only
if no replica would be left.

DIR is the folder of --save, or of --resume without a --save. DIR/launch.log has what was printed,
DIR/launch.json what was started and how it ended. DIR/excluded-hosts has one host per line, with the reason;
it is read before each attempt, so it may be edited. LAUNCH_PAUSE: seconds before a new attempt; doubled for
each one in a row without a newer checkpoint [30]. LAUNCH_SILENCE: seconds without a printed line after which
a run counts as lost [3600]. LAUNCH_PATIENCE: seconds to wait for hosts if too few are left [21600].
LAUNCH_DIR: the folder of train_gpt [the current one]. LAUNCH_MPIRUN, LAUNCH_SRUN: more options for these. At
SIGTERM, SIGINT, SIGUSR1 or SIGHUP the ranks finish their step and save."""

import collections
import concurrent.futures
import errno
import fcntl
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
import types
from pathlib import Path

from launch_log import ENDS, SPIKE, first_label, named_hosts

DIVERGED = 3  # train_gpt's exit code: a loss that is not finite, or a spike
PROGRAM = Path(os.environ.get("LAUNCH_DIR", "."), "train_gpt").resolve()
ATTEMPTS = 3  # without a newer checkpoint
STEP = re.compile(r"\bstep +\d+/\d")  # behind a label, where mpirun or srun give one
LONGEST_PAUSE = 300
LONGEST_END = 30  # of mpirun or srun, once they have said that the run is lost
ANSWER_SECONDS = 30  # of a host that is asked to start a program
SIGNAL_AGAIN = 10  # seconds after which a signal that no rank has confirmed is sent again


def say(message, file=None, end="\n"):
    """Prints in the terminal's encoding, to whoever listens; a log on a full disk must not end a run."""
    file = file or sys.stdout
    try:
        code = file.encoding or "utf8"
        print(message.encode(code, "replace").decode(code), file=file, end=end, flush=True)
    except OSError:
        pass


def stop(message):
    say(f"launch.py: {message}", sys.stderr)
    sys.exit(1)


def seconds(name, default):
    """A setting from the environment."""
    given = os.environ.get(name, "").strip()
    try:
        return float(given or default)
    except ValueError:
        stop(f"{name}={given}: expected a number of seconds")


def patiently(read):
    """read(), again after a while where storage does not answer."""
    for _ in range(60):
        try:
            return read()
        except OSError as e:
            say(f"launch.py: {e}: tried again in 5 s", sys.stderr)
            time.sleep(5)
    return read()


def words_in(name):
    """The words of a variable that has more options for mpirun or srun."""
    try:
        return shlex.split(os.environ.get(name, ""))
    except ValueError as e:
        stop(f"{name}={os.environ[name]}: {e}")


class Options:
    """The options of train_gpt that a launcher needs; a config file gives those not on the command line."""

    def __init__(self, words):
        self.words = words
        self.values = {}
        for name, value in zip(words, words[1:] + [""]):
            if name.startswith("--"):  # as there, the last of several counts
                self.values[name[2:]] = value
        if "config" in self.values:
            try:
                text = Path(self.values["config"]).read_text("utf-8-sig", errors="replace")
            except OSError as e:
                stop(f"--config {self.values['config']}: {e.strerror}")
            for line in text.splitlines():
                name, *value = re.split(r"(?:^|\s)#", line)[0].split(None, 1) or [""]
                self.values.setdefault(name.lstrip("-"), "".join(value).strip())

    def number(self, name, default, saved=None):
        """saved: options of a checkpoint, which count where none is given."""
        given = self.values.get(name, (saved or {}).get(name, default))
        try:
            return int(float(given))
        except (ValueError, OverflowError):  # the latter: inf
            stop(f"--{name} {given}: expected a number")

    def resumed(self):
        """The folder of checkpoints that --resume names, or None; the step, if it names one of them."""
        named = Path(self.values.get("resume", ""))
        if re.fullmatch(r"step-\d+", named.name):
            return named.parent, int(named.name[5:])
        return (named if self.values.get("resume") else None), None

    def folder(self):
        """Where the run saves: by --save, or back into what --resume names, unless that is an old one."""
        back, step = self.resumed()
        was_newest = os.environ.get("SLURM_RESTART_COUNT", "0") != "0"
        if step is not None and not was_newest and newest_checkpoint(back) != step:
            back = None
        named = self.values.get("save", str(back or ""))
        return Path(named) if named and named != "no" else None

    def ranks_of_replica(self):
        return self.number("tensor-parallel", 1) * self.number("pipeline-parallel", 1)

    def without(self, name):
        words = self.words
        while "--" + name in words:
            at = words.index("--" + name)
            words = words[:at] + words[at + 2 :]
        return words


def newest_checkpoint(folder, before=None):
    """The newest checkpoint's step, or -1; before: only of earlier steps than this."""
    found = patiently(lambda: [p.parent for p in folder.glob("step-*/index.json")]) if folder else []
    names = [path.name for path in found if not (path / "DAMAGED").exists()]
    steps = [int(name[5:]) for name in names if re.fullmatch(r"step-\d+", name)]
    return max((step for step in steps if before is None or step < before), default=-1)


def index_of(folder, step):
    return folder / f"step-{step:08d}/index.json"


def stamp_of(folder, step):
    """When a checkpoint was written, to tell two of one step apart."""
    try:
        return index_of(folder, step).stat().st_mtime_ns if step >= 0 else None
    except OSError:
        return None


def options_of_newest(folder):
    """The options that the newest checkpoint's run had, from which a resumed run takes its recipe."""
    step = newest_checkpoint(folder)
    if step < 0:
        return {}
    try:
        saved = json.loads(patiently(index_of(folder, step).read_text)).get("options")
    except (ValueError, AttributeError):
        return {}
    return saved if isinstance(saved, dict) else {}


def read_hosts(path):
    """{host: its line}: each line begins with a host."""
    read = lambda: path.read_text("utf-8-sig", errors="replace").splitlines() if path.exists() else []
    lines = patiently(read)
    return {line.split()[0]: line for line in lines if line.split() and not line.lstrip().startswith("#")}


class Attempts:
    """Whether attempts get further, and before which checkpoint the next one resumes. All are steps of
    checkpoints, -1: none."""

    def __init__(self, newest):
        self.best = newest  # since the last rollback
        self.furthest = newest  # ever
        self.failures = 0  # in a row, without a newer checkpoint
        self.divergences = 0  # since the furthest one
        self.resume_before = None  # of --resume-before, which sets those from there on aside

    def count(self, start, end, is_new, diverged):
        """One that began at checkpoint `start` and ended with `end` as the newest; is_new: written by it."""
        # a step that was never saved before or, of what a rollback had set aside, is saved anew
        progress = is_new and end > (self.best if self.resume_before is None else start)
        self.best = end if progress else max(end, self.best)
        self.divergences += diverged
        if self.best > self.furthest:
            self.divergences, self.furthest = 0, self.best
        if progress:
            self.resume_before = None
        elif diverged and start >= 0:  # the checkpoint leads there
            self.resume_before = start
        self.failures = 0 if progress else self.failures + 1

    def are_used_up(self):
        return max(self.failures, self.divergences) >= ATTEMPTS


class Launcher:
    def __init__(self, how, hosts, each, wanted, options):
        self.how, self.hosts, self.each, self.options = how, hosts, each, options
        self.wanted = wanted or len(hosts)
        self.folder = options.folder()
        self.pause = seconds("LAUNCH_PAUSE", 30)
        self.silence = seconds("LAUNCH_SILENCE", 3600)
        self.patience = seconds("LAUNCH_PATIENCE", 21600)
        self.excluded = {}  # host: its line in excluded-hosts
        self.child = None
        self.told = False
        self.stopping = False
        self.ran = False  # a step of any attempt
        self.ran_before = False  # … of this job, before Slurm has queued it again
        if os.environ.get("SLURM_RESTART_COUNT", "0") != "0" and self.folder:
            try:
                self.ran_before = bool(json.loads((self.folder / "launch.json").read_text()).get("ran"))
            except (OSError, ValueError, AttributeError):
                pass
        self.was_killed = False
        self.confirmed = False  # a rank has said that it received a signal
        self.signalled = 0.0  # when it was last sent
        self.record = {"command": sys.argv, "pid": os.getpid(), "host": os.uname().nodename, "attempts": []}
        metrics = options.values.get("metrics", "")
        self.record["metrics"] = str(Path(metrics).resolve()) if metrics else ""
        self.record["ran"] = self.ran_before

    # ---- what is started

    def usable_hosts(self):
        if self.folder:
            self.excluded = read_hosts(self.folder / "excluded-hosts")  # as it was edited
        return [host for host in self.hosts if host not in self.excluded]

    def answers(self, host):
        """Whether a program starts there."""
        with subprocess.Popen(
            self.starter([host], 1, 1, f"probe-{host}") + ["true"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        ) as asked:
            try:
                return asked.wait(ANSWER_SECONDS) == 0
            except subprocess.TimeoutExpired:
                self.kill(asked.pid, f"probe-{host}")
                return False

    def kill(self, process, name):
        """mpirun's daemons notice, and end their ranks; srun's job step would stay, and hold its nodes."""
        os.killpg(process, signal.SIGKILL)
        if self.how == "slurm":
            steps = self.ask("squeue", "-h", "-s", "-j", os.environ.get("SLURM_JOB_ID", ""), "-o", "%i %j")
            for step in (line.split()[0] for line in steps.splitlines() if line.split()[1:] == [name]):
                self.ask("scancel", step)

    def ask(self, *command):
        """What one of Slurm's programs says; "" where it fails."""
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, encoding="utf8")
        return "" if done.returncode else done.stdout

    def answering(self, hosts):
        if self.stopping or not hosts:
            return []
        with concurrent.futures.ThreadPoolExecutor(64) as pool:
            return [host for host, good in zip(hosts, pool.map(self.answers, hosts)) if good]

    def take_back(self):
        """Readmits excluded hosts that are up again, as many as are missing: one that answers but loses runs
        only if no replica would be left; one that somebody has listed, or with bad memory, never.
        """
        usable = len(self.usable_hosts())
        reasons = ["lost", "hangs"]
        if usable * self.each < self.options.ranks_of_replica():
            reasons.append("fails")
        reason = {host: "".join(line.split()[1:2]) for host, line in self.excluded.items()}
        asked = [host for host in reason if host in self.hosts and reason[host] in reasons]
        if usable >= self.wanted or not asked:
            return
        back = self.answering(asked)[: self.wanted - usable]
        lines = patiently((self.folder / "excluded-hosts").read_text).splitlines(keepends=True)
        left = [line for line in lines if "".join(line.split()[:1]) not in back]
        if back and self.replace("excluded-hosts", "".join(left)):
            say(f"launch.py: {' '.join(back)} starts programs again, and is taken back")

    def replicas(self, hosts):
        """The most replicas that fit on so many hosts and divide every batch of the run; 0: none."""
        # a resumed run takes what it is not given from its checkpoint
        saved = options_of_newest(self.folder) or options_of_newest(self.options.resumed()[0])
        number = lambda name, default: self.options.number(name, default, saved)  # noqa: E731

        # a saved micro-batch is taken only where it divides
        is_auto = self.options.values.get("micro-batch") == "auto"
        part = 1 if is_auto else self.options.number("micro-batch", 1)
        batches = [number("batch", 8)]
        start = number("ramp-start", 0)
        if start:
            batches += [start, number("ramp-increment", start) or start]
        most = hosts * self.each // self.options.ranks_of_replica()
        return next((d for d in range(most, 0, -1) if all(batch % (d * part) == 0 for batch in batches)), 0)

    def choose(self):
        """Hosts and number of ranks: all that are wanted, or as many whole replicas as the batch allows.
        Where not even one is left it waits for hosts."""
        began, told = time.time(), False
        while True:
            self.take_back()
            hosts = self.usable_hosts()[: self.wanted]
            if len(hosts) == self.wanted:
                return hosts, len(hosts) * self.each

            best, replica = self.replicas(len(hosts)), self.options.ranks_of_replica()
            if best:
                needed = -(-best * replica // self.each)
                say(f"launch.py: {len(hosts)} of {self.wanted} hosts are left: {best} replicas on {needed}")
                return hosts[:needed], best * replica

            message = (
                f"{len(hosts)} of {self.wanted} hosts are left, {len(hosts) * self.each} ranks: a replica"
                f" takes {replica}: mend hosts and take them out of {self.folder}/excluded-hosts, or add"
                " hosts"
            )
            if self.stopping or time.time() - began > self.patience:
                say(f"launch.py: {message}", sys.stderr)
                self.leave(1, True)
            if not told:
                say(f"launch.py: {message}; waiting for them")
            told = True
            self.sleep(60)

    def command(self, hosts, ranks, resume_before):
        words = self.options.without("world-size")
        if newest_checkpoint(self.folder) >= 0:  # what --resume named is behind it
            words = Options(words).without("resume") + ["--resume", str(self.folder)]
        if self.ran or self.ran_before:
            words = Options(words).without("resume-before")  # it has set aside what it should
        if resume_before is not None:
            words = words + ["--resume-before", str(resume_before)]
        starter = self.starter(hosts, ranks, self.each, "train_gpt")
        return [*starter, str(PROGRAM), *words, "--world-size", str(ranks)]

    def starter(self, hosts, ranks, each, name):
        """What starts a program on hosts, up to `each` ranks on one; name: of the job step."""
        if self.how == "slurm":
            mpi = os.environ.get("SLURM_MPI_TYPE", "pmix")
            where = [f"--nodelist={','.join(hosts)}", f"--nodes={len(hosts)}", f"--ntasks={ranks}"]
            # ranks that do not fill all nodes fill one after the other, as tensor parallelism wants
            extra = [f"--distribution=plane={each}", *words_in("LAUNCH_SRUN")]
            return ["srun", *extra, f"--job-name={name}", f"--mpi={mpi}", "--kill-on-bad-exit=1", *where]
        # a host whose link is down is noticed after some seconds, not never
        alive = {"oob_tcp_keepalive_time": 5, "oob_tcp_keepalive_intvl": 2, "oob_tcp_keepalive_probes": 3}
        settings = [word for name, value in alive.items() for word in ("--mca", name, str(value))]
        # of CUDA, NCCL and its plugins, and of the networks below them
        prefixes = ("NCCL_", "CUDA_", "OFI_NCCL_", "FI_", "UCX_")
        passed_on = [name for name in os.environ if name.startswith(prefixes) or name == "LD_LIBRARY_PATH"]
        passed_on.append("OMP_NUM_THREADS")
        exports = [word for name in passed_on for word in ("-x", name)]
        where = ["--host", ",".join(f"{host}:{each}" for host in hosts), "-n", str(ranks)]
        placing = ["--map-by", f"ppr:{each}:node", "--bind-to", "none"]
        extra = words_in("LAUNCH_MPIRUN")
        return ["mpirun", *extra, *settings, *where, *placing, *exports]

    # ---- one attempt

    def keep(self, name, mode, text):
        """Writes into a file of the folder; if its disk is full, the run goes on without."""
        try:
            with open(self.folder / name, mode, encoding="utf8") as file:
                file.write(text)
            return True
        except OSError as e:
            if not self.told:
                say(f"launch.py: {self.folder / name}: {e.strerror}: not kept", sys.stderr)
            self.told = True
            return False

    def write_record(self):
        if self.folder:
            self.replace("launch.json", json.dumps(self.record, indent=1) + "\n")

    def replace(self, name, text):
        """Replaces a file of the folder, completely or not at all."""
        if not self.keep(f".{name}.partial", "w", text):
            return False
        try:
            (self.folder / f".{name}.partial").rename(self.folder / name)
            return True
        except OSError:
            return False

    def sleep(self, wait):
        until = time.time() + wait
        while time.time() < until and not self.stopping:
            time.sleep(0.2)

    def read(self, attempt):
        """Reads what an attempt prints, to its end."""
        for line in attempt.lines:
            attempt.tail.append(line)
            attempt.heard = time.time()
            attempt.ran = attempt.ran or bool(STEP.search(line))
            self.ran = self.ran or attempt.ran
            self.confirmed = self.confirmed or "signal received" in line
            if ENDS.search(line):
                attempt.ends_since = attempt.ends_since or time.time()
            say(line, end="")
            if self.folder:
                self.keep("launch.log", "a", line)

    def run(self, command):
        """The exit code, and the end of what was printed."""
        self.child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf8",
            errors="replace",
            start_new_session=True,  # a terminal's Ctrl-C comes through on_signal alone
        )
        attempt = types.SimpleNamespace(
            # some 40 lines a rank of 4,480, so that the first words of a run's end are among them
            lines=self.child.stdout,
            tail=collections.deque(maxlen=200000),
            ends_since=0,
            heard=time.time(),
            ran=False,
        )
        if self.stopping:
            self.on_signal(None, None)

        reader = threading.Thread(target=self.read, args=(attempt,), daemon=True)
        reader.start()
        while self.child.poll() is None:
            time.sleep(0.05)
            # mpirun drops what comes before its ranks have started; later a second one would end them at once
            waits = self.stopping and not self.confirmed and not attempt.ran
            if waits and time.time() - self.signalled > SIGNAL_AGAIN:
                self.on_signal(None, None)
            silent = time.time() - attempt.heard > self.silence
            if silent or (attempt.ends_since and time.time() - attempt.ends_since > LONGEST_END):
                self.kill(self.child.pid, "train_gpt")
                self.was_killed = True
                self.child.wait()
                say(f"launch.py: {command[0]} {'is silent' if silent else 'does not end'}: killed")

        reader.join(5)  # what still holds the pipe is on a host that is gone
        return self.child.returncode, "".join(list(attempt.tail))

    def lost_hosts(self, printed, hosts):
        """Of those that took part, the hosts that the run was lost on, and why."""
        found = named_hosts(printed, self.hosts, hosts, self.each)
        if set(found.values()) <= {"fails"}:  # nobody was named, or a rank that may have missed a dead host's
            good = self.answering(hosts)
            # where not one answers it is not the hosts: mpirun itself refuses, say
            dead = {host: "lost" for host in hosts if good and host not in good and not self.stopping}
            found = dead or found
        return found

    def end_if_permanent(self, code, printed, lost, diverged):
        """If no step was printed and no host named, another attempt would end like this one."""
        # after steps of this run, that is the remains of an earlier attempt, which will end
        taken = "writes there: end that run" in printed and not self.ran
        meanwhile = "another run has ended meanwhile" in printed  # start again, it says
        if diverged or meanwhile:
            return
        if not taken and (self.ran or lost or self.was_killed):
            return
        stop(
            f"train_gpt ended with {code} before its first step, which another attempt would not change:\n"
            + "".join(printed.splitlines(keepends=True)[-15:])
        )

    def lock(self):
        """One launcher for a folder, which is made here, and never again."""
        if self.folder:
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
            except OSError as e:
                say(f"launch.py: {self.folder}: {e.strerror}", sys.stderr)
        if not self.folder or not self.keep(".launch.lock", "a", ""):
            return
        self.locked = open(self.folder / ".launch.lock", "r+")
        # a job that Slurm has queued again: storage may keep the lock of its lost node for a while
        until = time.time() + (180 if os.environ.get("SLURM_RESTART_COUNT", "0") != "0" else 0)
        while True:
            try:
                fcntl.flock(self.locked, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError as e:
                if e.errno != errno.EWOULDBLOCK:
                    return  # a file system without locks
                if self.stopping:
                    self.leave(1, True)
                if time.time() >= until:
                    stop(f"{self.folder}: another launcher works on this run ({self.locked.read().strip()})")
            self.sleep(5)
        self.locked.truncate(0)
        self.locked.write(f"process {os.getpid()} on {os.uname().nodename}\n")
        self.locked.flush()

    def exclude(self, found):
        """Hosts that are not taken again; found: by lost_hosts."""
        spares = len(self.usable_hosts()) - self.wanted
        good = self.answering(list(found))

        # a rank that died alone may be no fault of its host: without a spare it is tried once more
        strikes = {host: sum(host in a["lost_on"] for a in self.record["attempts"]) for host in found}
        out = [host for host in found if spares > 0 or strikes[host] > 0 or host not in good]
        if (len(self.usable_hosts()) - len(out)) * self.each < self.options.ranks_of_replica():
            # what is left would hold no replica: stay with those that answer
            out = [host for host in out if host not in good]

        # it answers, yet runs are lost on it again: it is not readmitted at once
        why = {
            host: "fails" if host in good and spares <= 0 and found[host] != "memory" else found[host]
            for host in out
        }

        if out and self.folder:
            when = time.strftime("%Y-%m-%dT%H:%M:%S")
            listed = self.folder / "excluded-hosts"  # which somebody may have edited
            text = patiently(lambda: listed.read_text(errors="replace") if listed.exists() else "")
            ends = not text or text.endswith("\n")
            lines = "".join(f"{host} {why[host]} {when}\n" for host in out)
            self.keep("excluded-hosts", "a", ("" if ends else "\n") + lines)
        elif out:
            self.excluded.update(dict.fromkeys(out, ""))

    def leave(self, code, work_is_left):
        """Under Slurm a job whose time is nearly up is requeued; one that was cancelled is not."""
        job = os.environ.get("SLURM_JOB_ID", "")
        if self.how == "slurm" and work_is_left and self.folder:
            state = self.ask("squeue", "-h", "-j", job, "-o", "%T").strip()
            if state == "RUNNING" and subprocess.run(["scontrol", "requeue", job]).returncode:
                say(f"launch.py: job {job} cannot be queued again: submit it again to continue", sys.stderr)
                code = code or 1
        sys.exit(code)

    def loop(self):
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP):
            if signal.getsignal(number) != signal.SIG_IGN:  # as nohup has it
                signal.signal(number, self.on_signal)
        self.lock()
        attempts = Attempts(newest_checkpoint(self.folder))
        while True:
            vanished = attempts.best >= 0 and newest_checkpoint(self.folder) < 0
            if vanished and not any(self.folder.glob("diverged-step-*")):
                stop(
                    f"{self.folder}: has no intact checkpoint any more, and had one of step {attempts.best}:"
                    " is it still mounted, and under this name?"
                )
            hosts, ranks = self.choose()
            if self.how == "mpirun":  # it begins with the host that it runs on, if that takes part
                hosts.sort(key=lambda host: first_label(host) != first_label(os.uname().nodename))
            start = newest_checkpoint(self.folder, attempts.resume_before)
            held = newest_checkpoint(self.folder)
            stamp = stamp_of(self.folder, held) if self.folder else None
            command = self.command(hosts, ranks, attempts.resume_before)
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
            self.record["ran"] = self.ran or self.ran_before
            end = newest_checkpoint(self.folder)
            diverged = code == DIVERGED or bool(SPIKE.search(printed))
            lost = self.lost_hosts(printed, hosts) if code not in (0, DIVERGED) and not self.stopping else {}
            self.exclude(lost)
            attempt["lost_on"] = sorted(lost)
            was_stopped = self.stopping or "stopped by a signal" in printed
            attempt.update(ended=time.time(), exit_code=code, to_step=end, was_stopped=was_stopped)
            self.write_record()
            if code == 0 or self.stopping:
                self.leave(code, code != 0 or was_stopped)
            self.end_if_permanent(code, printed, lost, diverged)
            if not self.folder:
                stop(f"train_gpt ended with {code}, and there is no --save to resume from")

            is_new = end != held or stamp_of(self.folder, end) != stamp
            attempts.count(start, end, is_new, diverged)
            if attempts.are_used_up():
                stop(
                    f"{ATTEMPTS} attempts without a newer checkpoint than step {attempts.furthest}: see"
                    f" {self.folder}/launch.log"
                )

            wait = min(LONGEST_PAUSE, self.pause * 2**attempts.failures)
            where = f", lost on {' '.join(attempt['lost_on'])}" if attempt["lost_on"] else ""
            say(f"launch.py: train_gpt ended with {code} at checkpoint {end}{where}: again in {wait:.0f} s")
            attempt["again_at"] = time.time() + wait  # for status.sh
            self.write_record()
            self.sleep(wait)
            if self.stopping:
                self.leave(code, True)

    def on_signal(self, number, frame):
        self.stopping = True
        self.signalled = time.time()
        if self.child and self.child.poll() is None:
            # mpirun and srun hand SIGUSR1 on; at SIGTERM mpirun kills its ranks after a second
            self.child.send_signal(signal.SIGUSR1)


def main(words):
    how = words[0] if words else ""
    for program in {"mpirun": ["mpirun"], "slurm": ["srun", "scontrol"]}.get(how, []):
        if not shutil.which(program):
            stop(f"there is no {program} here: load its module, or add it to PATH")
    if how == "mpirun" and len(words) >= 4:
        hostfile, each, rest = Path(words[1]), words[2], words[3:]
        if not hostfile.is_file() or not os.access(hostfile, os.R_OK):
            stop(f"{hostfile} cannot be read: give a file with one line per host")
        if not re.fullmatch("[1-9][0-9]*", each):
            stop(f"{each} ranks per host: expected a number")
        hosts, each = list(read_hosts(hostfile)), int(each)
        text = hostfile.read_text("utf-8-sig", errors="replace")
        odd = [host for host in hosts if not re.fullmatch(r"[\w.:%-]+", host, re.ASCII)]
        if odd:
            stop(f"{hostfile}: {odd[0][:60]!r} is no host: expected one line per host")
        named = [line.split()[0] for line in text.splitlines() if line.split()]
        twice = [host for host in hosts if named.count(host) > 1]
        if twice:
            stop(f"{hostfile} names {twice[0]} more than once: give one line per host, with all its ranks")
        if not hosts:
            stop(f"{hostfile} names no host")
    elif how == "slurm" and len(words) >= 2:
        listed = ["scontrol", "show", "hostnames", os.environ.get("SLURM_JOB_NODELIST", "")]
        hosts = subprocess.run(listed, stdout=subprocess.PIPE, encoding="utf8").stdout.split()
        rest = words[1:]
        each = os.environ.get("SLURM_NTASKS_PER_NODE") or "1"
        if not re.fullmatch("[1-9][0-9]*", each):
            stop(f"SLURM_NTASKS_PER_NODE={each}: expected a number")
        each = int(each)
        if not hosts:
            stop("SLURM_JOB_NODELIST names no host: start with sbatch scripts/launch_slurm.sh")
    else:
        print(__doc__)
        sys.exit(1)

    wanted = 0
    if rest[0] == "--hosts" and len(rest) > 2:
        if not re.fullmatch("[1-9][0-9]*", rest[1]):
            stop(f"--hosts {rest[1]}: expected a number")
        wanted, rest = int(rest[1]), rest[2:]
    if wanted > len(hosts):
        stop(f"--hosts {wanted}: only {len(hosts)} are given")
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, len(os.sched_getaffinity(0)) // each)))
    if not os.access(PROGRAM, os.X_OK):
        stop(f"no {PROGRAM}: run make there, and start from there")
    Launcher(how, hosts, each, wanted, Options(rest)).loop()


if __name__ == "__main__":
    main(sys.argv[1:])
