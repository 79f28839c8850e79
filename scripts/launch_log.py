"""Finds the hosts that a run was lost on, from the last lines that mpirun, srun and train_gpt printed."""

import re

# Open MPI; MPICH's kin: "Abort(1) on node 0 (rank 3 in …)", "application called MPI_Abort(…) - process 3"
ABORTED = r"MPI_ABORT was invoked|Abort\(\d+\) on node \d+ \(rank|application called MPI_Abort"
ENDS = re.compile(r"lost communication with a remote daemon|noticed that process rank|" + ABORTED)
# what tells on which host a run was lost
LOST = (
    re.compile(
        r"lost communication with a remote daemon.*?"
        r"Remote daemon: (?:\[\[[^\]]*\],\d+\]|\[\S+\]) on node (\S+)",  # Open MPI 4, 5
        re.S,
    ),
    re.compile(r"on node (\S+?)\s+(?:exited\s+on\s+signal|but)"),
    re.compile(r"Node failure on ([^\s,.]+)"),
    re.compile(r"Could not resolve hostname (\S+):|connect to host (\S+) port"),
)
# only srun's first such line: it then kills the tasks of all other nodes itself
FIRST_LOST = re.compile(r"srun: error: (\S+?): tasks? [\d,\-]+: (?:Killed|Segmentation|Bus error|Aborted)")
MEMORY = re.compile(r"(?:\[rank (\d+)\] )?train_gpt: (\S+): (?:step \d+,?|parameters) ")
# only the first such line: other ranks may be waiting for the rank that printed it
HANGS = re.compile(r"waits for ranks? ([\d ]+), which does not answer")
# of hosts that the launcher knows by other names
RANK = re.compile(r"process rank (\d+) with PID \S+ on node (\S+?)\s+(?:exited|but)")
# ended by the program itself: the fault may be its host's, or everybody's
ABORT = re.compile(
    r"(?:MPI_ABORT was invoked on rank |Abort\(\d+\) on node \d+ \(rank |MPI_Abort\(.*\) - process )(\d+)"
)
# the device of one of them hangs: whoever says so first is no nearer to it than the others
ALL_ANSWER = re.compile(r"all ranks answer, and")
ALL_END = re.compile(ABORTED + "|Job step aborted")  # from here on all are killed
SPIKE = re.compile(r"train_gpt: step \d+: loss .*: (?:not finite|a spike)")


def first_label(host):
    """A host's name without its domain; addresses are whole."""
    return host if re.fullmatch(r"[\d.]+|.*:.*", host) else host.split(".")[0]


def named_hosts(printed, known, hosts, each):
    """{host: why} for the hosts that the run was lost on; empty where none is named. known: all hosts, as the
    launcher calls them; hosts: those that took part, in order, with `each` ranks."""
    labels = [first_label(host) for host in known]
    ours = {first_label(host): host for host in known if labels.count(first_label(host)) == 1}
    ours.update({host: host for host in known})
    ours_of = lambda name: ours.get(name) or ours.get(first_label(name))  # noqa: E731
    names = [
        name
        for pattern in LOST
        for groups in pattern.findall(printed)
        for name in ([groups] if isinstance(groups, str) else groups)
    ]
    alone = ALL_END.split(printed)[0]  # of what was killed afterwards nothing is known
    first, hangs, abort = FIRST_LOST.search(alone), HANGS.search(printed), ABORT.search(printed)
    if first:
        names.append(first[1])

    found = {ours_of(name): "lost" for name in names if ours_of(name)}
    host_of = lambda rank: hosts[min(rank // each, len(hosts) - 1)]  # ranks fill host after host
    if not found:
        found = {host_of(int(rank)): "lost" for rank, name in RANK.findall(printed) if not ours_of(name)}
    if hangs and not found:
        found = {host_of(int(rank)): "hangs" for rank in hangs[1].split()}
    if abort and not found and not ALL_ANSWER.search(printed):
        found = {host_of(int(abort[1])): "fails"}

    for rank, name in MEMORY.findall(printed):
        if ours_of(name):
            found[ours_of(name)] = "memory"
        elif rank:  # the hosts are addresses, or called otherwise
            found[host_of(int(rank))] = "memory"
    return found
