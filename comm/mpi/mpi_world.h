// mpi_world.h   shared by both transports over MPI: start and end, numbers on the host, diagnosis of hangs
//   A rank that has waited in a call for comm::timeout seconds asks the call's other members where they are,
//   a few at a time, and the lowest ranks first, the first of which ends the run: if thousands all asked one
//   another, connections, files and the time for answers would run out.
//   A member that is itself waiting prints its last calls, and answers with its call and that call's members,
//   which are then asked as well. A member that does not answer is computing, stopped or gone: it is the one
//   that the others wait for. If all answer, as hosts that wait for their devices do, the report names the
//   call that all of its members have reached.
#pragma once
#include <dlfcn.h>
#include <mpi.h>
#include <sched.h>
#include <sys/prctl.h>
#include <unistd.h>
#include <climits>
#include <cstdlib>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <sstream>
#include <string>
#include "../../layers/base/hardware.h"
#include "../comm.h"

namespace comm {
namespace {

bool running = false;
MPI_Comm control;  // over the world, for questions, answers and meetings only
constexpr int question_tag = 1, answer_tag = 2, arrival_tag = 3, departure_tag = 4;
constexpr int calls_kept = 8;  // of the last ones, to be printed
constexpr double answer_seconds = 3;  // for an answer
constexpr int asked_at_once = 8, most_gone = 64;  // ranks; none is asked when so many have not answered
constexpr double ask_delay = 0.5, longest_delay = 10;  // seconds: rank n begins to ask after n * ask_delay
double host_waited = 0;  // seconds
std::string last_calls[calls_kept];
long calls = 0;

struct Handle {
    MPI_Comm mpi;
    void* nccl = nullptr;
    long calls = 0;  // made on this group
    std::string name;
};
Handle& handle_of(const Group& g) { return *(Handle*)g.handle; }

// the call's description, the same on every rank that makes it, except for who sends and who receives
std::string note(const Group& g, const char* what, const char* label, long n) {
    Handle& h = handle_of(g);
    std::string call =
        text("call %ld of %s: %s of %s, %ld values", ++h.calls, h.name.c_str(), what, label, n);
    last_calls[calls++ % calls_kept] = call;
    return call;
}

void print_last_calls(const char* why) {
    static bool printed = false;
    if (printed) return;
    printed = true;
    std::string message = text("[rank %d] %s; its last calls:\n", world_rank(), why);
    for (long i = std::max(0L, calls - calls_kept); i < calls; i++)
        message += "    " + last_calls[i % calls_kept] + "\n";
    fputs(message.c_str(), stderr);
}

// answers a rank that asks where this one is: the call it waits in, and that call's members
void answer_questions(const std::string& here, const std::vector<int>& members) {
    int asked = 0;
    MPI_Status status;
    MPI_Iprobe(MPI_ANY_SOURCE, question_tag, control, &asked, &status);
    if (!asked) return;
    MPI_Recv(nullptr, 0, MPI_BYTE, status.MPI_SOURCE, question_tag, control, MPI_STATUS_IGNORE);
    print_last_calls(("waits in " + here).c_str());
    auto* answer = new std::string(here);  // not freed: the run is about to end
    for (int rank : members) *answer += text("\n%d", rank);
    MPI_Request request;
    MPI_Isend(answer->data(), (int)answer->size(), MPI_BYTE, status.MPI_SOURCE, answer_tag, control,
              &request);
}

// takes an answer that has arrived: from which rank, where it waits, and with whom
bool take_answer(int& rank, std::string& where, std::vector<int>& members) {
    int answered = 0, size = 0;
    MPI_Status status;
    MPI_Iprobe(MPI_ANY_SOURCE, answer_tag, control, &answered, &status);
    if (!answered) return false;
    MPI_Get_count(&status, MPI_BYTE, &size);
    std::string answer(size, 0);
    MPI_Recv(answer.data(), size, MPI_BYTE, status.MPI_SOURCE, answer_tag, control, MPI_STATUS_IGNORE);

    rank = status.MPI_SOURCE;
    std::istringstream lines(answer);
    std::getline(lines, where);
    members.clear();
    for (int member; lines >> member;) members.push_back(member);
    return true;
}

struct Answer {
    std::string where;         // the rank waits; "" until it has answered
    std::vector<int> members;  // of that call
};

// "call 7 of group forward, ranks 0 4": without the rest, which differs between sender and receiver
std::string call_of(const std::string& where) { return where.substr(0, where.find(": ")); }

// what can hang although all hosts answer: a device, or the network under a call that all its members made
std::string describe_hang(const std::map<int, Answer>& answers) {
    for (auto& [rank, answer] : answers)
        if (answer.members.empty())
            return text("all ranks answer, rank %d from %s: its device computes or hangs\n", rank,
                        answer.where.c_str());

    for (auto& [rank, answer] : answers) {
        auto is_there = [&](int member) {
            auto found = answers.find(member);
            return found != answers.end() && call_of(found->second.where) == call_of(answer.where);
        };
        if (std::all_of(answer.members.begin(), answer.members.end(), is_there))
            return text("all ranks answer, and all ranks of this group have reached %s: the device of one of "
                        "them hangs before it, or the network between them\n", answer.where.c_str());
    }
    return "all ranks answer, and wait in different calls: each for another, or for a device that hangs:\n";
}

[[noreturn]] void find_who_hangs(const std::string& here, const std::vector<int>& members) {
    print_last_calls(text("has waited %.0f s in %s", timeout, here.c_str()).c_str());
    double begin = seconds() + std::min(ask_delay * world_rank(), longest_delay);
    while (seconds() < begin) {
        answer_questions(here, members);
        usleep(1000);
    }

    std::map<int, Answer> answers = {{world_rank(), {here, members}}};
    std::set<int> known = {world_rank()}, asked, gone;  // asked: without an answer yet
    std::deque<int> to_ask;
    auto add = [&](const std::vector<int>& ranks) {
        for (int rank : ranks)
            if (known.insert(rank).second) to_ask.push_back(rank);
    };

    // whoever answers names the ranks that it waits for: they are asked as well
    add(members);
    double since = 0;
    while (!asked.empty() || (!to_ask.empty() && gone.size() < most_gone)) {
        if (asked.empty()) {
            MPI_Request request;
            for (; !to_ask.empty() && asked.size() < asked_at_once; to_ask.pop_front()) {
                MPI_Isend(nullptr, 0, MPI_BYTE, to_ask.front(), question_tag, control, &request);
                asked.insert(to_ask.front());
                answers[to_ask.front()] = {};
            }
            since = seconds();
        }

        int rank;
        std::string where;
        std::vector<int> others;
        answer_questions(here, members);
        if (take_answer(rank, where, others)) {
            asked.erase(rank);
            gone.erase(rank);
            add(others);
            answers[rank] = {where, std::move(others)};
        } else {
            sched_yield();
        }
        if (seconds() - since > answer_seconds) gone.merge(asked);  // asked is empty then
    }

    std::string silent, elsewhere;
    for (auto& [rank, answer] : answers) {
        const std::string& where = answer.where;
        if (where.empty()) silent += text(" %d", rank);
        else if (where != here) elsewhere += text("    rank %d waits in %s\n", rank, where.c_str());
    }

    std::string what = silent.empty() ? describe_hang(answers)
        : text("waits for rank%s, which does not answer: it computes, is stopped or is gone\n",
               silent.c_str());
    fputs((text("[rank %d] ", world_rank()) + what + elsewhere).c_str(), stderr);
    // the others ask as well
    for (double start = seconds(); seconds() - start < 1;) answer_questions(here, members);
    abort_all(1);
}

void advance_comm_streams();  // the transport's work while this rank waits

// how many of this host's ranks there are for each of its cores; 1 where the launcher does not say
double ranks_per_core() {
    static const double ratio = [] {
        for (const char* name : {"OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS"})  // Open MPI, MPICH
            if (const char* ranks = getenv(name)) return atof(ranks) / sysconf(_SC_NPROCESSORS_ONLN);
        return 1.0;
    }();
    return ratio;
}

// What a rank does between two polls of a call that it waits for. After 100 polls it yields the processor.
// After a second, or after 1000 polls if ranks outnumber the cores, it sleeps: 50 us, or 10 us times the
// ranks per core if that is longer. So waiting ranks leave the cores to those that they wait for. Every
// 256 polls, or 16 when it sleeps, it answers questions and checks the timeout.
class WaitLoop {
    double start = seconds();
    long turns = 0;
    bool sleeps = false;

public:
    WaitLoop() = default;
    WaitLoop(const WaitLoop&) = delete;
    ~WaitLoop() { host_waited += seconds() - start; }
    void turn(const std::string& here, const std::vector<int>& members) {
        if (sleeps) usleep((useconds_t)std::max(50.0, 10 * ranks_per_core()));
        else if (turns > 100) sched_yield();
        if (++turns % (sleeps ? 16 : 256) == 0) {
            answer_questions(here, members);
            sleeps = seconds() - start > 1 || (turns > 1000 && ranks_per_core() > 1);
            if (seconds() - start > timeout) find_who_hangs(here, members);
        }
        advance_comm_streams();  // last: it may remove the call that owns `members`
    }
};

void wait_for(MPI_Request request, const std::string& here, const std::vector<int>& members) {
    WaitLoop loop;
    for (int done = 0;;) {
        MPI_Test(&request, &done, MPI_STATUS_IGNORE);
        if (done) return note_progress();
        loop.turn(here, members);
    }
}

// A barrier with a timeout, over point-to-point messages: returns when all members have arrived. The calls of
// MPI and NCCL that make a group block without a timeout; after a meeting no member is late for them.
void meet(const std::string& group, const std::vector<int>& members, int own) {
    std::string here = "the meeting for " + group;
    last_calls[calls++ % calls_kept] = here;
    auto exchange = [&](int with, int tag, bool sends) {
        MPI_Request request;
        if (sends) MPI_Isend(nullptr, 0, MPI_BYTE, members[with], tag, control, &request);
        else MPI_Irecv(nullptr, 0, MPI_BYTE, members[with], tag, control, &request);
        wait_for(request, here, members);
    };

    // a binary tree: arrivals rise to the root, departures come down
    int size = (int)members.size(), parent = (own - 1) / 2;
    auto each_child = [&](int tag, bool sends) {
        for (int child = 2 * own + 1; child <= 2 * own + 2; child++)
            if (child < size) exchange(child, tag, sends);
    };

    each_child(arrival_tag, false);
    if (own > 0) {
        exchange(parent, arrival_tag, true);
        exchange(parent, departure_tag, false);
    }
    each_child(departure_tag, true);
}

// whether mpirun or srun started this program; one started by hand needs no MPI
bool launched() {
    for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK", "PMI_RANK"})
        if (getenv(name)) return true;
    const char* tasks = getenv("SLURM_STEP_NUM_TASKS");
    if (tasks && atoi(tasks) > 1)
        fail("srun started %s tasks, but MPI sees none of them, so each would train alone: start with srun "
             "--mpi=pmix (SLURM_MPI_TYPE=pmix under launch_slurm.sh; srun --mpi=list says what this Slurm "
             "has)", tasks);
    return false;
}

// For hosts with more ranks than cores. In MPI_Init and MPI_Finalize, Open MPI polls every 100 us until all
// ranks have come, and the waiting ranks take the cores from the others. While this exists, this thread's
// timer slack is 100 us times the ranks per core: all ranks together poll about as often as one per core
// would. 280 ranks on two cores start in 14 s, not in 97.
struct RareWakeups {
    RareWakeups() {
        const double ns = ranks_per_core() * 100'000;
        if (ranks_per_core() > 1) prctl(PR_SET_TIMERSLACK, (unsigned long)ns);
    }

