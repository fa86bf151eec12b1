// SPDX-License-Identifier: Apache-2.0
// schedule.c: learning rate as a function of the step, in double. A linear warm-up from 0 goes before
// any of them.
#include <math.h>
#include <string.h>

#include "trainer/optimizer.h"

static double constant_rate(const struct schedule *s, double t)
{
    (void)t;
    return s->initial;
}

// The value before a boundary holds up to and including the boundary step (TensorFlow's rule).
static double stepwise_rate(const struct schedule *s, double t)
{
    int i = 0;
    while (i < s->boundary_count && t > s->boundaries[i]) {
        i++;
    }
    return s->values[i];
}

// initial * rate^(t / decay_steps), the exponent floored for a staircase.
static double exponential_rate(const struct schedule *s, double t)
{
    double exponent = t / s->decay_steps;
    return s->initial * pow(s->rate, s->staircase ? floor(exponent) : exponent);
}

// Half a cosine from initial to final over decay_steps, counted from the end of the warm-up.
static double cosine_rate(const struct schedule *s, double t)
{
    double x = MIN(MAX(t - s->warmup, 0), s->decay_steps) / s->decay_steps;
    double half = (1 + cos(3.14159265358979323846 * x)) / 2;
    return (s->initial - s->final) * half + s->final;
}

// (initial - final) * (1 - t / decay_steps)^power + final, counted from step 0 (as BERT's).
static double polynomial_rate(const struct schedule *s, double t)
{
    double x = MIN(t, s->decay_steps) / s->decay_steps;
    return (s->initial - s->final) * pow(1 - x, s->power) + s->final;
}

static const struct schedule_def constant = {"constant", "initial_lr throughout", constant_rate};
static const struct schedule_def epoch_steps = {
    "epoch_steps", "values by epoch, as the Keras tutorial's callback", stepwise_rate};
static const struct schedule_def stepwise = {
    "stepwise", "multipliers from boundaries (in epochs) on", stepwise_rate};
static const struct schedule_def piecewise = {
    "piecewise_constant_with_warmup", "the older name of stepwise", stepwise_rate};
static const struct schedule_def exponential = {
    "exponential", "initial_lr * decay_rate ^ (epochs / decay_epochs)", exponential_rate};
static const struct schedule_def cosine = {
    "cosine_with_warmup", "half a cosine from initial_lr to final_lr", cosine_rate};
static const struct schedule_def polynomial = {
    "polynomial", "from initial_lr to final_lr by a power", polynomial_rate};

const struct schedule_def *const schedule_table[] = {
    &constant, &epoch_steps, &stepwise, &piecewise, &exponential, &cosine, &polynomial, NULL};

static const char *const schedule_names[] = {
    "constant",    "epoch_steps",        "stepwise",   "piecewise_constant_with_warmup",
    "exponential", "cosine_with_warmup", "polynomial", NULL};

#define LR "model.learning_rate."
const struct config_field schedule_fields[] = {
    {LR "name", CONFIG_STRING, 0, "stepwise", 0, 0, schedule_names, "Learning-rate schedule."},
    {LR "initial_lr", CONFIG_FLOAT, CONFIG_NULLABLE, "0.1", 0, 1e6, NULL,
     "Rate at the start (after the warm-up)."},
    {LR "scale_by_batch_size", CONFIG_FLOAT, 0, "0.0", 0, 1, NULL,
     "Above 0: initial_lr is multiplied by this and the global batch."},
    {LR "warmup_epochs", CONFIG_FLOAT, 0, "0", 0, 1e6, NULL,
     "Epochs in which the rate grows from 0."},
    {LR "boundaries", CONFIG_FLOAT_LIST, CONFIG_NULLABLE, "null", 0, 1e9, NULL,
     "stepwise, epoch_steps: epochs at which the rate changes."},
    {LR "multipliers", CONFIG_FLOAT_LIST, CONFIG_NULLABLE, "null", 0, 1e6, NULL,
     "stepwise: one more than boundaries; each is multiplied by the global batch."},
    {LR "values", CONFIG_FLOAT_LIST, CONFIG_NULLABLE, "null", 0, 1e6, NULL,
     "epoch_steps: the rates, one more than boundaries."},
    {LR "examples_per_epoch", CONFIG_INT, CONFIG_NULLABLE, "null", 1, 1e15, NULL,
     "stepwise: examples that make an epoch of the boundaries; null = those of the data."},
    {LR "decay_epochs", CONFIG_FLOAT, CONFIG_NULLABLE, "null", 0, 1e9, NULL,
     "exponential, polynomial: epochs of one decay; null = all epochs."},
    {LR "decay_steps", CONFIG_FLOAT, CONFIG_NULLABLE, "null", 1, 1e15, NULL,
     "The same in steps."},
    {LR "decay_rate", CONFIG_FLOAT, CONFIG_NULLABLE, "null", 0, 1, NULL, "exponential: factor."},
    {LR "staircase", CONFIG_BOOL, CONFIG_NULLABLE, "null", 0, 0, NULL,
     "exponential: whole decays only."},
    {LR "final_lr", CONFIG_FLOAT, 0, "0.0", 0, 1e6, NULL,
     "cosine_with_warmup, polynomial: rate at the end."},
    {LR "power", CONFIG_FLOAT, 0, "1.0", 0, 100, NULL, "polynomial: power."},
};
const int schedule_field_count = ARRAY_COUNT(schedule_fields);

