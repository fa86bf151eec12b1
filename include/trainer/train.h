// SPDX-License-Identifier: Apache-2.0
// train.h: a run: from a configuration to trained weights, numbers and files. Floor 7.
#ifndef TRAINER_TRAIN_H
#define TRAINER_TRAIN_H

#include "trainer/config.h"
#include "trainer/model.h"

extern const struct config_field train_fields[];  // train.*, evaluation.*, export.*, model.*
extern const int train_field_count;

// What the command line adds to the configuration. Strings are borrowed for the run.
struct run_options {
    const struct model_def *model;
    const char *mode;            // one of mode_names
    const char *program;         // "classifier_trainer"
    const char *model_dir;       // NULL: nothing is written
    const char *checkpoint;      // --checkpoint, or NULL = the latest of model_dir
    const char *predict_input, *predict_output;  // of mode predict; output NULL = stdout
    const char *command_line;    // for the report
    bool quiet;                  // results only
    bool profile;                // time every op, print the table at the end
    bool clean;                  // remove what an earlier run left in model_dir
};

// A way to run: one row each. Blocks; the status becomes the exit code.
struct mode_def {
    const char *name;
    const char *help;
    enum status (*run)(const struct run_options *options, struct config *config);
};
extern const struct mode_def mode_table[];
extern const int mode_count;
const struct mode_def *mode_find(const char *name);  // NULL when unknown

// Ctrl-C and SIGTERM: the first asks the loop to finish its step, save and stop (ERR_INTERRUPTED);
// the second ends the process at once.
void stop_signals_install(void);
int stop_signal(void);  // 0, or the signal that asked for the stop

#endif
