// SPDX-License-Identifier: Apache-2.0
// modes_look.c: the ways to run that only look: plan and check_data.
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "modes_impl.h"
#include "trainer/file.h"
#include "trainer/thread.h"

// ---- plan -------------------------------------------------------------------------------------------

// Bytes of the variables of one role.
static double variable_bytes(const struct variables *variables, enum variable_role role)
{
    double bytes = 0;
    for (int i = 0; i < variables->count; i++) {
        const struct variable *variable = variables->items[i];
        if (variable->role == role) {
            bytes += (double)shape_count(variable->shape) * (double)dtype_size(variable->dtype);
        }
    }
    return bytes;
}

// What the activations of a graph need at once, by the reference plan; backends may need a little
// more or less for their layouts.
static double activation_bytes(const struct graph *graph)
{
    bool *live = graph_live(graph);
    struct plan_item *items = MEM_NEW_ARRAY(struct plan_item, graph->count);
    for (int i = 0; i < graph->count; i++) {
        const struct node *node = graph->nodes[i];
        bool own = live[i] && op_table[node->op]->infer && !op_table[node->op]->writes;
        items[i] = (struct plan_item){.first = i, .last = i, .size = own ? node_bytes(node) : 0};
        for (int k = 0; k < node->input_count; k++) {
            items[node->inputs[k]->id].last = i;
        }
    }
    double bytes = (double)plan_place(items, graph->count);
    mem_free(items);
    mem_free(live);
    return bytes;
}

static void print_memory(const struct session *session)
{
    const struct variables *variables = &session->variables;
    double mib = 1048576.0;
    double weights = variable_bytes(variables, VARIABLE_WEIGHT) +
                     variable_bytes(variables, VARIABLE_STATISTIC);
    double slots = variable_bytes(variables, VARIABLE_SLOT) +
                   variable_bytes(variables, VARIABLE_SCRATCH);
    double activations = activation_bytes(&session->train_graph.graph);
    printf("\nmemory of each of %d replica%s\n", session->replica_count,
           session->replica_count == 1 ? "" : "s");
    printf("  weights      %10.2f MiB\n", weights / mib);
    printf("  optimizer    %10.2f MiB\n", slots / mib);
    printf("  activations  %10.2f MiB, %d examples at once\n", activations / mib,
           session->part_rows);
    printf("  together     %10.2f MiB\n", (weights + slots + activations) / mib);
}

static void print_schedule(const struct session *session)
{
    printf("\nlearning rate (%s)\n", session->schedule.def->name);
    int64_t epochs = session->epochs, shown = MIN(epochs, (int64_t)12);
    for (int64_t i = 0; i < shown; i++) {
        int64_t epoch = shown == 1 ? 0 : i * (epochs - 1) / (shown - 1);
        printf("  epoch %-6lld from step %-8lld %g\n", (long long)epoch + 1,
               (long long)(epoch * session->steps_per_epoch),
               schedule_rate(&session->schedule, epoch * session->steps_per_epoch));
    }
}

static void print_flops(const struct session *session)
{
    const struct graph *graph = &session->train_graph.graph;
    bool *live = graph_live(graph);
    double flops = 0;
    for (int i = 0; i < graph->count; i++) {
        flops += live[i] ? node_flops(graph->nodes[i]) : 0;
    }
    printf("\na train step: %d nodes, %.4g FLOP a replica, %.4g an example\n", graph->count, flops,
           flops / session->part_rows);
    mem_free(live);
}

static void print_files(const struct session *session)
{
    const char *directory = session->options->model_dir;
    printf("\nfiles\n");
    if (!directory) {
        printf("  none: no --model_dir was given\n");
        return;
    }
    static const char *const names[] = {"params.yaml", "checkpoint", "metrics.jsonl",
                                        "report.html", "train/", "validation/"};
    for (size_t i = 0; i < ARRAY_COUNT(names); i++) {
        printf("  %s/%s\n", directory, names[i]);
    }
    printf("  %s/%s (.index, .data-00000-of-00001)\n", directory,
           config_string(session->config, "train.callbacks.checkpoint_name"));
    const char *destination = config_string(session->config, "export.destination");
    if (destination) {
        printf("  %s/\n", destination);
    }
}

// The nearest existing folder of the path must be writable; nothing is made.
static enum status check_directory(const char *directory)
{
    char *path = mem_strdup(directory);
    while (!file_exists(path) && strrchr(path, '/') > path) {
        *strrchr(path, '/') = '\0';
    }
    if (!file_exists(path)) {
        mem_free(path);
        path = mem_strdup(*directory == '/' ? "/" : ".");
    }
    enum status status = STATUS_OK;
    if (!file_is_directory(path)) {
        status = FAIL(ERR_IO, "%s: is a file, expected a directory", path);
    } else if (access(path, W_OK) != 0) {
        status = FAIL(ERR_IO, "%s: cannot write to --model_dir (%s is not writable)", directory,
                      path);
    }
    mem_free(path);
    return status;
}

