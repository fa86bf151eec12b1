// SPDX-License-Identifier: Apache-2.0
// variables.c: the set of variables behind a model, and their first values.
#include <math.h>
#include <string.h>

#include "trainer/graph.h"
#include "trainer/rng.h"

void variables_init(struct variables *variables)
{
    *variables = (struct variables){0};
    arena_init(&variables->arena);
}

void variables_release(struct variables *variables)
{
    arena_release(&variables->arena);
    mem_free(variables->items);
    *variables = (struct variables){0};
}

struct variable *variables_find(const struct variables *variables, const char *name)
{
    for (int i = 0; i < variables->count; i++) {
        if (strcmp(variables->items[i]->name, name) == 0) {
            return variables->items[i];
        }
    }
    return NULL;
}

struct variable *variables_get(struct variables *variables, const char *name, enum dtype dtype,
                               struct shape shape, enum variable_role role, bool trainable,
                               struct initializer init)
{
    struct variable *variable = variables_find(variables, name);
    if (variable) {
        CHECK(variable->dtype == dtype && shape_equal(variable->shape, shape) &&
                  variable->role == role,
              "variable %s asked for as %s %s, made as %s %s", name, dtype_name(dtype),
              shape_str(shape), dtype_name(variable->dtype), shape_str(variable->shape));
        return variable;
    }
    variable = ARENA_NEW(&variables->arena, struct variable);
    *variable = (struct variable){.id = variables->count,
                                  .name = arena_strdup(&variables->arena, name),
                                  .dtype = dtype,
                                  .shape = shape,
                                  .role = role,
                                  .trainable = trainable,
                                  .init = init};
    GROW(variables->items, variables->count, variables->capacity);
    variables->items[variables->count++] = variable;
    return variable;
}

// A standard normal number by Box and Muller from two uniform ones; u1 is kept above 0.
static double normal(struct rng_block block)
{
    double u1 = ((double)block.word[0] + 1.0) * 0x1p-32;
    double u2 = (double)block.word[1] * 0x1p-32;
    return sqrt(-2.0 * log(u1)) * cos(6.283185307179586 * u2);
}

// Element `i` of the initial value. A pure function, so that any part can be made anywhere.
static double initial_element(const struct initializer *init, uint64_t seed, uint64_t name_hash,
                              uint64_t i)
{
    struct rng_block block = rng_block_at(seed, RNG_INIT, (uint32_t)(name_hash >> 32),
                                          name_hash & 0xffffffffu, i);
    double unit = (double)(block.word[0] >> 8) * 0x1p-24;
    switch (init->kind) {
    case INIT_ZEROS: return 0;
    case INIT_ONES: return 1;
    case INIT_GLOROT_UNIFORM:
        // Glorot and Bengio 2010: limit = sqrt(6 / (fan_in + fan_out)).
        return (2 * unit - 1) * sqrt(6.0 / (double)(init->fan_in + init->fan_out));
    case INIT_UNIFORM: return (2 * unit - 1) * init->scale;
    case INIT_NORMAL: return init->scale * normal(block);
    case INIT_HE_NORMAL: {
        // He et al. 2015 as Keras does it: a normal cut at two standard deviations, widened by
        // 1/0.8796... so that the cut one has variance 2 / fan_in.
        double deviation = sqrt(2.0 / (double)init->fan_in) / 0.87962566103423978;
        double value = normal(block);
        for (uint64_t again = 1; fabs(value) > 2; again++) {
            value = normal(rng_block_at(seed, RNG_INIT, (uint32_t)(name_hash >> 32),
                                        (name_hash & 0xffffffffu) + (again << 32), i));
        }
        return deviation * value;
    }
    }
    return 0;
}

void variable_initialize(const struct variable *variable, uint64_t seed, void *data)
{
    uint64_t hash = hash_bytes(HASH_START, variable->name, strlen(variable->name));
    int64_t count = shape_count(variable->shape);
    for (int64_t i = 0; i < count; i++) {
        double value = initial_element(&variable->init, seed, hash, (uint64_t)i);
        switch (variable->dtype) {
        case DTYPE_F32: ((float *)data)[i] = (float)value; break;
        case DTYPE_F64: ((double *)data)[i] = value; break;
        case DTYPE_I32: ((int32_t *)data)[i] = (int32_t)value; break;
        case DTYPE_I64: ((int64_t *)data)[i] = (int64_t)value; break;
        default: ((uint8_t *)data)[i] = (uint8_t)value; break;
        }
    }
}
