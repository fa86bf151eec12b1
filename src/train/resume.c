// SPDX-License-Identifier: Apache-2.0
// resume.c: who owns model_dir, and the way back to any saved step. All that a run needs to go on is
// in the checkpoint: variables, and a small JSON with the place in the run. The place in the data
// follows from the step.
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "trainer/file.h"
#include "trainer/io.h"
#include "train_impl.h"

// ---- Lock -------------------------------------------------------------------------------------------

enum status session_lock(struct session *session)
{
    char *path = session_path(session, ".lock");
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    enum status status = STATUS_OK;
    if (fd < 0) {
        status = FAIL(ERR_IO, "%s: cannot write to --model_dir: %s", session->options->model_dir,
                      strerror(errno));
    } else if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
        char owner[32] = "";
        ssize_t size = pread(fd, owner, sizeof owner - 1, 0);
        owner[MAX(size, 0)] = '\0';
        status = FAIL(ERR_USAGE,
                      "%s: is in use by another run (process %ld); wait for it, stop it, or give "
                      "another --model_dir", session->options->model_dir, strtol(owner, NULL, 10));
        close(fd);
        fd = -1;
    } else {
        char owner[32];
        int size = snprintf(owner, sizeof owner, "%ld\n", (long)getpid());
        if (ftruncate(fd, 0) != 0 || pwrite(fd, owner, (size_t)size, 0) != size) {
            status = FAIL(ERR_IO, "%s: cannot write: %s", path, strerror(errno));
        }
    }
    session->lock_fd = fd;
    mem_free(path);
    return status;
}

void session_unlock(struct session *session)
{
    if (session->lock_fd >= 0) {
        char *path = session_path(session, ".lock");
        unlink(path);  // before the lock goes, so that nobody locks a name that vanishes
        close(session->lock_fd);
        mem_free(path);
        session->lock_fd = -1;
    }
}

// ---- The state beside the variables -----------------------------------------------------------------

static void put_number(struct text *out, const char *key, double value)
{
    text_append_json(out, key);
    text_append(out, ": ");
    text_append_number(out, value);
    text_append(out, ", ");
}

static void put_int(struct text *out, const char *key, int64_t value)
{
    text_append_json(out, key);
    text_printf(out, ": %lld, ", (long long)value);
}

static void encode_state(const struct session *session, struct text *out)
{
    text_append(out, "{");
    put_int(out, "version", 1);
    put_int(out, "seed", (int64_t)session->seed);
    put_int(out, "examples", session->train_examples);
    put_int(out, "global_batch", session->global_batch);
    put_int(out, "steps_per_epoch", session->steps_per_epoch);
    put_int(out, "step", session->step);
    put_int(out, "epoch", session->epoch);
    put_int(out, "epoch_step", session->epoch_step);
    put_number(out, "loss_sum", session->loss_sum);
    put_number(out, "correct_sum", session->correct_sum);
    put_int(out, "example_count", session->example_count);
    put_int(out, "skipped_steps", session->skipped_steps);
    put_number(out, "best_val_loss", session->best_val_loss);
    put_int(out, "epochs_since_best", session->epochs_since_best);
    text_append(out, "\"history\": [");
    for (int i = 0; i < session->history_count; i++) {
        const struct epoch_row *row = &session->history[i];
        text_append(out, i ? ", {" : "{");
        put_number(out, "loss", row->loss);
        put_number(out, "accuracy", row->accuracy);
        put_number(out, "val_loss", row->val_loss);
        put_number(out, "val_accuracy", row->val_accuracy);
        put_number(out, "val_top_5", row->val_top_5);
        put_number(out, "learning_rate", row->learning_rate);
        put_int(out, "epoch", row->epoch);
        out->size -= 2;  // the last ", "
        text_append(out, "}");
    }
    text_append(out, "]}");
}

static int64_t get_int(const struct value *map, const char *key)
{
    const struct value *value = value_find(map, key);
    return value && value->kind == VALUE_INT ? value->integer : -1;
}

