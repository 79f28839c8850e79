// sample_reader.h   reads a step's samples one step ahead, in a background thread
#pragma once
#include <chrono>
#include <future>
#include "../model/stage.h"

class SampleReader {
    StepSamples upcoming, samples;

public:
    std::future<void> reading;  // of `upcoming`

    void begin(Blend& blend, const Model& model, uint64_t first, int batch) {
        if (reading.valid()) reading.wait();  // the blend is read by one thread at a time
        upcoming = {};
        int other = 1 - model.token_buffer;
        reading = std::async(std::launch::async, [this, &blend, &model, other, first, batch] {
            upcoming = read_samples(blend, model, other, first, batch);
        });
    }

    // waits at most `seconds` for the read that was begun; false: it is not done yet
    bool await(double seconds, std::string& error) {
        if (!reading.valid()) return true;
        auto patience = std::chrono::duration<double>(seconds);
        if (reading.wait_for(patience) != std::future_status::ready) return false;
        try {
            reading.get();
        } catch (const std::exception& e) {
            error = e.what();
        }
        return true;
    }

    // see take_samples(), trainer.h
    const StepSamples& take(Model& model) {
        samples = std::move(upcoming);
        model.token_buffer = samples.token_buffer;
        return samples;
    }

    ~SampleReader() {
        if (reading.valid()) reading.wait();
    }
};
