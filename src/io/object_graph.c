// SPDX-License-Identifier: Apache-2.0
// object_graph.c: TrackableObjectGraph, the tree of objects behind a Keras checkpoint:
//   nodes 1 { children 1 { node_id 1, local_name 2 }, attributes 2 { name 1, full_name 2,
//   checkpoint_key 3 }, slot_variables 3 { original_variable_node_id 1, slot_name 2,
//   slot_variable_node_id 3 } }
#include <string.h>

#include "trainer/io.h"

int object_add_orphan(struct object_graph *graph)
{
    struct object_node *node = ARENA_NEW(&graph->arena, struct object_node);
    node->id = graph->count;
    GROW(graph->nodes, graph->count, graph->capacity);
    graph->nodes[graph->count++] = node;
    return node->id;
}

void object_graph_init(struct object_graph *graph)
{
    *graph = (struct object_graph){0};
    arena_init(&graph->arena);
    (void)object_add_orphan(graph);
}

void object_graph_release(struct object_graph *graph)
{
    for (int i = 0; i < graph->count; i++) {
        mem_free(graph->nodes[i]->children);
        mem_free(graph->nodes[i]->slots);
    }
    mem_free(graph->nodes);
    arena_release(&graph->arena);
    *graph = (struct object_graph){0};
}

void object_link(struct object_graph *graph, int parent, const char *name, int child)
{
    struct object_node *node = graph->nodes[parent];
    GROW(node->children, node->child_count, node->child_capacity);
    node->children[node->child_count++] =
        (struct object_child){child, arena_strdup(&graph->arena, name)};
}

int object_add(struct object_graph *graph, int parent, const char *name)
{
    int child = object_add_orphan(graph);
    object_link(graph, parent, name, child);
    return child;
}

void object_set_variable(struct object_graph *graph, int node, const char *path,
                         const char *full_name)
{
    graph->nodes[node]->key =
        arena_printf(&graph->arena, "%s/.ATTRIBUTES/VARIABLE_VALUE", path);
    graph->nodes[node]->full_name = full_name ? arena_strdup(&graph->arena, full_name) : NULL;
}

void object_add_slot(struct object_graph *graph, int optimizer, int variable, const char *slot_name,
                     int slot_node)
{
    struct object_node *node = graph->nodes[optimizer];
    GROW(node->slots, node->slot_count, node->slot_capacity);
    node->slots[node->slot_count++] =
        (struct object_slot){variable, slot_node, arena_strdup(&graph->arena, slot_name)};
}

int object_find(const struct object_graph *graph, int parent, const char *name)
{
    const struct object_node *node = parent < 0 ? NULL : graph->nodes[parent];
    for (int i = 0; node && i < node->child_count; i++) {
        if (strcmp(node->children[i].name, name) == 0) {
            return node->children[i].node;
        }
    }
    return -1;
}

static void put_id(struct text *out, int field, int id)
{
    if (id) {  // proto3: a zero is left out
        wire_varint(out, field, (uint64_t)id);
    }
}

void object_graph_encode(const struct object_graph *graph, struct text *out)
{
    struct text node = {0}, part = {0};
    for (int i = 0; i < graph->count; i++) {
        const struct object_node *from = graph->nodes[i];
        text_clear(&node);
        for (int k = 0; k < from->child_count; k++) {
            text_clear(&part);
            put_id(&part, 1, from->children[k].node);
            wire_string(&part, 2, from->children[k].name);
            wire_message(&node, 1, &part);
        }
        if (from->key) {
            text_clear(&part);
            wire_string(&part, 1, "VARIABLE_VALUE");
            if (from->full_name) {
                wire_string(&part, 2, from->full_name);
            }
            wire_string(&part, 3, from->key);
            wire_message(&node, 2, &part);
        }
        for (int k = 0; k < from->slot_count; k++) {
            text_clear(&part);
            put_id(&part, 1, from->slots[k].variable);
            wire_string(&part, 2, from->slots[k].name);
            put_id(&part, 3, from->slots[k].slot_node);
            wire_message(&node, 3, &part);
        }
        wire_message(out, 1, &node);
    }
    text_release(&node);
    text_release(&part);
}

// One nested message with an id, a name and a second id, in whatever fields.
struct triple {
    uint64_t first, third;
    const char *second;
    const char *third_text;
};

static bool decode_triple(struct arena *arena, const struct wire_reader *from, struct triple *out)
{
    struct wire_reader reader;
    *out = (struct triple){.second = "", .third_text = NULL};
    wire_open(&reader, from->bytes, from->size);
    while (wire_next(&reader)) {
        if (reader.field == 1 && reader.type == 0) {
            out->first = reader.value;
        } else if (reader.field == 2 && reader.type == 2) {
            out->second = arena_strndup(arena, (const char *)reader.bytes, reader.size);
        } else if (reader.field == 3 && reader.type == 0) {
            out->third = reader.value;
        } else if (reader.field == 3 && reader.type == 2) {
            out->third_text = arena_strndup(arena, (const char *)reader.bytes, reader.size);
        }
    }
    return !reader.damaged;
}

static bool decode_node(struct object_graph *graph, int id, const struct wire_reader *from)
{
    struct wire_reader reader;
    struct object_node *node = graph->nodes[id];
    wire_open(&reader, from->bytes, from->size);
    while (wire_next(&reader)) {
        struct triple triple;
        if (reader.type != 2 || reader.field > 3) {
            continue;
        }
        if (!decode_triple(&graph->arena, &reader, &triple) ||
            triple.first >= (uint64_t)graph->count || triple.third >= (uint64_t)graph->count) {
            return false;
        }
        if (reader.field == 1) {
            object_link(graph, id, triple.second, (int)triple.first);
        } else if (reader.field == 2) {
            node->full_name = triple.second;
            node->key = triple.third_text ? triple.third_text : node->key;
        } else {
            object_add_slot(graph, id, (int)triple.first, triple.second, (int)triple.third);
        }
    }
    return !reader.damaged;
}

enum status object_graph_decode(const char *where, const void *bytes, size_t size,
                                struct object_graph *out)
{
    struct wire_reader reader;
    object_graph_init(out);
    int count = 0;
    wire_open(&reader, bytes, size);
    while (wire_next(&reader)) {
        count += reader.field == 1 && reader.type == 2;
    }
    bool good = !reader.damaged && count > 0;
    while (good && out->count < count) {  // ids may point forward: all nodes first
        (void)object_add_orphan(out);
    }
    wire_open(&reader, bytes, size);
    for (int id = 0; good && wire_next(&reader);) {
        if (reader.field == 1 && reader.type == 2) {
            good = decode_node(out, id++, &reader);
        }
    }
    if (!good) {
        object_graph_release(out);
        return FAIL(ERR_CORRUPT, "%s: the object graph cannot be read", where);
    }
    return STATUS_OK;
}