// null stands for what JSON cannot say: NaN (no value), infinity.
static double get_number(const struct value *map, const char *key, double when_null)
{
    const struct value *value = value_find(map, key);
    if (!value || (value->kind != VALUE_INT && value->kind != VALUE_FLOAT)) {
        return when_null;
    }
    return value->kind == VALUE_INT ? (double)value->integer : value->number;
}

static void push_history(struct session *session, struct epoch_row row)
{
    GROW(session->history, session->history_count, session->history_capacity);
    session->history[session->history_count++] = row;
}

// What has to be the same for "exactly as if it had never stopped" to mean anything.
static enum status check_same(const struct session *session, const char *prefix,
                              const struct value *state)
{
    const struct {
        const char *key, *option;
        int64_t now;
    } rows[] = {
        {"seed", "runtime.seed", (int64_t)session->seed},
        {"examples", "the number of training examples", session->train_examples},
        {"global_batch", "the global batch", session->global_batch},
        {"steps_per_epoch", "the number of steps an epoch", session->steps_per_epoch},
    };
    for (size_t i = 0; i < ARRAY_COUNT(rows); i++) {
        int64_t then = get_int(state, rows[i].key);
        if (then != rows[i].now) {
            return FAIL(ERR_MISMATCH,
                        "%s: was saved with %s %lld, now it is %lld: the run cannot go on exactly. "
                        "Give another --model_dir, and train.init_checkpoint to start from these "
                        "weights", prefix, rows[i].option, (long long)then,
                        (long long)rows[i].now);
        }
    }
    return STATUS_OK;
}

static enum status decode_state(struct session *session, const char *prefix, const char *json)
{
    struct arena arena;
    arena_init(&arena);
    struct value *state = NULL;
    enum status status = value_load_yaml(&arena, prefix, json, strlen(json), &state);
    if (status == STATUS_OK && (state->kind != VALUE_MAP || get_int(state, "version") != 1)) {
        status = FAIL(ERR_UNSUPPORTED,
                      "%s: holds the state of another version of this program", prefix);
    }
    if (status == STATUS_OK) {
        status = check_same(session, prefix, state);
    }
    if (status == STATUS_OK) {
        session->step = get_int(state, "step");
        session->epoch = get_int(state, "epoch");
        session->epoch_step = get_int(state, "epoch_step");
        session->loss_sum = get_number(state, "loss_sum", NAN);
        session->correct_sum = get_number(state, "correct_sum", NAN);
        session->example_count = get_int(state, "example_count");
        session->skipped_steps = get_int(state, "skipped_steps");
        session->best_val_loss = get_number(state, "best_val_loss", INFINITY);
        session->epochs_since_best = get_int(state, "epochs_since_best");
        const struct value *history = value_find(state, "history");
        session->history_count = 0;
        for (int i = 0; history && history->kind == VALUE_LIST && i < history->list.count; i++) {
            const struct value *row = history->list.items[i];
            push_history(session, (struct epoch_row){
                .epoch = get_int(row, "epoch"),
                .loss = get_number(row, "loss", NAN),
                .accuracy = get_number(row, "accuracy", NAN),
                .val_loss = get_number(row, "val_loss", NAN),
                .val_accuracy = get_number(row, "val_accuracy", NAN),
                .val_top_5 = get_number(row, "val_top_5", NAN),
                .learning_rate = get_number(row, "learning_rate", NAN)});
        }
    }
    arena_release(&arena);
    return status;
}

// ---- Saving -----------------------------------------------------------------------------------------

static struct checkpoint_info info_of(const struct session *session)
{
    const char *layout = config_string(session->config, "train.callbacks.checkpoint_layout");
    const struct step_graph *step =
        session->train_graph.output ? &session->train_graph : &session->eval_graph;
    return (struct checkpoint_info){
        .net = &step->net,
        .variables = &session->variables,
        .optimizer = session->train_graph.output ? optimizer_get(session->config) : NULL,
        .layout = strcmp(layout, "keras_legacy") ? LAYOUT_KERAS : LAYOUT_KERAS_LEGACY,
        .iterations = session->step,
        .learning_rate = session->train_graph.output
                             ? schedule_rate(&session->schedule, MAX(session->step - 1, 0))
                             : 0};
}

