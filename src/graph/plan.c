// SPDX-License-Identifier: Apache-2.0
// plan.c: places blocks with known lifetimes in one slab. Biggest first, each at the lowest offset
// where it meets no other block that lives at the same time: within a few per cent of the peak of
// live bytes for networks, and the same answer every time.
#include <stdlib.h>

#include "trainer/graph.h"

struct placed {
    size_t start, end;
};

static int compare_items(const void *a, const void *b)
{
    const struct plan_item *x = *(struct plan_item *const *)a, *y = *(struct plan_item *const *)b;
    if (x->size != y->size) {
        return x->size < y->size ? 1 : -1;
    }
    return x < y ? -1 : x > y;  // array order: a stable result
}

static int compare_placed(const void *a, const void *b)
{
    const struct placed *x = a, *y = b;
    return x->start < y->start ? -1 : x->start > y->start;
}

size_t plan_place(struct plan_item *items, int count)
{
    struct plan_item **order = MEM_NEW_ARRAY(struct plan_item *, count);
    struct placed *near = MEM_NEW_ARRAY(struct placed, count);
    for (int i = 0; i < count; i++) {
        order[i] = &items[i];
    }
    if (count) {
        qsort(order, (size_t)count, sizeof *order, compare_items);
    }
    size_t slab = 0;
    for (int i = 0; i < count; i++) {
        struct plan_item *item = order[i];
        int near_count = 0;
        for (int k = 0; k < i && item->size; k++) {
            if (order[k]->first <= item->last && item->first <= order[k]->last && order[k]->size) {
                near[near_count++] =
                    (struct placed){order[k]->offset, order[k]->offset + order[k]->size};
            }
        }
        qsort(near, (size_t)near_count, sizeof *near, compare_placed);
        size_t offset = 0;
        for (int k = 0; k < near_count && near[k].start < offset + item->size; k++) {
            size_t end = CEIL_DIV(near[k].end, (size_t)MEM_ALIGN) * MEM_ALIGN;
            offset = MAX(offset, end);
        }
        item->offset = offset;
        slab = MAX(slab, item->size ? offset + item->size : 0);
    }
    mem_free(order);
    mem_free(near);
    return slab;
}
