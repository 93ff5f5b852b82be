/* Matrix products, activations and recurrent layers at batch size 1, with GNU vectors of VL floats.

   All sizes are compile-time constants of the callers, so that the compiler unrolls the inner loops and keeps the sums
   in registers. Matrices are packed by columns: groups of some vectors of VL columns, and in a group row after row, so
   that a product reads its weights once and in order. A NaN is passed on: neither minimum and maximum nor the
   construction of powers of two drop it. */

#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 24")

typedef float vec __attribute__((vector_size(4 * VL), may_alias));
typedef float vec_unaligned __attribute__((vector_size(4 * VL), may_alias, aligned(4)));
typedef int32_t ivec __attribute__((vector_size(4 * VL), may_alias));

/* Registers: 32 of AVX-512 and Arm, 16 of AVX2 and SSE. TILE_ROWS x TILE vectors of sums in products of many rows, about
   GROUP in products of one. */
#if VL == 16
#define TILE_ROWS 6
#define GROUP 8
#else
#define TILE_ROWS 3
#define GROUP 8
#endif
#define TILE 4
#define SUMS 24

#define BLOCKS(units) (((units) + VL - 1) / VL)
#define PADDED(units) (BLOCKS(units) * VL)

/* The smaller and the larger; if x is a NaN, the result is. */
#if VL == 16
INLINE vec least(float a, vec x) { return (vec)_mm512_min_ps((__m512)(a - (vec){0}), (__m512)x); }
INLINE vec most(float a, vec x) { return (vec)_mm512_max_ps((__m512)(a - (vec){0}), (__m512)x); }
#elif VL == 8
INLINE vec least(float a, vec x) { return (vec)_mm256_min_ps((__m256)(a - (vec){0}), (__m256)x); }
INLINE vec most(float a, vec x) { return (vec)_mm256_max_ps((__m256)(a - (vec){0}), (__m256)x); }
#else
INLINE vec choose(ivec condition, vec a, vec b) { return (vec)(((ivec)a & condition) | ((ivec)b & ~condition)); }
INLINE vec least(float a, vec x) { return choose(x > a - (vec){0}, a - (vec){0}, x); }
INLINE vec most(float a, vec x) { return choose(x < a - (vec){0}, a - (vec){0}, x); }
#endif

/* Whether processor and system have the instructions. (Zig's compiler has no working __builtin_cpu_supports.) */
#if VL > 4
#include <cpuid.h>
static int supported(void)
{
    const unsigned first = bit_OSXSAVE | bit_FMA, saved = VL == 16 ? 0xe6 : 6; /* registers that the system saves */
    const unsigned more = VL == 16 ? bit_AVX512F | bit_AVX512BW | bit_AVX512DQ | bit_AVX512VL : bit_AVX2;
    unsigned a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d) || (c & first) != first) return 0;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (b & more) != more) return 0;
    __asm__("xgetbv" : "=a"(a), "=d"(d) : "c"(0));
    return (a & saved) == saved;
}
#else
static int supported(void) { return 1; }
#endif

INLINE vec get(const float *from, int count)
{
    vec a = {0};
    if (count >= VL)
        return *(const vec_unaligned *)from;
    memcpy(&a, from, 4 * count);
    return a;
}

INLINE void put(float *to, vec a, int count)
{
    if (count >= VL)
        *(vec_unaligned *)to = a;
    else
        memcpy(to, &a, 4 * count);
}

/* e^x for |x| <= 87, clamped there: 2^n times a polynomial of the rest (Cephes, S. Moshier). */
INLINE vec exponential(vec x)
{
    const float to_integer = 12582912.f; /* 1.5 * 2^23: the sum has the nearest integer in its last bits */
    x = most(-87.f, least(87.f, x));
    vec sum = x * 1.44269504f + to_integer, n = sum - to_integer;
    vec r = x - n * 0.693359375f + n * 2.12194440e-4f, p = r * 1.9875691500e-4f + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * (r * r) + r + 1.f;
    return p * (vec)(((ivec)sum << 23) + 0x3f800000);
}

INLINE vec sigmoid(vec x) { return 1.f / (1.f + exponential(-x)); }