// "model.ckpt-{epoch:04d}" with epoch filled in; within an epoch "-step-N" says where.
static char *checkpoint_name(const struct session *session)
{
    const char *pattern = config_string(session->config, "train.callbacks.checkpoint_name");
    bool whole_epoch = session->epoch_step == 0;
    int64_t epoch = whole_epoch ? session->epoch : session->epoch + 1;
    struct text name = {0};
    const char *open = strstr(pattern, "{epoch"), *close = open ? strchr(open, '}') : NULL;
    if (!open || !close) {
        text_append(&name, pattern);
    } else {
        text_append_bytes(&name, pattern, (size_t)(open - pattern));
        int width = open[6] == ':' ? (int)strtol(open + 7, NULL, 10) : 0;
        text_printf(&name, "%0*lld%s", MIN(MAX(width, 0), 18), (long long)epoch, close + 1);
    }
    if (!whole_epoch) {
        text_printf(&name, "-step-%lld", (long long)session->step);
    }
    return name.data;
}

static bool is_step_checkpoint(const char *name)
{
    return strstr(name, "-step-") != NULL;
}

static void remove_checkpoint(const struct session *session, const char *name)
{
    static const char *const endings[] = {".index", ".data-00000-of-00001"};
    for (size_t i = 0; i < ARRAY_COUNT(endings); i++) {
        struct text path = {0};
        text_printf(&path, "%s/%s%s", session->options->model_dir, name, endings[i]);
        if (file_remove(text_get(&path)) != STATUS_OK) {
            LOG_WARN("%s", error_get()->message);
        }
        text_release(&path);
    }
}

static void forget_kept(struct session *session, int i)
{
    remove_checkpoint(session, session->kept[i]);
    mem_free(session->kept[i]);
    session->kept_count--;
    memmove(session->kept + i, session->kept + i + 1,
            sizeof *session->kept * (size_t)(session->kept_count - i));
}

// Adds the name as the newest; what is not kept any longer is removed once the state file is written.
static enum status keep_name(struct session *session, const char *name)
{
    for (int i = 0; i < session->kept_count; i++) {
        if (strcmp(session->kept[i], name) == 0) {  // saved again under the same name
            mem_free(session->kept[i]);
            session->kept_count--;
            memmove(session->kept + i, session->kept + i + 1,
                    sizeof *session->kept * (size_t)(session->kept_count - i));
            break;
        }
    }
    GROW(session->kept, session->kept_count, session->kept_capacity);
    session->kept[session->kept_count++] = mem_strdup(name);
    int64_t limit = config_int(session->config, "train.callbacks.keep_checkpoints");
    int first = limit > 0 ? (int)MAX(session->kept_count - limit, 0) : 0;
    TRY(checkpoint_state_write(session->options->model_dir,
                               (const char *const *)session->kept + first,
                               session->kept_count - first));
    while (first-- > 0) {
        forget_kept(session, 0);
    }
    // Checkpoints within an epoch are for going on; the epoch's own replaces them.
    bool dropped = false;
    for (int i = session->kept_count - 2; i >= 0 && !is_step_checkpoint(name); i--) {
        if (is_step_checkpoint(session->kept[i])) {
            forget_kept(session, i);
            dropped = true;
        }
    }
    return !dropped ? STATUS_OK
                    : checkpoint_state_write(session->options->model_dir,
                                             (const char *const *)session->kept,
                                             session->kept_count);
}

enum status session_save(struct session *session)
{
    TRY(replicas_verify(session->replicas, &session->variables));
    struct checkpoint_info info = info_of(session);
    struct text state = {0};
    encode_state(session, &state);
    info.state_json = text_get(&state);
    char *name = checkpoint_name(session);
    char *prefix = session_path(session, name);
    struct variable_store store = replicas_store(session->replicas);
    enum status status = checkpoint_save(prefix, &info, &store);
    if (status == STATUS_OK) {
        status = keep_name(session, name);
    }
    text_release(&state);
    mem_free(name);
    if (status != STATUS_OK) {
        mem_free(prefix);
        return status;
    }
    mem_free(session->checkpoint_prefix);
    session->checkpoint_prefix = prefix;
    return STATUS_OK;
}

