// SPDX-License-Identifier: Apache-2.0
// report.c: writes report.html.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "report_impl.h"
#include "trainer/file.h"

enum { MATRIX_CLASSES = 20, PAIRS_SHOWN = 15 };  // more classes: the most confused pairs instead

static void class_name(struct text *out, const struct report_data *data, int k)
{
    char number[16];
    snprintf(number, sizeof number, "%d", k);
    text_append_html(out, data->class_names ? data->class_names[k] : number);
}

// ---- Head -------------------------------------------------------------------------------------------

static void big_number(struct text *out, const char *value, const char *label)
{
    text_printf(out, "<div><b>%s</b><span>%s</span></div>", value, label);
}

// Wilson's interval of a share, 95 %.
static void wilson(double hits, double n, double *low, double *high)
{
    const double z = 1.959964;  // 97.5 % point of the normal distribution
    double p = hits / n, centre = (p + z * z / (2 * n)) / (1 + z * z / n);
    double half = z / (1 + z * z / n) * sqrt(p * (1 - p) / n + z * z / (4 * n * n));
    *low = centre - half;
    *high = centre + half;
}

static void put_big_numbers(struct text *out, const struct report_data *data)
{
    char value[64], label[96];
    const struct evaluation *e = data->evaluation;
    double seconds = 0, speed = 0;
    for (int i = 0; i < data->epoch_count; i++) {
        seconds += data->epochs[i].seconds;
        speed = data->epochs[i].examples_per_second > 0 ? data->epochs[i].examples_per_second : speed;
    }
    text_append(out, "<div class=\"big\">");
    if (e->count) {
        double low, high;
        wilson((double)e->correct, (double)e->count, &low, &high);
        snprintf(value, sizeof value, "%.2f %%", 100 * e->accuracy);
        snprintf(label, sizeof label, "test accuracy (95 %%: %.2f to %.2f)", 100 * low, 100 * high);
        big_number(out, value, label);
        snprintf(value, sizeof value, "%.4f", e->loss);
        snprintf(label, sizeof label, "test loss, %lld examples", (long long)e->count);
        big_number(out, value, label);
    }
    snprintf(value, sizeof value, "%d of %lld", data->epoch_count, (long long)data->epochs_planned);
    big_number(out, value, "epochs");
    snprintf(value, sizeof value, seconds < 100 ? "%.1f s" : "%.0f s", seconds);
    big_number(out, value, "time in this process");
    if (speed > 0) {
        snprintf(value, sizeof value, "%.0f", speed);
        big_number(out, value, "examples a second");
    }
    text_append(out, "</div>\n");
}

