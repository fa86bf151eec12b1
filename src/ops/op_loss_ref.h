// SPDX-License-Identifier: Apache-2.0
// op_loss_ref.h: softmax, cross-entropy and dropout for the element type T. See op_real.h.

// Largest of x (n), and the sum of exp(x - largest).
static double FN(exp_sum)(const T *x, int64_t n, double *largest)
{
    *largest = (double)x[0];
    for (int64_t i = 1; i < n; i++) {
        *largest = MAX(*largest, (double)x[i]);
    }
    double sum = 0;
    for (int64_t i = 0; i < n; i++) {
        sum += exp((double)x[i] - *largest);
    }
    return sum;
}

static enum status FN(ref_softmax)(const struct op_call *call)
{
    int64_t n = classes(call->node->inputs[0]), count = shape_count(call->node->shape);
    for (int64_t at = 0; at < count; at += n) {
        const T *x = (const T *)call->in[0] + at;
        T *y = (T *)call->out + at;
        double largest, sum = FN(exp_sum)(x, n, &largest);
        for (int64_t i = 0; i < n; i++) {
            y[i] = (T)(exp((double)x[i] - largest) / sum);
        }
    }
    return STATUS_OK;
}

static enum status FN(ref_softmax_grad)(const struct op_call *call)
{
    int64_t n = classes(call->node->inputs[0]), count = shape_count(call->node->shape);
    for (int64_t at = 0; at < count; at += n) {
        const T *y = (const T *)call->in[0] + at, *dy = (const T *)call->in[1] + at;
        T *dx = (T *)call->out + at;
        double dot = 0;
        for (int64_t i = 0; i < n; i++) {
            dot += (double)y[i] * (double)dy[i];
        }
        for (int64_t i = 0; i < n; i++) {
            dx[i] = y[i] * (dy[i] - (T)dot);
        }
    }
    return STATUS_OK;
}

// The target of class k in row n: the label, smoothed.
static inline double FN(target)(const struct op_call *call, int64_t n, int64_t k, int64_t count)
{
    const void *labels = call->in[1];
    double hard = call->node->inputs[1]->dtype == DTYPE_I32
                      ? ((const int32_t *)labels)[n] == k
                      : (double)((const T *)labels)[n * count + k];
    double s = call->node->attr.label_smoothing;
    return (1 - s) * hard + s / (double)count;
}

static enum status FN(ref_cross_entropy)(const struct op_call *call)
{
    const struct shape shape = call->node->inputs[0]->shape;  // (N, K)
    int64_t count = shape.dim[1];
    T *loss = call->out;
    TRY(check_labels(call));
    for (int64_t n = 0; n < shape.dim[0]; n++) {
        const T *z = (const T *)call->in[0] + n * count;
        double largest, log_sum = log(FN(exp_sum)(z, count, &largest)), sum = 0;
        for (int64_t k = 0; k < count; k++) {
            double target = FN(target)(call, n, k, count);
            sum += target == 0 ? 0 : target * (log_sum - ((double)z[k] - largest));
        }
        loss[n] = (T)sum;
    }
    return STATUS_OK;
}

static enum status FN(ref_cross_entropy_grad)(const struct op_call *call)
{
    const struct shape shape = call->node->inputs[0]->shape;  // (N, K)
    int64_t count = shape.dim[1];
    const T *dloss = call->in[2];
    TRY(check_labels(call));
    for (int64_t n = 0; n < shape.dim[0]; n++) {
        const T *z = (const T *)call->in[0] + n * count;
        T *dz = (T *)call->out + n * count;
        double largest, sum = FN(exp_sum)(z, count, &largest), all = 0;
        for (int64_t k = 0; k < count; k++) {
            all += FN(target)(call, n, k, count);
        }
        for (int64_t k = 0; k < count; k++) {
            double p = exp((double)z[k] - largest) / sum;
            dz[k] = (T)((p * all - FN(target)(call, n, k, count)) * (double)dloss[n]);
        }
    }
    return STATUS_OK;
}

static enum status FN(ref_dropout)(const struct op_call *call)
{
    const struct node *node = call->node;
    const struct op_attr *attr = &node->attr;
    uint64_t step = (uint64_t)*(const int64_t *)call->in[1];
    uint64_t row = (uint64_t)*(const int64_t *)call->in[2];
    int64_t count = shape_count(node->shape);
    uint64_t first = row * (uint64_t)(count / node->shape.dim[0]);  // number of element 0
    const T *x = call->in[0], kept = (T)(1 - attr->rate);
    T *y = call->out;
    for (int64_t i = 0; i < count; i++) {
        uint32_t bits = rng_u32(attr->seed, RNG_DROPOUT, attr->salt, step, first + (uint64_t)i);
        y[i] = (double)rng_unit(bits) >= attr->rate ? x[i] / kept : 0;
    }
    return STATUS_OK;
}