// ---- Restoring --------------------------------------------------------------------------------------

enum status session_initialize(struct session *session)
{
    enum status status = STATUS_OK;
    struct variable_store store = replicas_store(session->replicas);
    for (int i = 0; i < session->variables.count && status == STATUS_OK; i++) {
        const struct variable *variable = session->variables.items[i];
        void *data =
            mem_alloc((size_t)shape_count(variable->shape) * dtype_size(variable->dtype));
        variable_initialize(variable, session->seed, data);
        status = store.put(store.context, variable, data);
        mem_free(data);
    }
    return status;
}

static enum status load_one(struct session *session, const char *prefix, bool training)
{
    struct checkpoint_info info = info_of(session);
    struct variable_store store = replicas_store(session->replicas);
    struct checkpoint_loaded loaded = {0};
    struct text report = {0};
    enum status status = checkpoint_load(prefix, &info, &store, &loaded, &report);
    LOG_NOTE("%s", text_get(&report));
    text_release(&report);
    if (status == STATUS_OK && training && loaded.state_json && !loaded.has_slots) {
        status = FAIL(ERR_MISMATCH,
                      "%s: was saved with another optimizer than %s; give another --model_dir, and "
                      "train.init_checkpoint to start from these weights", prefix,
                      info.optimizer->name);
    } else if (status == STATUS_OK && training && loaded.state_json) {
        status = decode_state(session, prefix, loaded.state_json);
    } else if (status == STATUS_OK && loaded.iterations >= 0) {
        session->step = loaded.iterations;
        if (training) {  // another program's: the place follows from its count of steps
            session->epoch = session->step / session->steps_per_epoch;
            session->epoch_step = session->step % session->steps_per_epoch;
            if (session->epoch_step) {
                LOG_WARN("%s: was saved by another program in the middle of epoch %lld; the "
                         "metrics of that epoch count from here", prefix,
                         (long long)session->epoch + 1);
            }
        }
    }
    mem_free(loaded.state_json);
    if (status == STATUS_OK) {
        mem_free(session->checkpoint_prefix);
        session->checkpoint_prefix = mem_strdup(prefix);
    }
    return status;
}

enum status session_restore(struct session *session, const char *prefix, bool *found)
{
    bool training = session->pipeline != NULL;
    *found = true;
    if (prefix) {
        return load_one(session, prefix, training);
    }
    const char *directory = session->options->model_dir;
    file_list_free(session->kept, session->kept_count);
    session->kept = NULL;
    session->kept_count = session->kept_capacity = 0;
    enum status status = checkpoint_state_list(directory, &session->kept, &session->kept_count);
    session->kept_capacity = session->kept_count;
    if (status == ERR_NOT_FOUND) {
        error_clear();
        *found = false;
        return STATUS_OK;
    }
    TRY(status);
    // The newest whole one. A damaged file is passed over, with a word; a wrong model is not.
    for (int i = session->kept_count - 1; i >= 0; i--) {
        char *path = session_path(session, session->kept[i]);
        status = load_one(session, path, training);
        mem_free(path);
        if (status == STATUS_OK || (status != ERR_CORRUPT && status != ERR_NOT_FOUND) || i == 0) {
            return status;
        }
        LOG_WARN("%s; going back to the checkpoint before it", error_get()->message);
    }
    return status;
}

enum status session_load_weights(struct session *session, const char *prefix)
{
    struct checkpoint_info info = info_of(session);
    info.optimizer = NULL;
    struct variable_store store = replicas_store(session->replicas);
    struct checkpoint_loaded loaded = {0};
    struct text report = {0};
    enum status status = checkpoint_load(prefix, &info, &store, &loaded, &report);
    if (status == STATUS_OK) {
        LOG_NOTE("%s", text_get(&report));
    }
    text_release(&report);
    mem_free(loaded.state_json);
    return status;
}