/* A rational function, as in Eigen. */
INLINE vec hyperbolic_tangent(vec x)
{
    x = most(-7.90531110763549805f, least(7.90531110763549805f, x));
    vec s = x * x, p = s * -2.76076847742355e-16f + 2.00018790482477e-13f, q = s * 1.19825839466702e-06f + 1.18534705686654e-04f;
    p = p * s + -8.60467152213735e-11f;
    p = p * s + 5.12229709037114e-08f;
    p = p * s + 1.48572235717979e-05f;
    p = p * s + 6.37261928875436e-04f;
    p = p * s + 4.89352455891786e-03f;
    q = q * s + 2.26843463243900e-03f;
    q = q * s + 4.89352518554385e-03f;
    return x * (p / q);
}

/* sums[r][g] += x[r] times group w of `n` vectors of columns and `k` rows. Few sums would wait for each other, so they
   are split into those of even and odd rows. */
INLINE void product(int rows, int n, int k, const float *x, int xs, const float *w, vec *sums)
{
    vec a[SUMS], odd[SUMS] = {{0}};
    const int split = rows * n < 8;
    int i = 0;
    UNROLL for (int s = 0; s < rows * n; s++) a[s] = sums[s];
    if (split)
        for (; i + 2 <= k; i += 2, w += 2 * n * VL)
            UNROLL for (int r = 0; r < rows; r++) {
                UNROLL for (int g = 0; g < n; g++) {
                    a[r * n + g] += *(const vec *)(w + g * VL) * x[r * xs + i];
                    odd[r * n + g] += *(const vec *)(w + (n + g) * VL) * x[r * xs + i + 1];
                }
            }
    for (; i < k; i++, w += n * VL)
        UNROLL for (int r = 0; r < rows; r++) {
            UNROLL for (int g = 0; g < n; g++) a[r * n + g] += *(const vec *)(w + g * VL) * x[r * xs + i];
        }
    UNROLL for (int s = 0; s < rows * n; s++) sums[s] = a[s];
    if (split)
        UNROLL for (int s = 0; s < rows * n; s++) sums[s] += odd[s];
}

INLINE void tile(int rows, int n, int k, const float *x, int xs, const float *w, const float *b, float *y, int ys, int count)
{
    vec a[SUMS];
    UNROLL for (int s = 0; s < rows * n; s++) a[s] = *(const vec *)(b + s % n * VL);
    product(rows, n, k, x, xs, w, a);
    UNROLL for (int r = 0; r < rows; r++) {
        UNROLL for (int g = 0; g < n; g++) put(y + r * ys + g * VL, a[r * n + g], count - g * VL);
    }
}

INLINE void columns(int rows, int n, int k, const float *x, int xs, const float *w, const float *b, float *y, int ys, int count)
{
    const int rest = rows % TILE_ROWS;
    int r = 0;
    for (; r + TILE_ROWS <= rows; r += TILE_ROWS) tile(TILE_ROWS, n, k, x + r * xs, xs, w, b, y + r * ys, ys, count);
    if (rest) tile(rest, n, k, x + r * xs, xs, w, b, y + r * ys, ys, count);
}

/* y = b + x w, for `rows` rows of `k` numbers x, and of `count` numbers y. */
INLINE void dense(int rows, int k, int count, const float *x, int xs, const float *w, const float *b, float *y, int ys)
{
    const int n = BLOCKS(count), last = (n - 1) % TILE + 1;
    int j = 0;
    for (; j + TILE < n; j += TILE, w += TILE * k * VL) columns(rows, TILE, k, x, xs, w, b + j * VL, y + j * VL, ys, TILE * VL);
    columns(rows, last, k, x, xs, w, b + (n - last) * VL, y + (n - last) * VL, ys, count - (n - last) * VL);
}

/* The same for few columns: `w` has them one after another, each padded with zeros. */
INLINE void dots(int rows, int k, int count, const float *x, int xs, const float *w, const float *b, float *y, int ys)
{
    for (int r = 0; r < rows; r++)
        for (int o = 0; o < count; o++) {
            vec sum = {0};
            float total = b[o];
            for (int i = 0; i + VL <= k; i += VL) sum += get(x + r * xs + i, VL) * *(const vec *)(w + o * PADDED(k) + i);
            if (k % VL) sum += get(x + r * xs + k / VL * VL, k % VL) * *(const vec *)(w + o * PADDED(k) + k / VL * VL);
            UNROLL for (int width = VL / 2; width; width /= 2) {
                UNROLL for (int i = 0; i < width; i++) sum[i] += sum[i + width];
            }
            y[r * ys + o] = total + sum[0];
        }
}