enum status mode_plan(const struct run_options *options, struct config *config)
{
    struct session session;
    unsigned want = WANT_TRAIN_DATA;
    want |= config_bool(config, "evaluation.skip_eval") ? 0 : WANT_VAL_DATA;
    TRY(session_open(options, config, want, &session));
    struct text text = {0};
    config_dump(config, &text);
    printf("configuration\n%s\n", text_get(&text));
    text_clear(&text);
    model_summary(&session.train_graph.net, &text);
    fputs(text_get(&text), stdout);
    text_release(&text);
    print_flops(&session);
    print_memory(&session);
    printf("\ndata\n  train       %s\n", session.train_def->describe(session.train_source));
    if (session.evaluates) {
        printf("  validation  %s\n", session.val_def->describe(session.val_source));
    }
    printf("  %d examples a step, %lld steps an epoch, %lld epochs, %lld steps in all\n",
           session.global_batch, (long long)session.steps_per_epoch, (long long)session.epochs,
           (long long)session_total_steps(&session));
    print_schedule(&session);
    print_files(&session);
    enum status status = options->model_dir ? check_directory(options->model_dir) : STATUS_OK;
    session_close(&session);
    return status;
}

// ---- check_data -------------------------------------------------------------------------------------

enum { FAULTS_SHOWN = 20 };

struct check {
    const struct source_def *def;
    const struct source *source;
    int64_t next, total;        // next: taken by the workers under the lock
    int64_t bad, *per_class;    // [classes]
    struct text faults;
    pthread_mutex_t mutex;
};

// One worker: takes blocks of examples until none is left.
static enum status check_worker(void *context, int member)
{
    (void)member;
    struct check *check = context;
    const struct example_spec *spec = check->def->spec(check->source);
    void *image = mem_alloc((size_t)shape_count(spec->shape) * dtype_size(spec->dtype));
    enum { BLOCK = 256 };  // examples taken at once: keeps the lock out of the way
    for (;;) {
        pthread_mutex_lock(&check->mutex);
        int64_t from = check->next, to = MIN(from + BLOCK, check->total);
        check->next = to;
        pthread_mutex_unlock(&check->mutex);
        if (from >= to) {
            break;
        }
        for (int64_t i = from; i < to; i++) {
            int32_t label = 0;
            enum status status = check->def->read(check->source, i, image, &label);
            pthread_mutex_lock(&check->mutex);
            if (status == STATUS_OK) {
                check->per_class[label]++;
            } else if (check->bad++ < FAULTS_SHOWN) {
                text_printf(&check->faults, "  %s\n", error_get()->message);
            }
            pthread_mutex_unlock(&check->mutex);
        }
    }
    mem_free(image);
    return STATUS_OK;
}

static enum status check_split(const char *title, const struct source_def *def,
                               const struct source *source, int64_t *bad)
{
    const struct example_spec *spec = def->spec(source);
    struct check check = {.def = def,
                          .source = source,
                          .total = def->count(source),
                          .per_class = MEM_NEW_ARRAY(int64_t, spec->num_classes)};
    pthread_mutex_init(&check.mutex, NULL);
    struct team *team;
    double start = time_now();
    enum status status = team_new(thread_cpu_count(), &team);
    if (status == STATUS_OK) {
        status = team_run(team, check_worker, &check);
        team_free(team);
    }
    if (status == STATUS_OK) {
        printf("%s: %s\n", title, def->describe(source));
        printf("  %lld examples read in %.2f s, %lld bad\n", (long long)check.total,
               time_now() - start, (long long)check.bad);
        for (int k = 0; k < spec->num_classes; k++) {
            printf("  class %-4d %-16s %lld\n", k, spec->class_names ? spec->class_names[k] : "",
                   (long long)check.per_class[k]);
        }
        fputs(text_get(&check.faults), stdout);
        if (check.bad > FAULTS_SHOWN) {
            printf("  ... and %lld more\n", (long long)check.bad - FAULTS_SHOWN);
        }
    }
    *bad += check.bad;
    pthread_mutex_destroy(&check.mutex);
    text_release(&check.faults);
    mem_free(check.per_class);
    return status;
}

enum status mode_check_data(const struct run_options *options, struct config *config)
{
    struct session session;
    // Both splits, but no model: what is wrong with the data is to be found even when they disagree.
    TRY(session_open(options, config, WANT_SOURCES_ONLY, &session));
    int64_t bad = 0;
    enum status status = check_split("train", session.train_def, session.train_source, &bad);
    if (status == STATUS_OK) {
        status = check_split("validation", session.val_def, session.val_source, &bad);
    }
    session_close(&session);
    TRY(status);
    return bad ? FAIL(ERR_CORRUPT, "%lld bad records", (long long)bad) : STATUS_OK;
}
