// SPDX-License-Identifier: Apache-2.0
// report_impl.h: report.html: plain data in, one self-contained file out. Private to src/train.
#ifndef TRAINER_REPORT_IMPL_H
#define TRAINER_REPORT_IMPL_H

#include "train_impl.h"

struct report_fact {
    const char *name, *value;
};

// A wrong prediction with its picture.
struct report_mistake {
    struct mistake mistake;
    const uint8_t *pixels;  // (H, W, C)
};

// Everything the page shows. Borrowed during the call.
struct report_data {
    const char *title;               // "mnist_cnn on mnist"
    const char *outcome;             // "running", "done", "stopped", or the error
    const char *command_line, *config_yaml;
    const struct report_fact *facts;  // environment and run
    int fact_count;
    const struct epoch_row *epochs;
    int epoch_count;
    int64_t epochs_planned;
    const float *step_losses;        // a loss every `step_stride` steps, of this process
    int step_count;
    int64_t step_first, step_stride;
    const struct evaluation *evaluation;  // count 0 = none yet
    const char *const *class_names;       // NULL = numbers
    const struct report_mistake *mistakes;
    int mistake_count;
    struct shape image;              // (H, W, C)
    const struct net *net;
};

enum status report_write(const char *path, const struct report_data *data);

// "data:image/png;base64,..." of uint8 pixels (H, W, 1 or 3).
void png_data_uri(struct text *out, const uint8_t *pixels, struct shape shape);
// A line chart as SVG, with the values in it for the page's script.
struct chart_series {
    const char *name, *color;   // a CSS variable's name
    const double *values;       // [count], NaN = no point
};
void chart_svg(struct text *out, const char *title, const double *x, int count,
               const struct chart_series *series, int series_count, const char *x_name, bool percent);
extern const char report_style[], report_script[];

#endif
