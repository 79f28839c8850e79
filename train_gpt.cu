// train_gpt.cu   trains a GPT: a step, and the loop over steps
//   ./train_gpt --help lists the options; bash scripts/demo.sh shows a run. Read train_step first, then go on
//   in the README's reading order. layers/README.md follows a step on one GPU file by file ("One step on one
//   GPU"): which options are on, what does nothing on one rank, and what the host waits for.
#include "layers/inference/evaluate.h"
#include "layers/plan/observe.h"
#include "layers/run/trainer.h"
#include "layers/start/start.h"

// ---- a step ----------------------------------------------------------------------------------------------

// Forward and backward of this rank's micro-batches: their losses, and the sums of their gradients.
// dloss: the gradient of the step's loss with respect to one token's loss
void compute_gradients(Model& model, const Trainer& trainer, const StepSamples& samples, real dloss) {
    int N = model.setup.B * model.shape.T, micro_batches = samples.micro_batches;
    const int* tokens = model.host_tokens[samples.token_buffer];  // of all micro-batches
    clear_losses(model);
    if (model.grid.p > 1) {
        std::vector<int> rows(micro_batches, N);
        return run_schedule(model, trainer.schedules.at(samples.batch), rows, tokens, dloss);
    }

    // one stage: a plain loop
    for (int i = 0; i < micro_batches; i++) {
        MicroBatch mb = {.index = i, .is_last_micro_batch = i == micro_batches - 1, .chunk = 0, .N = N,
                         .in_flight = model.in_flight[0], .input = model.inputs[0],
                         .dx_buffer = &model.dx_buffers[0], .host_tokens = tokens, .dloss = dloss};
        copy_tokens(model, mb);
        forward(model, mb);   // tokens -> logits -> losses and the logits' gradient
        backward(model, mb);  // -> gradients: the first micro-batch sets them, later ones add
    }
}

// One optimizer step over a global batch: load, forward, loss, backward, reduce (begun within backward),
// update. The host waits for results only at the end: the gradient norm, whether a wait in attention's
// kernels has expired, the checksums of the optimizer state, the next samples, the losses.
StepResult train_step(Run& run, Trainer& trainer) {
    Model& model = *trainer.model;
    Optimizer& optimizer = *trainer.optimizer;
    const Options& o = run.options;
    double start = seconds(), waited = comm::waited_seconds();
    StepResult result;

    // in one of two host buffers, filled while the previous step computed from the other
    const StepSamples& samples = take_samples(trainer);
    uint64_t tokens = (uint64_t)samples.batch * model.shape.T;
    double counted = samples.counted_tokens();
    // the step's loss is the mean over the tokens that count: the division is in dloss, gradients are sums
    real dloss = (real)(1 / counted);
    prefetch_samples(run, trainer, samples.first + samples.batch);  // into the other buffer

    result.learning_rate = scheduled_rate(o, (double)(run.state.tokens_seen + tokens));
    // the device skips an update whose gradient norm or sum of losses is not finite or above these limits,
    // which are infinite without --spike-z
    double norm_limit = run.state.norms.limit(o.spike_z), loss_limit = run.state.losses.limit(o.spike_z);
    optimizer.set_hyper_parameters(o, result.learning_rate, run.state.updates + 1, norm_limit,
                                   loss_limit * counted);

    // gradients are not zeroed here: a step's first micro-batch sets them (wte's: end of backward, stage.h)
    auto gradients = [&] { compute_gradients(model, trainer, samples, dloss); };
    auto update = [&] {
        complete_gradients(model);  // waits for the sums over d, then sums over t and over wte's copies
        update_parameters(model, optimizer);
    };
    enqueue_step(run, trainer, samples, gradients, update);  // or launches an earlier step's capture

    // the host's first wait: copy_to_host waits for the whole step. (Over several ranks it may have waited
    // before, in MPI calls or for room in a queue)
    UpdateDecision decision;
    copy_to_host(&decision, optimizer.decision, sizeof decision, model.stream);
    result.norm = decision.norm;
    result.updated = decision.will_update;
    run.state.advance(samples.batch, tokens, result.updated);  // steps and tokens in any case

    // the host's other waits; sets result.loss, from each token's (the device's sum serves its decision only)
    exchange_reports(result, run, trainer, samples, start, waited);
    result.seconds = seconds() - start;
    return result;
}

// ---- train -----------------------------------------------------------------------------------------------

// the evaluations after a step, into `result`; false if the validation set cannot be read
bool evaluate_step(StepResult& result, Run& run, Trainer& trainer, InferenceJobs& jobs) {
    if (run.validation && !evaluate_loss(result.validation_loss, run, trainer)) return false;
    result.tasks = evaluate_tasks(run, *trainer.model, jobs);
    return true;
}

void train(Run& run, Trainer& trainer, InferenceJobs& jobs, StepObserver& observer) {
    const Options& o = run.options;
    Model& model = *trainer.model;
    auto due = [&](long every) { return every && run.state.step % every == 0; };

    bool has_begun = run.state.step < run.last_step;
    if (!has_begun) {
        report_nothing_to_do(run, trainer);
        evaluate_tasks(run, model, jobs);
    }

    if (has_begun) prefetch_samples(run, trainer, run.state.samples_seen);
    await_samples(trainer);
    while (run.state.step < run.last_step && !trainer.stop) {
        int batch = batch_after(o, run.state.samples_seen);
        observer.begin_step(model, batch);
        StepResult result = train_step(run, trainer);
        observer.end_step(model, batch, result);

        bool is_corrupt = result.any(&RankReport::is_corrupt);  // then neither evaluated nor saved
        bool evaluates = !is_corrupt && (due(o.evaluate_every) || run.state.step == run.last_step);
        bool can_read = !evaluates || evaluate_step(result, run, trainer, jobs);
        report_step(result, trainer, (double)batch * model.shape.T);
        if (!can_read) save_and_end(run, trainer, trainer.data_error);
        act_on_reports(result, run, trainer);

        if (due(o.check_every)) check_replicas(run, trainer, result.seconds);
        if (due(o.sample_every)) print_sample(run, model, "", (uint64_t)run.state.step << 32);
    }

    end_training(run, trainer, has_begun);
    observer.print(model, *trainer.optimizer);
}

// ---- main ------------------------------------------------------------------------------------------------

int main(int argc, char** argv) {
    prepare_process(argv);
    Run run;
    InferenceJobs jobs;
    Trainer trainer;  // declared outside the try: freeing memory could block on a hung device

    try {
        comm::start(&argc, &argv);
        std::unique_ptr<StepObserver> observer = start(run, trainer, jobs, argc, argv);
        if (observer) train(run, trainer, jobs, *observer);
    } catch (const std::exception& e) {
        fflush(stdout);
        std::string who = comm::world_size() > 1 ? text("[rank %d] ", comm::world_rank()) : "";
        fprintf(stderr, "%strain_gpt: %s\n", who.c_str(), e.what());
        comm::abort_all(1);
    }
    comm::finish();
    return 0;
}
