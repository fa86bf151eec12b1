// SPDX-License-Identifier: Apache-2.0
// modes_impl.h: the rows of the mode table. Private to src/train.
#ifndef TRAINER_MODES_IMPL_H
#define TRAINER_MODES_IMPL_H

#include "train_impl.h"

enum status mode_train_and_eval(const struct run_options *options, struct config *config);
enum status mode_train(const struct run_options *options, struct config *config);
enum status mode_eval(const struct run_options *options, struct config *config);
enum status mode_predict(const struct run_options *options, struct config *config);
enum status mode_export(const struct run_options *options, struct config *config);
enum status mode_plan(const struct run_options *options, struct config *config);
enum status mode_check_data(const struct run_options *options, struct config *config);

#endif