    ~RareWakeups() { prctl(PR_SET_TIMERSLACK, 0ul); }  // as it was
};

// An MPI call has failed: ends the run on all ranks. Ranks that make different calls, or calls of different
// sizes, mostly end here, with MPI_ERR_TRUNCATE
void end_on_mpi_error(MPI_Comm*, int* code, ...) {
    char reason[MPI_MAX_ERROR_STRING];
    int length = 0;
    MPI_Error_string(*code, reason, &length);
    print_last_calls(text("%s: if ranks have made different calls, compare their last ones", reason).c_str());
    abort_all(1);
}

void start_mpi(int* argc, char*** argv) {
    {
        RareWakeups here;
        int provided;
        MPI_Init_thread(argc, argv, MPI_THREAD_FUNNELED, &provided);  // other threads make no MPI calls
    }
    running = true;
    // a launcher of another MPI than this program's: MPI_Init then makes each rank a world of its own
    for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"}) {
        const char* size = getenv(name);
        if (size && atoi(size) > 1 && world_size() == 1)
            fail("started as %s ranks, but this program's MPI sees only one, so each would train alone: use "
                 "the mpirun of the MPI that it was built with (MPICXX), or rebuild it with the other MPI",
                 size);
        if (size) break;
    }

    MPI_Errhandler handler;
    MPI_Comm_create_errhandler(end_on_mpi_error, &handler);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, handler);  // all others are made from this one
    MPI_Comm_dup(MPI_COMM_WORLD, &control);
    MPI_Comm host;
    int local_rank = 0;
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &host);
    MPI_Comm_rank(host, &local_rank);
    MPI_Comm_free(&host);
    use_device(local_rank);
}

}  // namespace

