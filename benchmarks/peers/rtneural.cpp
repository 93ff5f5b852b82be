// RTNeural's layers with sizes known to the compiler, on Eigen.
#define RTNEURAL_USE_EIGEN 1
#define RTNEURAL_DEFAULT_ALIGNMENT 32
#define EIGEN_STACK_ALLOCATION_LIMIT 0
#include "RTNeural/RTNeural.h"
#include "peer.h"
#include <cstdlib>
#include <new>
#include <vector>

using namespace RTNeural;
template <int inputs> using Lstm = LSTMLayerT<float, inputs, UNITS>;
#if LAYERS == 1
using Net = ModelT<float, FEATURES, 1, Lstm<FEATURES>, DenseT<float, UNITS, 1>>;
#elif LAYERS == 2
using Net = ModelT<float, FEATURES, 1, Lstm<FEATURES>, Lstm<UNITS>, DenseT<float, UNITS, 1>>;
#else
using Net = ModelT<float, FEATURES, 1, Lstm<FEATURES>, Lstm<UNITS>, Lstm<UNITS>, DenseT<float, UNITS, 1>>;
#endif
static Net *net;

using Matrix = std::vector<std::vector<float>>;

static Matrix transposed(const float *rows, int inputs)
{
    Matrix columns(inputs, std::vector<float>(4 * UNITS));
    for (int row = 0; row < 4 * UNITS; row++)
        for (int i = 0; i < inputs; i++) columns[i][row] = rows[row * inputs + i];
    return columns;
}

template <class Any> static const float *load(Any &layer, const float *w, int inputs)
{
    const float *r = w + 4 * UNITS * inputs, *b = r + 4 * UNITS * UNITS;
    layer.setWVals(transposed(w, inputs));
    layer.setUVals(transposed(r, UNITS));
    layer.setBVals(std::vector<float>(b, b + 4 * UNITS));
    return b + 4 * UNITS;
}

void peer_init(const float *w)
{
    net = new (aligned_alloc(64, (sizeof(Net) + 63) / 64 * 64)) Net();
    w = load(net->get<0>(), w, FEATURES);
#if LAYERS > 1
    w = load(net->get<1>(), w, UNITS);
#endif
#if LAYERS > 2
    w = load(net->get<2>(), w, UNITS);
#endif
    net->get<LAYERS>().setWeights(Matrix{std::vector<float>(w, w + UNITS)});
    net->get<LAYERS>().setBias(w + UNITS);
    net->reset();
}

void peer_reset(void) { net->reset(); }

void peer_step(const float *x, float *y, void *)
{
    if (ROWS > 1) net->reset();
    for (int row = 0; row < ROWS; row++) {
        alignas(64) float in[(FEATURES + 15) / 16 * 16] = {0};
        for (int i = 0; i < FEATURES; i++) in[i] = x[row * FEATURES + i];
        y[row] = net->forward(in);
    }
}
