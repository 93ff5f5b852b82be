// LSTM layers and a dense layer as one writes them by hand with Eigen 3.4: all sizes are known to
// the compiler.
#define EIGEN_STACK_ALLOCATION_LIMIT 0
#include <Eigen/Dense>
#include "peer.h"

template <int rows, int columns> using Matrix = Eigen::Matrix<float, rows, columns>;
template <int size> using Array = Eigen::Array<float, size, 1>;
template <int rows, int columns> auto by_rows(const float *numbers)
{
    constexpr auto order = columns == 1 ? Eigen::ColMajor : Eigen::RowMajor;
    return Eigen::Map<const Eigen::Matrix<float, rows, columns, order>>(numbers);
}

// Gates in the order i, f, o, g. The sigmoid is 0.5 + 0.5 tanh(x / 2), and the weights of i, f and
// o are halved beforehand, so that one tanh is of all gates.
template <int inputs> struct Lstm {
    Matrix<4 * UNITS, inputs> w;
    Matrix<4 * UNITS, UNITS> r;
    Matrix<4 * UNITS, 1> bias;
    Matrix<4 * UNITS, ROWS> projected;
    Matrix<UNITS, ROWS> h; // in its last column that of the call before
    Array<UNITS> c;

    template <class Any> static void in_order(Any &rows)
    {
        auto g = rows.template middleRows<UNITS>(2 * UNITS);
        g.swap(rows.template bottomRows<UNITS>());
        rows.template topRows<3 * UNITS>() *= 0.5f;
    }

    const float *load(const float *weights)
    {
        w = by_rows<4 * UNITS, inputs>(weights);
        r = by_rows<4 * UNITS, UNITS>(weights + w.size());
        bias = by_rows<4 * UNITS, 1>(weights + w.size() + r.size());
        in_order(w);
        in_order(r);
        in_order(bias);
        return weights + w.size() + r.size() + bias.size();
    }

    void reset()
    {
        h.setZero();
        c.setZero();
    }

    template <class Samples> void run(const Samples &x)
    {
        projected.colwise() = bias;
        projected.noalias() += w * x;
        for (int row = 0; row < ROWS; row++) {
            auto z = projected.col(row);
            z.noalias() += r * h.col((row + ROWS - 1) % ROWS);
            const Array<4 * UNITS> gates = z.array().tanh();
            const auto i = 0.5f + 0.5f * gates.template segment<UNITS>(0);
            const auto f = 0.5f + 0.5f * gates.template segment<UNITS>(UNITS);
            const auto o = 0.5f + 0.5f * gates.template segment<UNITS>(2 * UNITS);
            c = f * c + i * gates.template segment<UNITS>(3 * UNITS);
            h.col(row) = o * c.tanh();
        }
    }
};

static Lstm<FEATURES> first;
static Lstm<UNITS> others[LAYERS > 1 ? LAYERS - 1 : 1];
static Matrix<UNITS, 1> dense;
static float dense_bias;

void peer_init(const float *weights)
{
    weights = first.load(weights);
    for (int layer = 1; layer < LAYERS; layer++) weights = others[layer - 1].load(weights);
    dense = by_rows<UNITS, 1>(weights);
    dense_bias = weights[UNITS];
}

void peer_reset(void)
{
    first.reset();
    for (auto &layer : others) layer.reset();
}

void peer_step(const float *x, float *y, void *)
{
    if (ROWS > 1) peer_reset();
    first.run(Eigen::Map<const Matrix<FEATURES, ROWS>>(x));
    auto *answers = &first.h;
    for (int layer = 1; layer < LAYERS; layer++) {
        others[layer - 1].run(*answers);
        answers = &others[layer - 1].h;
    }
    Eigen::Map<Matrix<1, ROWS>> result(y);
    result.noalias() = dense.transpose() * *answers;
    result.array() += dense_bias;
}