Group make_host_group(const char* name, const std::vector<int>& members) {
    Group g = {name, 0, (int)members.size(), members, nullptr};
    for (int i = 0; i < g.size; i++) if (members[i] == world_rank()) g.rank = i;
    if (g.size == 1) return g;

    auto* h = new Handle;  // lives until the end of the run
    h->name = text("group %s, ranks", name);
    for (int i = 0; i < g.size; i++) {
        if (i == 4 && g.size > 8) {
            h->name += " …";
            i = g.size - 2;
        }
        h->name += text(" %d", members[i]);
    }

    meet(h->name, members, g.rank);
    MPI_Group world, group;
    MPI_Comm_group(MPI_COMM_WORLD, &world);
    MPI_Group_incl(world, g.size, members.data(), &group);
    MPI_Comm_create_group(MPI_COMM_WORLD, group, 0, &h->mpi);
    MPI_Group_free(&group);
    MPI_Group_free(&world);
    g.handle = h;
    return g;
}

Group everyone() {
    static Group world = [] {
        std::vector<int> all;
        for (int i = 0; i < world_size(); i++) all.push_back(i);
        return make_host_group("everyone", all);
    }();
    return world;
}

void finish() {
    RareWakeups here;
    if (running) MPI_Finalize();
}

void abort_all(int code) {
    fflush(stdout);
    fflush(stderr);
    if (running) MPI_Abort(MPI_COMM_WORLD, code);
    _Exit(code);
}

