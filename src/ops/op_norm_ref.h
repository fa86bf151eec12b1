// SPDX-License-Identifier: Apache-2.0
// op_norm_ref.h: batch normalisation for the element type T. See op_real.h.
// x (rows, C), stats (2, C): mean, variance. Sums over rows in double.

static enum status FN(ref_batch_norm_stats)(const struct op_call *call)
{
    int64_t c = channels(call->node->inputs[0]), rows = row_count(call->node->inputs[0]);
    const T *x = call->in[0];
    T *stats = call->out;
    double *mean = MEM_NEW_ARRAY(double, 2 * c), *variance = mean + c;
    for (int64_t i = 0; i < rows * c; i++) {
        mean[i % c] += (double)x[i] / (double)rows;
    }
    for (int64_t i = 0; i < rows * c; i++) {
        double d = (double)x[i] - mean[i % c];
        variance[i % c] += d * d / (double)rows;
    }
    for (int64_t i = 0; i < 2 * c; i++) {
        stats[i] = (T)mean[i];
    }
    mem_free(mean);
    return STATUS_OK;
}

static enum status FN(ref_batch_norm)(const struct op_call *call)
{
    int64_t c = channels(call->node->inputs[0]), rows = row_count(call->node->inputs[0]);
    const T *x = call->in[0], *mean = call->in[1], *gamma = call->in[2], *beta = call->in[3];
    T *y = call->out;
    double *scale = MEM_NEW_ARRAY(double, c);
    for (int64_t k = 0; k < c; k++) {
        scale[k] = (double)gamma[k] / sqrt((double)mean[c + k] + call->node->attr.epsilon);
    }
    for (int64_t i = 0; i < rows; i++) {
        for (int64_t k = 0; k < c; k++) {
            y[i * c + k] = (x[i * c + k] - mean[k]) * (T)scale[k] + beta[k];
        }
    }
    mem_free(scale);
    return STATUS_OK;
}

static enum status FN(ref_batch_norm_dparam)(const struct op_call *call)
{
    int64_t c = channels(call->node->inputs[0]), rows = row_count(call->node->inputs[0]);
    const T *x = call->in[0], *mean = call->in[1], *dy = call->in[2];
    T *out = call->out;
    double *sum = MEM_NEW_ARRAY(double, 2 * c);  // dgamma without the scale, dbeta
    for (int64_t i = 0; i < rows; i++) {
        for (int64_t k = 0; k < c; k++) {
            double d = (double)dy[i * c + k];
            sum[k] += d * ((double)x[i * c + k] - (double)mean[k]);
            sum[c + k] += d;
        }
    }
    for (int64_t k = 0; k < c; k++) {
        out[k] = (T)(sum[k] / sqrt((double)mean[c + k] + call->node->attr.epsilon));
        out[c + k] = (T)sum[c + k];
    }
    mem_free(sum);
    return STATUS_OK;
}

// With e = rsqrt(variance + epsilon):
// dx = gamma * e * (dy - (dbeta + (x - mean) * e * dgamma) / rows), the last term with batch_stats.
static enum status FN(ref_batch_norm_dx)(const struct op_call *call)
{
    int64_t c = channels(call->node->inputs[0]), rows = row_count(call->node->inputs[0]);
    const T *x = call->in[0], *mean = call->in[1], *gamma = call->in[2], *dy = call->in[3];
    const T *dgamma = call->in[4], *dbeta = dgamma + c;
    double share = call->node->attr.batch_stats ? 1 / (double)rows : 0;
    T *dx = call->out;
    double *e = MEM_NEW_ARRAY(double, c);
    for (int64_t k = 0; k < c; k++) {
        e[k] = 1 / sqrt((double)mean[c + k] + call->node->attr.epsilon);
    }
    for (int64_t i = 0; i < rows; i++) {
        for (int64_t k = 0; k < c; k++) {
            T normal = (x[i * c + k] - mean[k]) * (T)e[k];
            T common = (dbeta[k] + normal * dgamma[k]) * (T)share;
            dx[i * c + k] = gamma[k] * (T)e[k] * (dy[i * c + k] - common);
        }
    }
    mem_free(e);
    return STATUS_OK;
}