static double optional(const struct config *config, const char *path, double otherwise)
{
    return config_is_null(config, path) ? otherwise : config_float(config, path);
}

// Boundaries in steps, and one value more than boundaries.
static enum status init_steps(struct schedule *s, const struct config *config, bool by_epoch,
                              int64_t steps_per_epoch, int64_t global_batch)
{
    const char *values = by_epoch ? LR "values" : LR "multipliers";
    char place[256];
    s->boundary_count = config_count(config, LR "boundaries");
    if (s->boundary_count > (int)ARRAY_COUNT(s->boundaries)) {
        return FAIL(ERR_USAGE, "%s: %d boundaries, at most %zu are supported",
                    config_place(config, LR "boundaries", place, sizeof place), s->boundary_count,
                    ARRAY_COUNT(s->boundaries));
    }
    if (config_count(config, values) != s->boundary_count + 1) {
        return FAIL(ERR_USAGE,
                    "%s: " LR "boundaries has %d entries and %s %d; expected one more value than "
                    "boundaries", config_place(config, values, place, sizeof place),
                    s->boundary_count, values, config_count(config, values));
    }
    double epoch = (double)steps_per_epoch;
    if (!by_epoch && !config_is_null(config, LR "examples_per_epoch")) {
        epoch = (double)(config_int(config, LR "examples_per_epoch") / global_batch);
    }
    for (int i = 0; i <= s->boundary_count; i++) {
        double value = config_float_at(config, values, i);
        s->values[i] = by_epoch ? value : value * (double)global_batch;
        if (i < s->boundary_count) {
            // By epoch, the first step of epoch b has the new value: the last before it the old one.
            s->boundaries[i] =
                config_float_at(config, LR "boundaries", i) * epoch - (by_epoch ? 1 : 0);
        }
    }
    return STATUS_OK;
}

enum status schedule_init(struct schedule *schedule, const struct config *config,
                          int64_t steps_per_epoch, int64_t epochs, int64_t global_batch)
{
    const char *name = config_string(config, LR "name");
    *schedule = (struct schedule){0};
    for (const struct schedule_def *const *row = schedule_table; *row; row++) {
        if (strcmp((*row)->name, name) == 0) {
            schedule->def = *row;
        }
    }
    CHECK(schedule->def, "schedule '%s' passed the choices but has no row", name);
    double scale = config_float(config, LR "scale_by_batch_size");
    double epoch = (double)steps_per_epoch;
    schedule->initial = optional(config, LR "initial_lr", 0.1);
    schedule->initial *= scale > 0 ? scale * (double)global_batch : 1;
    schedule->final = config_float(config, LR "final_lr");
    schedule->power = config_float(config, LR "power");
    schedule->warmup = config_float(config, LR "warmup_epochs") * epoch;
    schedule->rate = optional(config, LR "decay_rate", 1);
    schedule->staircase =
        !config_is_null(config, LR "staircase") && config_bool(config, LR "staircase");
    bool is_cosine = schedule->def == &cosine;
    double whole = (double)epochs * epoch - (is_cosine ? schedule->warmup : 0);
    double decay = config_is_null(config, LR "decay_epochs")
                       ? whole
                       : config_float(config, LR "decay_epochs") * epoch;
    schedule->decay_steps = MAX(optional(config, LR "decay_steps", decay), 1);
    if (schedule->def->rate == stepwise_rate) {
        return init_steps(schedule, config, schedule->def == &epoch_steps, steps_per_epoch,
                          global_batch);
    }
    return STATUS_OK;
}

double schedule_rate(const struct schedule *schedule, int64_t step)
{
    double t = (double)step;
    if (t < schedule->warmup) {
        double peak = schedule->def->rate == stepwise_rate ? schedule->values[0]
                                                           : schedule->initial;
        return peak * t / schedule->warmup;
    }
    return schedule->def->rate(schedule, t);
}
