/* Layers at batch size 1 in C99, one number after another: for microcontrollers, and for compilers without GNU vectors.

   Matrices are row-major, as in ONNX. Denormal numbers and rounding are as the caller has them. A NaN is passed on, if
   the compiler is not told that there is none. Of these functions the file of a network has those that it calls. */

#include <math.h>
#include <stdint.h>
#include <string.h>

#define APART static
#define WITH_DEFAULTS(call) call

/* Gates are in the order of ONNX. RESET is a GRU with linear_before_reset = 0. */
enum { LSTM, GRU, RESET, RNN };

static int32_t bits_of(float x)
{
    int32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static float float_of(int32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static float least(float a, float x) { return x > a ? a : x; }

static float most(float a, float x) { return x < a ? a : x; }

/* e^x for |x| <= 87, clamped there: 2^n times a polynomial of the rest (Cephes, S. Moshier). */
static float exponential(float x)
{
    float n, r, s, p;
    if (x != x)
        return x;
    x = most(-87.f, least(87.f, x));
    n = (float)(int32_t)(x * 1.44269504f + (x < 0 ? -0.5f : 0.5f));
    r = x - n * 0.693359375f;
    r += n * 2.12194440e-4f;
    s = r * r;
    p = (r * 1.9875691500e-4f + 1.3981999507e-3f) * s + (r * 8.3334519073e-3f + 4.1665795894e-2f);
    p = p * s + (r * 1.6666665459e-1f + 5.0000001201e-1f);
    p = p * s + (r + 1.f);
    return p * float_of(((int32_t)n + 127) * 0x800000);
}

static float sigmoid(float x) { return 1.f / (1.f + exponential(-x)); }

/* A rational function, as in Eigen. */
static float hyperbolic_tangent(float x)
{
    static const float above[] = {-2.76076847742355e-16f, 2.00018790482477e-13f, -8.60467152213735e-11f, 5.12229709037114e-08f,
                                  1.48572235717979e-05f, 6.37261928875436e-04f, 4.89352455891786e-03f};
    static const float below[] = {1.19825839466702e-06f, 1.18534705686654e-04f, 2.26843463243900e-03f, 4.89352518554385e-03f};
    float s, p = 0, q = 0;
    x = most(-7.90531110763549805f, least(7.90531110763549805f, x));
    s = x * x;
    for (int i = 0; i < 7; i++) p = p * s + above[i];
    for (int i = 0; i < 4; i++) q = q * s + below[i];
    return x * (p / q);
}

/* total + the products of k numbers. */
static float dot(int k, const float *x, const float *w, float total)
{
    for (int i = 0; i < k; i++) total += x[i] * w[i];
    return total;
}

/* A layer over `rows` time steps, backwards if `reverse`, from the state in h and c to the state after it. The weights are
   those of the input, of h, the biases, and of a GRU the last gate's bias of h. h has room for two states; of a RESET, c
   is a place for r * h. */
static void recurrent(int kind, int k, int units, int rows, int reverse, const float *x, const float *w, float *h, float *c, float *y, int ys)
{
    const int gates = kind == LSTM ? 4 : kind == RNN ? 1 : 3, sums = kind == GRU || kind == RESET ? 2 : gates;
    const float *wh = w + gates * units * k, *b = wh + gates * units * units, *bh = b + gates * units;
    float *next = h + units;
    for (int t = 0; t < rows; t++) {
        const int row = reverse ? rows - 1 - t : t;
        const float *input = x + row * k;
        for (int j = 0; j < units; j++) {
            const int last = 2 * units + j;
            float a[4];
            for (int g = 0; g < sums; g++) {
                const int at = g * units + j;
                a[g] = dot(units, h, wh + at * units, dot(k, input, w + at * k, b[at]));
                if (kind != RNN && g < 3)
                    a[g] = sigmoid(a[g]);
            }
            if (kind == LSTM) {
                c[j] = a[2] * c[j] + a[0] * hyperbolic_tangent(a[3]);
                next[j] = a[1] * hyperbolic_tangent(c[j]);
            } else if (kind == RESET) {
                next[j] = a[0];
                c[j] = a[1] * h[j];
            } else if (kind == GRU) {
                const float candidate =
                    hyperbolic_tangent(dot(k, input, w + last * k, b[last]) + a[1] * dot(units, h, wh + last * units, bh[j]));
                next[j] = candidate + a[0] * (h[j] - candidate);
            } else
                next[j] = hyperbolic_tangent(a[0]);
        }
        for (int j = 0; j < units && kind == RESET; j++) {
            const int last = 2 * units + j;
            const float candidate = hyperbolic_tangent(dot(units, c, wh + last * units, dot(k, input, w + last * k, b[last])));
            next[j] = candidate + next[j] * (h[j] - candidate);
        }
        memcpy(h, next, sizeof *h * (size_t)units);
        memcpy(y + row * ys, next, sizeof *h * (size_t)units);
    }
}

/* y = b + x w, for `rows` rows of k numbers x, from one to the next xs, and of `count` numbers y; w has its columns one
   after another. */
static void dots(int rows, int k, int count, const float *x, int xs, const float *w, const float *b, float *y, int ys)
{
    for (int r = 0; r < rows; r++)
        for (int o = 0; o < count; o++) y[r * ys + o] = dot(k, x + r * xs, w + o * k, b[o]);
}

/* Pointwise functions; a and b are their parameters. */
#define POINTWISE(function, count, x, y, a, b) \
    for (int i = 0; i < (count); i++) (y)[i] = function((x)[i], a, b)

static float relu(float x, float a, float b) { return (void)a, (void)b, most(0, x); }

static float clip(float x, float a, float b) { return least(b, most(a, x)); }

static float leaky_relu(float x, float a, float b) { return (void)b, x < 0 ? a * x : x; }

static float hard_sigmoid(float x, float a, float b) { return most(0, least(1, a * x + b)); }

static float elu(float x, float a, float b) { return (void)b, x < 0 ? a * (exponential(x) - 1) : x; }

static float softsign(float x, float a, float b) { return (void)a, (void)b, x / (1 + (x < 0 ? -x : x)); }

static float logistic(float x, float a, float b) { return (void)a, (void)b, sigmoid(x); }

static float tangent(float x, float a, float b) { return (void)a, (void)b, hyperbolic_tangent(x); }

static float power_of_e(float x, float a, float b)
{
    const float root = exponential(x / 2);
    return (void)a, (void)b, root * root;
}

static float square_root(float x, float a, float b) { return (void)a, (void)b, sqrtf(x); }

static float negated(float x, float a, float b) { return (void)a, (void)b, -x; }

static float absolute(float x, float a, float b) { return (void)a, (void)b, float_of(bits_of(x) & 0x7fffffff); }

static float inverse(float x, float a, float b) { return (void)a, (void)b, 1.f / x; }

/* A rational function up to 4, as in Eigen. */
static float error_function(float x, float a, float b)
{
    static const float above[] = {-2.72614225801306e-10f, 2.77068142495902e-08f, -2.10102402082508e-06f, -5.69250639462346e-05f,
                                  -7.34990630326855e-04f, -2.95459980854025e-03f, -1.60960333262415e-02f};
    static const float below[] = {-1.45660718464996e-05f, -2.13374055278905e-04f, -1.68282697438203e-03f, -7.37332916720468e-03f,
                                  -1.42647390514189e-02f};
    float s, p = 0, q = 0;
    x = most(-4, least(4, x));
    s = x * x;
    for (int i = 0; i < 7; i++) p = p * s + above[i];
    for (int i = 0; i < 5; i++) q = q * s + below[i];
    return (void)a, (void)b, x * (p / q);
}

static float natural_log(float x, float a, float b) { return (void)a, (void)b, logf(x); }

/* y = function(x, z) by rows; from a row of z to the next are zs. */
#define BINARY(function, rows, count, x, z, zs, y) \
    for (int r = 0; r < (rows); r++) \
        for (int i = 0; i < (count); i++) (y)[r * (count) + i] = function((x)[r * (count) + i], (z)[r * (zs) + i])

static float sum(float x, float z) { return x + z; }

static float difference(float x, float z) { return x - z; }

static float times(float x, float z) { return x * z; }

static float quotient(float x, float z) { return x / z; }

static float subtracted(float x, float z) { return z - x; }

static float divisor(float x, float z) { return z / x; }

static float larger(float x, float z) { return x >= z || x != x ? x : z; }

static float smaller(float x, float z) { return x <= z || x != x ? x : z; }

static float less(float x, float z) { return x < z ? 1.f : 0.f; }

static float greater(float x, float z) { return x > z ? 1.f : 0.f; }

static float equal(float x, float z) { return x == z ? 1.f : 0.f; }

/* z where the condition x is not 0, or where it is 0, and elsewhere 0. */
static float where_true(float x, float z) { return x != 0 ? z : 0.f; }

static float where_false(float x, float z) { return x != 0 ? 0.f : z; }

/* y = x z for `batches` pairs of matrices of data: x of `rows` rows of k numbers, from one to the next xs, and z of k rows
   of `count` numbers, or if `by_columns` of `count` columns of k, from one to the next zs; batches are xb and zb apart. */
static void data_product(int batches, int rows, int k, int count, int by_columns, int xb, int xs, int zb, int zs, const float *x,
                         const float *z, float *y)
{
    for (int r = 0; r < batches * rows; r++)
        for (int j = 0; j < count; j++) {
            const float *row = x + r / rows * xb + r % rows * xs, *other = z + r / rows * zb + j * (by_columns ? zs : 1);
            float total = 0;
            for (int i = 0; i < k; i++) total += row[i] * other[i * (by_columns ? 1 : zs)];
            y[r * count + j] = total;
        }
}

/* Rows of a table for `count` numbers x, which count from its end if they are negative. Those beyond it become the first
   or the last row, and a NaN, or a number that is no index, the first. */
static void lookup(int count, int rows, int width, const float *x, const float *table, float *y)
{
    for (int i = 0; i < count; i++) {
        int32_t at = 0;
        if (x[i] > -2147483648.f && x[i] < 2147483648.f)
            at = (int32_t)x[i];
        at = at < 0 ? at + rows : at;
        at = at < 0 ? 0 : at < rows ? at : rows - 1;
        memcpy(y + i * width, table + at * width, sizeof *y * (size_t)width);
    }
}