int world_rank() {
    int rank = 0;
    if (running) MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    return rank;
}

SentMessages sent_messages() {
    using Counter = long(long* peers);
    static auto* counter = (Counter*)dlsym(RTLD_DEFAULT, "mpi_messages_sent");
    SentMessages sent;
    if (counter) sent.count = counter(&sent.peers);
    return sent;
}

int world_size() {
    int size = 1;
    if (running) MPI_Comm_size(MPI_COMM_WORLD, &size);
    return size;
}

std::vector<int64_t> gather_numbers(const Group& g, const std::vector<int64_t>& mine, const char* label) {
    if (g.size == 1) return mine;
    // gathered as a sum of vectors that are 0 except for the rank's own part: a rank talks to about
    // log2(size) others; with MPI's own non-blocking all-gather it would talk to all
    std::vector<int64_t> all(mine.size() * g.size, 0);
    std::copy(mine.begin(), mine.end(), all.begin() + (long)mine.size() * g.rank);
    if (all.size() > INT_MAX) fail("%s: %zu numbers of %d ranks in one call", label, all.size(), g.size);
    MPI_Request request;
    std::string here = note(g, "gathering", label, (long)mine.size());
    MPI_Iallreduce(MPI_IN_PLACE, all.data(), (int)all.size(), MPI_INT64_T, MPI_SUM, handle_of(g).mpi,
                   &request);
    wait_for(request, here, g.members);
    return all;
}

void barrier(const Group& g, const char* label) {
    if (g.size == 1) return;
    MPI_Request request;
    std::string here = note(g, "barrier", label, 0);
    MPI_Ibarrier(handle_of(g).mpi, &request);
    wait_for(request, here, g.members);
}

}  // namespace comm
