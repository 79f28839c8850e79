"""Reads machine code: compiles the kernels for one architecture, and takes apart what ptxas and nvdisasm say
of each: registers, shared memory, spills, and the instructions of its loops. Needs nvcc and nvdisasm, no GPU.
"""

import glob
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, field

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

# ---- machine code ------------------------------------------------------------------------------------


@dataclass
class Instruction:
    predicate: str
    name: str  # with its modifiers: LDG.E.128
    operands: str

    def kind(self):
        for kind, pattern in KINDS.items():
            if re.match(pattern, self.name):
                return kind
        return "other"

    def bytes(self):  # of a lane
        if self.name.startswith("LDSM"):
            return 4 * int(self.name[-1])
        for size in (128, 64, 16, 8):
            if re.search(rf"\.[US]?{size}\b", self.name):
                return size // 8
        return 4

    def registers(self):
        return {int(r) for r in re.findall(r"\bR(\d+)\b", self.operands)}

    def loaded(self):  # registers that a load fills
        first = re.match(r"R(\d+)", self.operands)
        return set(range(int(first[1]), int(first[1]) + max(self.bytes() // 4, 1))) if first else set()


KINDS = {
    "tensor": r"(H|Q|I|O)?(G)?MMA\b(?!\.MMA)|H(G)?MMA\.|UTC\w*MMA",
    "special": r"MUFU",
    "copy": r"LDGSTS|UTMALDG|UBLKCP",
    "shared": r"LDS|STS|ATOMS|LDSM|STSM",
    "global": r"(LDG|STG|REDG?|ATOMG?|LD|ST)(\.|$)",
    "local": r"LDL|STL",
    "barrier": r"BAR|WARPSYNC|SYNCS",
    "fence": r"MEMBAR|FENCE",
    "region": r"BSSY",
    "branch": r"BRA|JMP|BRX|CALL|RET",
}


@dataclass
class Loop:
    body: list
    inner: list = field(default_factory=list)  # loops inside it, as slices of the body

    def executed(self, trips):
        """(instruction, how often in one turn); a loop inside it runs trips(body) times"""
        times = [1] * len(self.body)
        for first, last in self.inner:
            own = trips(self.body[first : last + 1])
            for i in range(first, last + 1):
                times[i] *= own
        return zip(self.body, times)

    def count(self, kind, trips=lambda body: 1):
        return sum(t for i, t in self.executed(trips) if kind is None or i.kind() == kind)

    def tensor_cycles(self, of_mma, trips):
        """of a sub-partition; of_mma: for an mma.m16n8k16. wgmma has 16 rows by N a warp, at the full rate"""
        cycles = 0
        for i, times in self.executed(trips):
            if wgmma := re.match(r"HGMMA\.64x(\d+)x16", i.name):
                cycles += times * int(wgmma[1]) // 8 * 4
            elif i.kind() == "tensor":
                cycles += times * of_mma
        return cycles

    def shared_bytes(self, trips):
        return sum(32 * i.bytes() * t for i, t in self.executed(trips) if i.kind() in ("shared", "copy"))

    def waits(self, trips=lambda body: 1):
        """how often it waits for global memory, near (L2, by ld.cg) and far"""
        pending, near, far, since_copy = {}, 0, 0, None
        for i, times in self.executed(trips):
            used = i.registers() & pending.keys()
            if used:
                near += times * all(pending[r] for r in used)
                far += times * (not all(pending[r] for r in used))
                pending.clear()
            since_copy = since_copy + 1 if since_copy is not None else None
            if i.kind() == "copy":
                since_copy = 0
            if i.name.startswith("DEPBAR") and since_copy is not None:
                far += times * (since_copy < 150)  # nothing to do meanwhile
                since_copy = None
            if i.name.startswith("LDG.") or i.name == "LDG":
                for r in i.loaded():
                    pending[r] = "STRONG" in i.name

        return near, far


def parse(text):
    """{kernel: (instructions, loops)}"""
    out, name, code, labels = {}, "", None, {}
    targets = []
    for line in text.splitlines() + [".text.end:"]:
        if m := re.match(r"\.text\.(\S+):", line):
            if code is not None:
                spans = [(labels[t], k) for k, t in targets if labels.get(t, k + 1) <= k]
                out[name] = (code, spans)
            name, code, labels, targets = m[1], [], {}, []
        elif code is None:
            continue
        elif m := re.match(r"(\.L_\w+):", line):
            labels[m[1]] = len(code)
        elif m := re.match(r"\s+/\*[0-9a-f]+\*/\s+(@!?U?P\w+\s+)?([A-Z][\w.]*)\s*([^;]*);", line):
            if m[2] == "NOP" or (m[2] == "BRA" and code and code[-1].name == "EXIT"):
                continue
            if t := re.search(r"\((\.L_\w+)\)", m[3]):
                targets.append((len(code), t[1]))
            code.append(Instruction((m[1] or "").strip(), m[2], m[3]))

    return {k: (c, [s for s in spans if s[1] > s[0]]) for k, (c, spans) in out.items()}


def loops_of(code, spans):
    out = []
    # a jump back from behind the kernel's end is the way back from a rare case, not a loop
    ends = [k for k, i in enumerate(code) if i.name == "EXIT" and not i.predicate]
    spans = [(a, b) for a, b in spans if not any(a <= k <= b for k in ends)]
    for a, b in spans:
        inner = [(c - a, d - a) for c, d in spans if a <= c and d <= b and (c, d) != (a, b)]
        out.append(Loop(code[a : b + 1], inner))
    return out


def waits_of(code, spans):
    """The innermost loops that wait for a counter in global memory or for an mbarrier."""
    asks = re.compile(r"LDG?\.E\.STRONG\.GPU$|SYNCS\.PHASECHK\..*TRYWAIT")
    own = [(a, b) for a, b in spans if any(asks.match(i.name) for i in code[a : b + 1])]
    innermost = [(a, b) for a, b in own if not any(a <= c and d <= b and (a, b) != (c, d) for c, d in own)]
    return [code[a : b + 1] for a, b in innermost]


def ends_in_time(loop):
    return any("GLOBALTIMER" in i.operands for i in loop)


def until_end(code):
    """without what lies behind the kernel's end: subroutines of rare cases"""
    return code[
        : max((k + 1 for k, i in enumerate(code) if i.name == "EXIT" and not i.predicate), default=None)
    ]


def hottest(code, spans):
    """The loop with most tensor instructions, else the one with the widest loads, and most of them; or, where
    a thread does one thing and a loop is only for the rest at the end, what lies outside the loops."""
    loops = loops_of(code, spans)
    inside = {k for a, b in spans for k in range(a, b + 1)}
    straight = Loop([i for k, i in enumerate(until_end(code)) if k not in inside])

    def rank(loop):
        wanted = r"LDG(\.|$)" if loop is straight else r"LDG(\.|$)|LDGSTS|LDS(\.|$)"
        read = [i.bytes() for i in loop.body if re.match(wanted, i.name)]
        return loop.count("tensor"), max(read, default=0), sum(read), loop is not straight, len(loop.body)

    best = max(loops + [straight], key=rank)
    return best if rank(best)[1] or not loops else max(loops, key=rank)


# ---- the compiler ------------------------------------------------------------------------------------


def find_nvdisasm(nvcc):
    beside = os.path.join(os.path.dirname(shutil.which(nvcc) or nvcc), "nvdisasm")
    packages = [p for base in sys.path for p in glob.glob(os.path.join(base, "nvidia/cu*/bin/nvdisasm"))]
    for path in [shutil.which("nvdisasm"), beside, *packages]:
        if path and os.path.exists(path):
            os.access(path, os.X_OK) or os.chmod(path, 0o755)
            return path
    sys.exit("kernel_report.py: nvdisasm is not here, CUDA's is needed: pip install nvidia-cuda-nvdisasm")


def compile_kernels(nvcc, arch, folder):
    unit, cubin = os.path.join(ROOT, "layers/compute.cu"), os.path.join(folder, f"{arch}.cubin")
    options = ["-std=c++20", "-O3", "-DPRECISION_BF16", "-DDEVICE_CUDA", f"-arch={arch}", "-cubin"]
    options += ["-Xptxas", "-v"]
    result = subprocess.run([nvcc, *options, "-x", "cu", unit, "-o", cubin], capture_output=True, text=True)
    if result.returncode:
        sys.exit(f"kernel_report.py: {nvcc}: {result.stderr[-2000:]}")
    if advice := re.findall(r".*\(C75\d\d\).*", result.stderr):  # above all: "wgmma … are serialized"
        sys.exit(f"kernel_report.py: ptxas: {advice[0]}")
    text = subprocess.run(
        [find_nvdisasm(nvcc), "-c", cubin], capture_output=True, text=True, check=True
    ).stdout

    kernels = {}
    for block in re.split(r"Compiling entry function ", result.stderr)[1:]:
        number = lambda pattern: int((re.search(pattern, block) or [0, 0])[1])
        kernels[re.match(r"'(\S+)'", block)[1]] = {
            "registers": number(r"Used (\d+) registers"),
            "shared": number(r"(\d+) bytes smem"),
            "frame": number(r"(\d+) bytes stack frame"),
            "spilt": number(r"(\d+) bytes spill stores") + number(r"(\d+) bytes spill loads"),
        }

    names = subprocess.run(
        ["c++filt"], input="\n".join(kernels), capture_output=True, text=True, check=True
    ).stdout.splitlines()
    code = parse(text)

    out = {}
    for mangled, shown in zip(kernels, names):
        short = re.sub(r"^void |gpu::|__nv_|\(.*$|\b(std::)", "", shown).replace(", ", ",").strip()
        loop = hottest(*code[mangled])
        out[short] = {**kernels[mangled], "loop": loop, "code": code[mangled]}

    return out
