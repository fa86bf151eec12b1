// SPDX-License-Identifier: Apache-2.0
// op_optim_ref.h: updates of variables for the element type T. See op_real.h.
// Hyperparameters are combined in double and rounded once; elements are computed in T. Where Keras casts
// one to a tensor (momentum, the betas of the powers, weight decay) tf.cast makes it float32 first, in
// float64 runs too: as_cast does the same.
// Every w, dw, m, v has the shape of the variable.

static double FN(norm)(const T *x, int64_t count)
{
    double sum = 0;
    for (int64_t i = 0; i < count; i++) {
        sum += (double)x[i] * (double)x[i];
    }
    return sqrt(sum);
}

// w -= lr * weight_decay * w
static void FN(decay)(const struct op_call *call, double lr)
{
    T *w = call->out, factor = (T)(lr * as_cast(call->node->attr.weight_decay));
    int64_t count = factor == 0 ? 0 : shape_count(call->node->shape);
    for (int64_t i = 0; i < count; i++) {
        w[i] -= factor * w[i];
    }
}

static enum status FN(ref_assign_add)(const struct op_call *call)
{
    T *w = call->out;
    const T *value = call->in[1];
    int64_t count = shape_count(call->node->shape);
    for (int64_t i = 0; i < count; i++) {
        w[i] += value[i];
    }
    return STATUS_OK;
}

static enum status FN(update_sgd)(const struct op_call *call)
{
    double rate = learning_rate(call);
    T *w = call->out, lr = (T)rate;
    const T *dw = call->in[1];
    int64_t count = shape_count(call->node->shape);
    FN(decay)(call, rate);
    for (int64_t i = 0; i < count; i++) {
        w[i] -= lr * dw[i];
    }
    return STATUS_OK;
}

static enum status FN(update_momentum)(const struct op_call *call)
{
    double rate = learning_rate(call);
    bool nesterov = call->node->attr.nesterov;
    T *w = call->out, *m = op_written(call, 2), lr = (T)rate;
    const T *dw = call->in[1], alpha = (T)as_cast(call->node->attr.alpha);
    int64_t count = shape_count(call->node->shape);
    FN(decay)(call, rate);
    for (int64_t i = 0; i < count; i++) {
        m[i] = alpha * m[i] - lr * dw[i];
        w[i] += nesterov ? alpha * m[i] - lr * dw[i] : m[i];
    }
    return STATUS_OK;
}

static enum status FN(update_rmsprop)(const struct op_call *call)
{
    const struct op_attr *attr = &call->node->attr;
    double rate = learning_rate(call);
    T *w = call->out, *v = op_written(call, 2);
    T *m = call->node->input_count == 5 ? op_written(call, 3) : NULL;
    const T *dw = call->in[1], lr = (T)rate, rho = (T)attr->beta_2, rest = (T)(1 - attr->beta_2);
    const T inside = attr->epsilon_outside ? 0 : (T)attr->epsilon;
    const T outside = attr->epsilon_outside ? (T)attr->epsilon : 0;
    int64_t count = shape_count(call->node->shape);
    FN(decay)(call, rate);
    for (int64_t i = 0; i < count; i++) {
        v[i] = rho * v[i] + rest * dw[i] * dw[i];
        T step = lr * dw[i] / ((T)sqrt((double)(v[i] + inside)) + outside);
        if (m) {
            step = m[i] = (T)attr->alpha * m[i] + step;
        }
        w[i] -= step;
    }
    return STATUS_OK;
}

// The moments of Adam and LAMB: m += (g - m) * (1 - beta_1), v += (g^2 - v) * (1 - beta_2)
static void FN(moments)(const struct op_call *call)
{
    const struct op_attr *attr = &call->node->attr;
    T *m = op_written(call, 2), *v = op_written(call, 3);
    const T *dw = call->in[1], rest_1 = (T)(1 - attr->beta_1), rest_2 = (T)(1 - attr->beta_2);
    int64_t count = shape_count(call->node->shape);
    for (int64_t i = 0; i < count; i++) {
        m[i] += (dw[i] - m[i]) * rest_1;
        v[i] += (dw[i] * dw[i] - v[i]) * rest_2;
    }
}

static enum status FN(update_adam)(const struct op_call *call)
{
    const struct op_attr *attr = &call->node->attr;
    double rate = learning_rate(call), t = (double)*(const int64_t *)call->in[5] + 1;
    T *w = call->out;
    const T *m = call->in[2], *v = call->in[3], epsilon = (T)attr->epsilon;
    const double power_1 = pow(as_cast(attr->beta_1), t);
    const double power_2 = pow(as_cast(attr->beta_2), t);
    const T alpha = (T)(rate * sqrt(1 - power_2) / (1 - power_1));
    int64_t count = shape_count(call->node->shape);
    FN(decay)(call, rate);
    FN(moments)(call);
    for (int64_t i = 0; i < count; i++) {
        w[i] -= m[i] * alpha / ((T)sqrt((double)v[i]) + epsilon);
    }
    return STATUS_OK;
}

static enum status FN(update_lars)(const struct op_call *call)
{
    const struct op_attr *attr = &call->node->attr;
    T *w = call->out, *m = op_written(call, 2);
    const T *dw = call->in[1], alpha = (T)attr->alpha, decay = (T)attr->weight_decay;
    int64_t count = shape_count(call->node->shape);
    double norm_w = FN(norm)(w, count), norm_dw = FN(norm)(dw, count);
    double below = norm_dw + attr->weight_decay * norm_w + attr->epsilon;
    double trust = norm_w > 0 && norm_dw > 0 ? attr->rate * norm_w / below : 1;
    const T lr = (T)(learning_rate(call) * trust);
    for (int64_t i = 0; i < count; i++) {
        T step = lr * (dw[i] + decay * w[i]);
        m[i] = alpha * m[i] + step;
        w[i] -= attr->nesterov ? alpha * m[i] + step : m[i];
    }
    return STATUS_OK;
}

static enum status FN(update_lamb)(const struct op_call *call)
{
    const struct op_attr *attr = &call->node->attr;
    double t = (double)*(const int64_t *)call->in[5] + 1;
    T *w = call->out;
    const T *m = call->in[2], *v = call->in[3], epsilon = (T)attr->epsilon;
    const T rest_1 = (T)(1 - pow(attr->beta_1, t)), rest_2 = (T)(1 - pow(attr->beta_2, t));
    const T decay = (T)attr->weight_decay;
    int64_t count = shape_count(call->node->shape);
    FN(moments)(call);
    T *update = MEM_NEW_ARRAY(T, count);
    for (int64_t i = 0; i < count; i++) {
        T root = (T)sqrt((double)(v[i] / rest_2));
        update[i] = m[i] / rest_1 / (root + epsilon) + decay * w[i];
    }
    double norm_w = FN(norm)(w, count), norm_update = FN(norm)(update, count);
    double trust = norm_w > 0 && norm_update > 0 ? norm_w / norm_update : 1;
    const T lr = (T)(learning_rate(call) * trust);
    for (int64_t i = 0; i < count; i++) {
        w[i] -= lr * update[i];
    }
    mem_free(update);
    return STATUS_OK;
}