/* Recurrent layers. Gates are in the order of ONNX and interleaved: for each block of VL units one vector of each gate.
   A kind is the number of gates in a product with h. A GRU with linear_before_reset = 0 multiplies h by the reset gate
   before the product of the last gate, and so has two products: RESET, of which the result is r * h (and z is kept in
   the place of c), and AFTER_RESET. */
enum { LSTM = 4, GRU = 3, RESET = 2, AFTER_RESET = 1 };
#define GATES(kind) ((kind) == LSTM ? 4 : 3)
#define GROUP_BLOCKS(kind) (GROUP / (kind))

/* The result of a block of units from the sums `a` of the recurrent product and x of the input; changes c. */
INLINE vec cell(int kind, const vec *a, const vec *x, vec h, vec *c)
{
    if (kind == LSTM) {
        *c = sigmoid(a[2] + x[2]) * *c + sigmoid(a[0] + x[0]) * hyperbolic_tangent(a[3] + x[3]);
        return sigmoid(a[1] + x[1]) * hyperbolic_tangent(*c);
    }
    if (kind == RESET) {
        *c = sigmoid(a[0] + x[0]);
        return sigmoid(a[1] + x[1]) * h;
    }
    vec z = *c, last = a[0];
    if (kind == GRU)
        z = sigmoid(a[0] + x[0]), last = sigmoid(a[1] + x[1]) * a[2];
    vec new = hyperbolic_tangent(x[2] + last);
    return new + z * (h - new);
}

/* The sums of the recurrent product for `blocks` blocks from `first` on. The last gate of a GRU begins with its bias b. */
INLINE void recurrent_sums(int kind, int blocks, int first, int units, const float *h, const float *w, const float *b, vec *a)
{
    UNROLL for (int j = 0; j < blocks; j++) {
        UNROLL for (int g = 0; g < kind; g++) a[j * kind + g] = kind == GRU && g == 2 ? *(const vec *)(b + (first + j) * VL) : (vec){0};
    }
    product(1, blocks * kind, units, h, 0, w + first * kind * units * VL, a);
}

/* Results of `blocks` blocks into `to`; `sums`: those of recurrent_sums for all blocks, if they are known. */
INLINE void group(int kind, int blocks, int first, int units, const float *from, const float *w, const float *b,
                  const float *sums, const float *x, const float *h, float *c, float *to)
{
    vec a[SUMS];
    if (sums) {
        UNROLL for (int s = 0; s < blocks * kind; s++) a[s] = *(const vec *)(sums + (first * kind + s) * VL);
    } else
        recurrent_sums(kind, blocks, first, units, from, w, b, a);
    UNROLL for (int j = 0; j < blocks; j++) {
        const int at = (first + j) * VL;
        *(vec *)(to + at) = cell(kind, a + j * kind, (const vec *)(x + at * GATES(kind)), *(const vec *)(h + at), (vec *)(c + at));
    }
}

/* All groups, in one order or backwards: then the weights that were used last, and may be in the first-level cache, are
   used first. */
INLINE void groups(int kind, int backwards, int units, const float *from, const float *w, const float *b, const float *sums,
                   const float *x, const float *h, float *c, float *to)
{
    const int size = GROUP_BLOCKS(kind), full = BLOCKS(units) / size, rest = BLOCKS(units) % size;
    if (rest && backwards) group(kind, rest, full * size, units, from, w, b, sums, x, h, c, to);
    for (int q = 0; q < full; q++)
        group(kind, size, (backwards ? full - 1 - q : q) * size, units, from, w, b, sums, x, h, c, to);
    if (rest && !backwards) group(kind, rest, full * size, units, from, w, b, sums, x, h, c, to);
}

/* One time step: the new h from the old, with c and, for RESET, a place for r * h. */
INLINE void time_step(int kind, int backwards, int units, const float *w, const float *b, const float *sums, const float *x,
                      const float *h, float *c, float *reset_h, float *new_h)
{
    if (kind == RESET) {
        groups(RESET, backwards, units, h, w, b, sums, x, h, c, reset_h);
        groups(AFTER_RESET, backwards, units, reset_h, w + 2 * PADDED(units) * units, b, 0, x, h, c, new_h);
    } else
        groups(kind, backwards, units, h, w, b, sums, x, h, c, new_h);
}

/* Weights of a layer: those of the input, their biases, those of h, the bias of the last gate. */
#define RECURRENT_WEIGHTS(kind, k, units) (GATES(kind) * PADDED(units) * ((k) + 1))
#define RECURRENT_BIAS(kind, k, units) (RECURRENT_WEIGHTS(kind, k, units) + GATES(kind) * PADDED(units) * (units))

