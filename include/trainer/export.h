// SPDX-License-Identifier: Apache-2.0
// export.h: models as files of TensorFlow: Keras checkpoints and SavedModels. Floor 6.
#ifndef TRAINER_EXPORT_H
#define TRAINER_EXPORT_H

#include "trainer/layers.h"
#include "trainer/optimizer.h"
#include "trainer/text.h"

// Where variables' values come from and go to; data are logical, of the variable's dtype and shape.
struct variable_store {
    void *context;
    enum status (*get)(void *context, const struct variable *variable, void *data);
    enum status (*put)(void *context, const struct variable *variable, const void *data);
};

// ---- Checkpoints (keras_checkpoint.c) -------------------------------------------------------------

enum optimizer_layout { LAYOUT_KERAS, LAYOUT_KERAS_LEGACY };  // 2.11 and later; 2.0 to 2.10

struct checkpoint_info {
    const struct net *net;                  // the layers
    const struct variables *variables;      // weights, statistics and slots
    const struct optimizer_def *optimizer;  // NULL: weights only
    const struct config *config;            // its hyperparameters, for the legacy layout; NULL:
                                            // not written, and TensorFlow keeps its own
    enum optimizer_layout layout;
    int64_t iterations;
    double learning_rate;
    const char *state_json;  // what only this program needs for an exact resume; NULL = none
};

// One file for load_weights, tf.train.Checkpoint and our own resume: see docs/checkpoints.md.
// Written under temporary names, fsynced, renamed; the prefix is complete or absent.
enum status checkpoint_save(const char *prefix, const struct checkpoint_info *info,
                            const struct variable_store *store);

struct checkpoint_loaded {
    int64_t iterations;      // -1 when the file has none
    char *state_json;        // NULL for files of other programs. Caller frees with mem_free.
    bool has_slots;          // all slots were found and loaded; true when there are none
};
// Loads by the object graph (either optimizer layout, Keras 3's names too), or by variable names.
// Every weight must be there with its shape, and by the object graph no layer may have one more: else
// ERR_MISMATCH names the first difference. Damage is ERR_CORRUPT. After a failure nothing was put.
// `report` (may be NULL) gets a table of what matched and what did not.
enum status checkpoint_load(const char *prefix, const struct checkpoint_info *info,
                            const struct variable_store *store, struct checkpoint_loaded *out,
                            struct text *report);

// ---- SavedModel (saved_model.c) -------------------------------------------------------------------

struct saved_model_info {
    const struct net *net;        // an inference net
    const struct node *input;     // (N, H, W, C) real: the serving input, already scaled
    const struct node *output;    // what serving returns: probabilities
    const struct node *model_output;  // what the Keras model returns: the same, or logits
    const char *model_name;
    const struct variables *variables;
};
// Writes DIR/saved_model.pb, keras_metadata.pb, variables/: loads with tf.saved_model.load, the C
// API, TensorFlow Serving and tf_keras.models.load_model. An existing DIR is replaced as a whole.
enum status saved_model_save(const char *directory, const struct saved_model_info *info,
                             const struct variable_store *store);

#endif
