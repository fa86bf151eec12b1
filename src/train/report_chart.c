// SPDX-License-Identifier: Apache-2.0
// report_chart.c: line charts as SVG. Complete without a script; the values go along for the hover.
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "report_impl.h"

// In SVG units. The margins hold six characters and two lines of the telephone's larger letters.
enum { WIDTH = 560, HEIGHT = 250, LEFT = 80, RIGHT = 18, TOP = 16, BOTTOM = 40 };

struct axis {
    double low, high, step;
};

// 1, 2 or 5 times a power of ten that divides a range into at most so many parts.
static double round_step(double range, int parts)
{
    double raw = range / parts, power = pow(10, floor(log10(raw))), unit = raw / power;
    return power * (unit <= 1 ? 1 : unit <= 2 ? 2 : unit <= 5 ? 5 : 10);
}

// Round numbers around the data, about five of them.
static struct axis axis_of(double low, double high)
{
    if (!(high > low)) {
        double pad = low == 0 ? 1 : fabs(low) / 2;
        low -= pad;
        high += pad;
    }
    double step = round_step(high - low, 4);
    return (struct axis){floor(low / step) * step, ceil(high / step) * step, step};
}

static double place_x(double x, const double *xs, int count)
{
    double low = xs[0], high = xs[count - 1];
    double share = high > low ? (x - low) / (high - low) : 0.5;
    return LEFT + share * (WIDTH - LEFT - RIGHT);
}

static double place_y(double y, const struct axis *axis)
{
    return HEIGHT - BOTTOM - (y - axis->low) / (axis->high - axis->low) * (HEIGHT - TOP - BOTTOM);
}

static void put_label(struct text *out, double value, bool percent)
{
    if (percent) {
        text_printf(out, "%g%%", round(value * 1e4) / 100);
    } else if (fabs(value) >= 1e4) {
        text_printf(out, "%gk", value / 1000);
    } else {
        text_printf(out, "%.4g", fabs(value) < 1e-12 ? 0 : value);
    }
}

static void put_grid(struct text *out, const struct axis *axis, bool percent)
{
    for (double y = axis->low; y <= axis->high + axis->step / 2; y += axis->step) {
        double at = place_y(y, axis);
        text_printf(out, "<line class=\"grid\" x1=\"%d\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\"/>"
                    "<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">", LEFT, WIDTH - RIGHT, at, at,
                    LEFT - 8, at + 4);
        put_label(out, y, percent);
        text_append(out, "</text>");
    }
}

// x counts epochs or steps: labels at whole round numbers within the data.
static void put_x_labels(struct text *out, const double *x, int count, const char *name)
{
    double range = x[count - 1] - x[0], step = range > 6 ? round_step(range, 6) : 1;
    for (double at = ceil(x[0] / step) * step; at <= x[count - 1]; at += step) {
        text_printf(out, "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%.0f</text>",
                    place_x(at, x, count), HEIGHT - BOTTOM + 19, at);
    }
    text_printf(out, "<text class=\"axis\" x=\"%d\" y=\"%d\" text-anchor=\"end\">", WIDTH - RIGHT,
                HEIGHT - 2);
    text_append_html(out, name);
    text_append(out, "</text>");
}

// A path with gaps where there is no value, and a dot a point while there are few.
static void put_series(struct text *out, const struct chart_series *series, const double *x,
                       int count, const struct axis *axis)
{
    bool pen = false;
    text_printf(out, "<path style=\"stroke:var(%s)\" d=\"", series->color);
    for (int i = 0; i < count; i++) {
        if (!isfinite(series->values[i])) {
            pen = false;
            continue;
        }
        text_printf(out, "%c%.1f %.1f", pen ? 'L' : 'M', place_x(x[i], x, count),
                    place_y(series->values[i], axis));
        pen = true;
    }
    text_append(out, "\"/>");
    for (int i = 0; i < count && count <= 60; i++) {
        if (isfinite(series->values[i])) {
            text_printf(out, "<circle style=\"fill:var(%s)\" cx=\"%.1f\" cy=\"%.1f\" r=\"3\"/>",
                        series->color, place_x(x[i], x, count), place_y(series->values[i], axis));
        }
    }
}

static void put_values(struct text *out, const double *x, int count,
                       const struct chart_series *series, int series_count, const char *x_name,
                       bool percent)
{
    text_append(out, "<script type=\"application/json\">{\"x\":[");
    for (int i = 0; i < count; i++) {
        text_printf(out, "%s[%.6g,%.1f]", i ? "," : "", x[i], place_x(x[i], x, count));
    }
    text_append(out, "],\"name\":");
    text_append_json(out, x_name);
    text_printf(out, ",\"percent\":%d,\"series\":[", percent);
    for (int s = 0; s < series_count; s++) {
        text_printf(out, "%s{\"name\":", s ? "," : "");
        text_append_json(out, series[s].name);
        text_append(out, ",\"y\":[");
        for (int i = 0; i < count; i++) {
            text_append(out, i ? "," : "");
            text_append_number(out, round(series[s].values[i] * 1e6) / 1e6);
        }
        text_append(out, "]}");
    }
    text_append(out, "]}</script>");
}

void chart_svg(struct text *out, const char *title, const double *x, int count,
               const struct chart_series *series, int series_count, const char *x_name, bool percent)
{
    double low = INFINITY, high = -INFINITY;
    for (int s = 0; s < series_count; s++) {
        for (int i = 0; i < count; i++) {
            if (isfinite(series[s].values[i])) {
                low = fmin(low, series[s].values[i]);
                high = fmax(high, series[s].values[i]);
            }
        }
    }
    if (!(high >= low)) {
        return;  // not one value
    }
    struct axis axis = axis_of(low, high);
    text_append(out, "<figure class=\"chart\" tabindex=\"0\"><figcaption><span>");
    text_append_html(out, title);
    text_append(out, "</span>");
    for (int s = 0; s < series_count && series_count > 1; s++) {
        text_printf(out, "<span class=\"key\"><i style=\"background:var(%s)\"></i>",
                    series[s].color);
        text_append_html(out, series[s].name);
        text_append(out, "</span>");
    }
    text_printf(out, "</figcaption><svg viewBox=\"0 0 %d %d\" role=\"img\" aria-label=\"", WIDTH,
                HEIGHT);
    text_append_html(out, title);
    text_append(out, "\">");
    put_grid(out, &axis, percent);
    put_x_labels(out, x, count, x_name);
    for (int s = 0; s < series_count; s++) {
        put_series(out, &series[s], x, count, &axis);
    }
    text_printf(out, "<line class=\"cursor\" y1=\"%d\" y2=\"%d\"/></svg><output></output>", TOP,
                HEIGHT - BOTTOM);
    put_values(out, x, count, series, series_count, x_name, percent);
    text_append(out, "</figure>\n");
}