/* A layer over `rows` time steps of `k` inputs each, backwards in time if `reverse`, from the state that is in h and c to
   the state after it. h has room for three vectors of units; `sums` those of `prepare`, or null; `xp` has room for
   CHUNK rows of gates. */
#define CHUNK 24
INLINE void recurrent(int kind, int k, int units, int rows, int reverse, const float *x, const float *w, const float *sums,
                      float *h, float *c, float *xp, float *y, int ys)
{
    const int size = PADDED(units), columns = GATES(kind) * size, full = units / VL, rest = units % VL;
    const float *wh = w + RECURRENT_WEIGHTS(kind, k, units), *b = w + RECURRENT_BIAS(kind, k, units);
    for (int begin = 0; begin < rows; begin += CHUNK) {
        const int left = rows - begin, count = left < CHUNK ? left : CHUNK, at = reverse ? left - count : begin;
        if (left < CHUNK)
            dense(rows % CHUNK, k, columns, x + at * k, k, w, w + columns * k, xp, columns);
        else
            dense(CHUNK, k, columns, x + at * k, k, w, w + columns * k, xp, columns);
        for (int i = 0; i < count; i++) {
            const int row = reverse ? count - 1 - i : i, odd = (begin + i) & 1;
            const float *old = h + odd * size;
            float *new = h + !odd * size, *to = y + (at + row) * ys;
            if (sums && begin + i == 0)
                time_step(kind, 0, units, wh, b, sums, xp + row * columns, old, c, h + 2 * size, new);
            else if (odd)
                time_step(kind, 1, units, wh, b, 0, xp + row * columns, old, c, h + 2 * size, new);
            else
                time_step(kind, 0, units, wh, b, 0, xp + row * columns, old, c, h + 2 * size, new);
            for (int j = 0; j < full; j++) put(to + j * VL, *(vec *)(new + j * VL), VL);
            if (rest) put(to + full * VL, *(vec *)(new + full * VL), rest);
        }
    }
    if (rows % 2) memcpy(h, h + size, 4 * size);
}

/* The sums of the recurrent product for the next time step, which do not depend on its input. */
INLINE void prepare(int kind, int k, int units, const float *w, const float *h, float *sums)
{
    const int size = GROUP_BLOCKS(kind), n = BLOCKS(units), last = (n - 1) % size + 1;
    const float *wh = w + RECURRENT_WEIGHTS(kind, k, units), *b = w + RECURRENT_BIAS(kind, k, units);
    int first = 0;
    for (; first + size < n; first += size) recurrent_sums(kind, size, first, units, h, wh, b, (vec *)sums + first * kind);
    recurrent_sums(kind, last, first, units, h, wh, b, (vec *)sums + first * kind);
}

/* Pointwise functions; a and b are their parameters. */
INLINE vec relu(vec x, float a, float b) { return (void)a, (void)b, most(0, x); }
INLINE vec clip(vec x, float a, float b) { return most(a, least(b, x)); }
INLINE vec leaky_relu(vec x, float a, float b) { return (void)b, most(0, x) + a * least(0, x); }
INLINE vec hard_sigmoid(vec x, float a, float b) { return most(0, least(1, a * x + b)); }
INLINE vec elu(vec x, float a, float b) { return (void)b, most(0, x) + a * (exponential(least(0, x)) - 1); }
INLINE vec softsign(vec x, float a, float b) { return (void)a, (void)b, x / (1 + most(0, x) - least(0, x)); }
INLINE vec logistic(vec x, float a, float b) { return (void)a, (void)b, sigmoid(x); }
INLINE vec tangent(vec x, float a, float b) { return (void)a, (void)b, hyperbolic_tangent(x); }

#define POINTWISE(function, count, x, y, a, b) \
    for (int i = 0; i < (count); i += VL) put((y) + i, function(get((x) + i, (count) - i), a, b), (count) - i)

/* y = x * scale + shift, by column */
INLINE void affine(int rows, int count, const float *x, const float *scale, const float *shift, float *y)
{
    for (int r = 0; r < rows; r++, x += count, y += count)
        for (int i = 0; i < count; i += VL) put(y + i, get(x + i, count - i) * *(const vec *)(scale + i) + *(const vec *)(shift + i), count - i);
}