static void put_head(struct text *out, const struct report_data *data)
{
    bool running = strcmp(data->outcome, "running") == 0, done = strcmp(data->outcome, "done") == 0;
    text_append(out, "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">"
                "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">");
    if (running) {
        text_append(out, "<meta http-equiv=\"refresh\" content=\"10\">");
    }
    text_append(out, "<title>");
    text_append_html(out, data->title);
    text_printf(out, "</title><style>%s</style></head><body><main><h1>", report_style);
    text_append_html(out, data->title);
    text_printf(out, "<span class=\"state%s\">", done ? "" : running ? " on" : " bad");
    text_append_html(out, strlen(data->outcome) > 12 ? "failed" : data->outcome);
    text_append(out, "</span></h1><p class=\"sub\">");
    text_append_html(out, strlen(data->outcome) > 12 ? data->outcome : data->command_line);
    text_append(out, "</p>\n");
}

// ---- Curves -----------------------------------------------------------------------------------------

static void put_epoch_charts(struct text *out, const struct report_data *data)
{
    int n = data->epoch_count;
    double *columns = MEM_NEW_ARRAY(double, 7 * n);
    double *x = columns, *loss = x + n, *val_loss = loss + n, *accuracy = val_loss + n,
           *val_accuracy = accuracy + n, *rate = val_accuracy + n, *speed = rate + n;
    for (int i = 0; i < n; i++) {
        const struct epoch_row *row = &data->epochs[i];
        x[i] = (double)row->epoch;
        loss[i] = row->loss;
        val_loss[i] = row->val_loss;
        accuracy[i] = row->accuracy;
        val_accuracy[i] = row->val_accuracy;
        rate[i] = row->learning_rate;
        speed[i] = row->examples_per_second > 0 ? row->examples_per_second : NAN;
    }
    struct chart_series two[2] = {{"train", "--train", loss}, {"validation", "--val", val_loss}};
    chart_svg(out, "Loss", x, n, two, 2, "epoch", false);
    two[0].values = accuracy;
    two[1].values = val_accuracy;
    chart_svg(out, "Accuracy", x, n, two, 2, "epoch", true);
    struct chart_series one = {"learning rate", "--train", rate};
    chart_svg(out, "Learning rate", x, n, &one, 1, "epoch", false);
    one = (struct chart_series){"examples/s", "--train", speed};
    chart_svg(out, "Speed (examples a second)", x, n, &one, 1, "epoch", false);
    mem_free(columns);
}

static void put_step_chart(struct text *out, const struct report_data *data)
{
    int n = data->step_count;
    double *x = MEM_NEW_ARRAY(double, n), *y = MEM_NEW_ARRAY(double, n);
    for (int i = 0; i < n; i++) {
        x[i] = (double)(data->step_first + i * data->step_stride);
        y[i] = (double)data->step_losses[i];
    }
    struct chart_series series = {"loss", "--train", y};
    if (n > 1) {
        chart_svg(out, "Loss of single steps", x, n, &series, 1, "step", false);
    }
    mem_free(x);
    mem_free(y);
}

static void put_cell(struct text *out, double value, const char *format)
{
    text_append(out, "<td>");
    if (isfinite(value)) {
        char buffer[32];
        snprintf(buffer, sizeof buffer, format, value);
        text_append(out, buffer);
    } else {
        text_append(out, "-");
    }
    text_append(out, "</td>");
}

static void put_epoch_table(struct text *out, const struct report_data *data)
{
    text_append(out, "<details><summary>All epochs</summary><div class=\"scroll\"><table><tr><th>epoch"
                "<th>loss<th>accuracy<th>val. loss<th>val. accuracy<th>learning rate<th>seconds"
                "<th>examples/s</tr>");
    for (int i = 0; i < data->epoch_count; i++) {
        const struct epoch_row *row = &data->epochs[i];
        text_printf(out, "<tr><td>%lld</td>", (long long)row->epoch);
        put_cell(out, row->loss, "%.4f");
        put_cell(out, row->accuracy, "%.4f");
        put_cell(out, row->val_loss, "%.4f");
        put_cell(out, row->val_accuracy, "%.4f");
        put_cell(out, row->learning_rate, "%.3g");
        put_cell(out, row->seconds > 0 ? row->seconds : NAN, "%.2f");
        put_cell(out, row->examples_per_second > 0 ? row->examples_per_second : NAN, "%.0f");
        text_append(out, "</tr>");
    }
    text_append(out, "</table></div></details>\n");
}

// ---- Confusion --------------------------------------------------------------------------------------

static int64_t cell_of(const struct confusion *c, int label, int predicted)
{
    return c->counts[label * c->classes + predicted];
}

static void put_matrix(struct text *out, const struct report_data *data)
{
    const struct confusion *c = &data->evaluation->confusion;
    int64_t most = 1;
    for (int i = 0; i < c->classes; i++) {
        for (int k = 0; k < c->classes; k++) {
            most = i != k ? MAX(most, cell_of(c, i, k)) : most;
        }
    }
    text_append(out, "<div class=\"scroll\"><table class=\"matrix\"><tr><th class=\"left\">true \\ said");
    for (int k = 0; k < c->classes; k++) {
        text_append(out, "<th>");
        class_name(out, data, k);
    }
    text_append(out, "<th>recall</tr>");
    for (int i = 0; i < c->classes; i++) {
        int64_t all = 0;
        text_append(out, "<tr><th class=\"left\">");
        class_name(out, data, i);
        for (int k = 0; k < c->classes; k++) {
            int64_t count = cell_of(c, i, k);
            all += count;
            double shade = i == k ? 0 : 0.75 * (double)count / (double)most;
            text_printf(out, "<td%s style=\"background:rgba(var(--cell),%.2f)\" title=\"",
                        i == k ? " class=\"right\"" : "", shade);
            class_name(out, data, i);
            text_append(out, i == k ? " recognised: " : " taken for ");
            if (i != k) {
                class_name(out, data, k);
                text_append(out, ": ");
            }
            text_printf(out, "%lld times\">", (long long)count);
            if (count) {
                text_printf(out, "%lld", (long long)count);
            }
        }
        if (all) {
            text_printf(out, "<td>%.1f %%", 100.0 * (double)cell_of(c, i, i) / (double)all);
        } else {
            text_append(out, "<td>-");
        }
        text_append(out, "</tr>");
    }
    text_append(out, "</table></div>\n");
}

struct pair {
    int label, predicted;
    int64_t count;
};

static int compare_pairs(const void *a, const void *b)
{
    const struct pair *x = a, *y = b;
    return x->count != y->count ? (x->count < y->count ? 1 : -1) : x->label - y->label;
}

static void put_pairs(struct text *out, const struct report_data *data)
{
    const struct confusion *c = &data->evaluation->confusion;
    struct pair *pairs = NULL;
    int count = 0, capacity = 0;
    for (int i = 0; i < c->classes; i++) {
        for (int k = 0; k < c->classes; k++) {
            if (i != k && cell_of(c, i, k)) {
                GROW(pairs, count, capacity);
                pairs[count++] = (struct pair){i, k, cell_of(c, i, k)};
            }
        }
    }
    if (count) {
        qsort(pairs, (size_t)count, sizeof *pairs, compare_pairs);
    }
    text_append(out, "<div class=\"scroll\"><table><tr><th>true<th class=\"left\">taken for<th>times"
                "</tr>");
    for (int i = 0; i < MIN(count, (int)PAIRS_SHOWN); i++) {
        text_append(out, "<tr><td>");
        class_name(out, data, pairs[i].label);
        text_append(out, "<td class=\"left\">");
        class_name(out, data, pairs[i].predicted);
        text_printf(out, "<td>%lld</tr>", (long long)pairs[i].count);
    }
    text_append(out, "</table></div>\n");
    mem_free(pairs);
}

static void put_mistakes(struct text *out, const struct report_data *data)
{
    text_printf(out, "<h2>Worst mistakes</h2><div class=\"wrong\">");
    for (int i = 0; i < data->mistake_count; i++) {
        const struct mistake *m = &data->mistakes[i].mistake;
        text_append(out, "<figure><img alt=\"\" src=\"");
        png_data_uri(out, data->mistakes[i].pixels, data->image);
        text_append(out, "\"><figcaption><b>");
        class_name(out, data, m->label);
        text_append(out, "</b>, said <b>");
        class_name(out, data, m->predicted);
        text_printf(out, "</b><br>%.0f %% sure, no. %lld</figcaption></figure>",
                    100 * (double)m->probability, (long long)m->index);
    }
    text_append(out, "</div>\n");
}

// ---- What ran ---------------------------------------------------------------------------------------

static void put_layers(struct text *out, const struct report_data *data)
{
    text_append(out, "<h2>Network</h2><div class=\"scroll\"><table><tr><th>layer<th class=\"left\">"
                "class<th>output<th>parameters</tr>");
    for (int i = 0; i < data->net->layer_count; i++) {
        const struct layer_record *layer = data->net->layers[i];
        int64_t parameters = 0;
        for (int w = 0; w < layer->weight_count; w++) {
            parameters += shape_count(layer->weights[w].variable->shape);
        }
        text_append(out, "<tr><td>");
        text_append_html(out, layer->name);
        text_printf(out, "<td class=\"left\">%s<td>", layer->class_name);
        for (int d = 1; d < layer->output.rank; d++) {
            text_printf(out, "%s%lld", d > 1 ? " &times; " : "", (long long)layer->output.dim[d]);
        }
        text_printf(out, "<td>%lld</tr>", (long long)parameters);
    }
    text_append(out, "</table></div>\n");
}

static void put_facts(struct text *out, const struct report_data *data)
{
    text_append(out, "<h2>Run</h2><div class=\"scroll\"><table>");
    for (int i = 0; i < data->fact_count; i++) {
        text_append(out, "<tr><th>");
        text_append_html(out, data->facts[i].name);
        text_append(out, "<td class=\"left\">");
        text_append_html(out, data->facts[i].value);
        text_append(out, "</tr>");
    }
    text_append(out, "</table></div><details><summary>Configuration (params.yaml)</summary><pre>");
    text_append_html(out, data->config_yaml);
    text_append(out, "</pre></details>\n");
}

enum status report_write(const char *path, const struct report_data *data)
{
    struct text out = {0};
    put_head(&out, data);
    put_big_numbers(&out, data);
    if (data->epoch_count || data->step_count > 1) {
        text_append(&out, "<h2>Curves</h2><div class=\"charts\">\n");
        if (data->epoch_count) {
            put_epoch_charts(&out, data);
        }
        put_step_chart(&out, data);
        text_append(&out, "</div>\n");
        put_epoch_table(&out, data);
    }
    if (data->evaluation->count) {
        text_append(&out, "<h2>What is taken for what</h2>");
        if (data->evaluation->confusion.classes <= MATRIX_CLASSES) {
            put_matrix(&out, data);
        } else {
            put_pairs(&out, data);
        }
    }
    if (data->mistake_count) {
        put_mistakes(&out, data);
    }
    put_layers(&out, data);
    put_facts(&out, data);
    text_printf(&out, "<footer>Written by trainer %s.</footer></main><script>%s</script></body></html>\n",
                TRAINER_VERSION, report_script);
    enum status status = file_write(path, out.data, out.size);
    text_release(&out);
    return status;
}
