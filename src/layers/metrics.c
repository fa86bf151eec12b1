// SPDX-License-Identifier: Apache-2.0
// metrics.c: losses and metrics: in the graph for training, on the host in double for evaluation.
#include <math.h>

#include "trainer/layers.h"

struct node *loss_cross_entropy(struct graph *graph, struct node *logits, struct node *labels,
                                double label_smoothing)
{
    struct op_attr attr = {.label_smoothing = label_smoothing};
    return GRAPH_NODE(graph, OP_CROSS_ENTROPY, &attr, logits, labels);
}

struct node *metric_correct(struct graph *graph, struct node *logits, struct node *labels)
{
    struct node *predicted = GRAPH_NODE(graph, OP_ARGMAX, NULL, logits);  // (N)
    return GRAPH_NODE(graph, OP_EQUAL, &(struct op_attr){.dtype = graph->real}, predicted, labels);
}

struct node *weighted_sum(struct graph *graph, struct node *values, struct node *weights)
{
    return graph_sum_all(graph, GRAPH_NODE(graph, OP_MUL, NULL, values, weights));
}

bool metric_in_top_k(const float *scores, int classes, int32_t label, int k)
{
    int above = 0;
    for (int i = 0; i < classes; i++) {
        above += scores[i] > scores[label];
    }
    return above < k;
}

int metric_argmax(const float *scores, int classes)
{
    int best = 0;
    for (int i = 1; i < classes; i++) {
        best = scores[i] > scores[best] ? i : best;
    }
    return best;
}

void confusion_init(struct confusion *confusion, int classes)
{
    confusion->classes = classes;
    confusion->counts = MEM_NEW_ARRAY(int64_t, classes * classes);
}

void confusion_release(struct confusion *confusion)
{
    mem_free(confusion->counts);
    *confusion = (struct confusion){0};
}

void confusion_add(struct confusion *confusion, int32_t label, int predicted)
{
    confusion->counts[label * confusion->classes + predicted]++;
}

static double ratio(double a, double b)
{
    return b == 0 ? 0 : a / b;
}

struct binary_metrics confusion_binary(const struct confusion *confusion, int positive)
{
    double tp = 0, fp = 0, fn = 0, tn = 0;
    for (int label = 0; label < confusion->classes; label++) {
        for (int predicted = 0; predicted < confusion->classes; predicted++) {
            double count = (double)confusion->counts[label * confusion->classes + predicted];
            double *cell = label == positive ? (predicted == positive ? &tp : &fn)
                                             : (predicted == positive ? &fp : &tn);
            *cell += count;
        }
    }
    struct binary_metrics m = {.accuracy = ratio(tp + tn, tp + fp + fn + tn),
                               .precision = ratio(tp, tp + fp),
                               .recall = ratio(tp, tp + fn)};
    m.f1 = ratio(2 * m.precision * m.recall, m.precision + m.recall);
    m.matthews = ratio(tp * tn - fp * fn, sqrt((tp + fp) * (tp + fn) * (tn + fp) * (tn + fn)));
    return m;
}
