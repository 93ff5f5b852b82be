// The functions that keras2c's code calls.
#include "k2c_helper_functions.c"
#include "k2c_activations.c"
#include "k2c_core_layers.c"
#include "k2c_recurrent_layers.c"
#include "peer.h"

static k2c_tensor kernel[LAYERS], recurrent[LAYERS], bias[LAYERS], result[LAYERS], dense, dense_bias;
static float state[LAYERS][2 * UNITS], gates[8 * UNITS], results[LAYERS][ROWS * UNITS], work[ROWS * UNITS + UNITS + 16];

static k2c_tensor matrix(float *array, size_t rows, size_t columns)
{
    return (k2c_tensor){array, 2, rows * columns, {rows, columns, 1, 1, 1}};
}

/* (4 UNITS, inputs) as four matrices (inputs, UNITS). */
static k2c_tensor by_gate(const float *w, int inputs)
{
    float *to = aligned_alloc(64, (sizeof(float) * 4 * UNITS * inputs + 63) / 64 * 64);
    for (int gate = 0; gate < 4; gate++)
        for (int j = 0; j < UNITS; j++)
            for (int i = 0; i < inputs; i++) to[(gate * inputs + i) * UNITS + j] = w[(gate * UNITS + j) * inputs + i];
    return matrix(to, 4 * inputs, UNITS);
}

void peer_init(const float *w)
{
    for (int layer = 0, inputs = FEATURES; layer < LAYERS; layer++, inputs = UNITS) {
        kernel[layer] = by_gate(w, inputs), w += 4 * UNITS * inputs;
        recurrent[layer] = by_gate(w, UNITS), w += 4 * UNITS * UNITS;
        bias[layer] = (k2c_tensor){(float *)w, 1, 4 * UNITS, {4 * UNITS, 1, 1, 1, 1}}, w += 4 * UNITS;
        result[layer] = matrix(results[layer], ROWS, UNITS);
    }
    dense = matrix((float *)w, UNITS, 1);
    dense_bias = (k2c_tensor){(float *)w + UNITS, 1, 1, {1, 1, 1, 1, 1}};
}

void peer_reset(void) { memset(state, 0, sizeof state); }

void peer_step(const float *x, float *y, void *unused)
{
    (void)unused;
    k2c_tensor input = matrix((float *)x, ROWS, FEATURES), output = matrix(y, ROWS, 1), *from = &input;
    if (ROWS > 1) peer_reset();
    for (int layer = 0; layer < LAYERS; from = &result[layer++])
        k2c_lstm(&result[layer], from, state[layer], &kernel[layer], &recurrent[layer], &bias[layer], gates, 0, 1, k2c_sigmoid, k2c_tanh);
    k2c_dense(&output, from, &dense, &dense_bias, k2c_linear, work);
}
