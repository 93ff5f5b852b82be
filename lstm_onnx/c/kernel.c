/* Matrix products, activations and recurrent layers at batch size 1, with GNU vectors of VL floats.

   All sizes are compile-time constants of the callers, so that the compiler unrolls the inner loops and keeps the sums
   in registers. Matrices are packed by columns: groups of some vectors of VL columns, and in a group row after row, so
   that a product reads its weights once and in order. A NaN is passed on: neither minimum and maximum nor the
   construction of powers of two drop it. Flags such as -ffast-math change the last bits only: sums that must not be
   reordered, and numbers that may be a NaN, are made OPAQUE. */

#include <stdint.h>
#include <string.h>
#if VL > 4
#include <cpuid.h>
#include <immintrin.h>
#elif defined(__SSE2__)
#include <emmintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#define INLINE static inline __attribute__((always_inline, unused))
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

/* Memory of k rows of weights, of so many bits each; those of h have H_BITS. With 16 a word
   holds the weights of two rows: of the even one in bfloat16 in its lower half, and of the odd one the word itself, of
   which the lower half is the last digits. With 8 it holds those of four rows, after a row with the scale of each
   column. */
#define ROWS(bits, k) ((bits) == 8 ? ((k) + 3) / 4 + 1 : (bits) == 16 ? ((k) + 1) / 2 : (k))
#define AHEAD 512 /* floats */

#define BLOCKS(units) (((units) + VL - 1) / VL)
#define PADDED(units) (BLOCKS(units) * VL)

/* An empty instruction that might change the vector x, so that the compiler knows nothing about its value. */
#if defined(__AVX512F__)
#define OPAQUE(x) __asm__("" : "+v"(x))
#elif defined(__SSE__)
#define OPAQUE(x) __asm__("" : "+x"(x))
#elif defined(__aarch64__)
#define OPAQUE(x) __asm__("" : "+w"(x))
#else
#define OPAQUE(x) __asm__("" : "+m"(x))
#endif

/* A call of arithmetic with the default control register, in which denormal numbers are zero: a product with them takes up
   to a hundred times as long. The register of the caller, with its rounding mode, traps and flags, is put back. */
#if defined(KEEP_FPU)
#define WITH_DEFAULTS(call) call
#elif defined(__SSE__)
#define WITH_DEFAULTS(call) \
    const unsigned caller = __builtin_ia32_stmxcsr(); \
    __builtin_ia32_ldmxcsr(0x9fc0); \
    call; \
    __builtin_ia32_ldmxcsr(caller)
#elif defined(__aarch64__)
#define WITH_DEFAULTS(call) \
    uint64_t control, flags; \
    __asm__ volatile("mrs %0, fpcr\n\tmrs %1, fpsr\n\tmsr fpcr, %2" : "=&r"(control), "=&r"(flags) : "r"((uint64_t)1 << 24) : "memory"); \
    call; \
    __asm__ volatile("msr fpcr, %0\n\tmsr fpsr, %1" : : "r"(control), "r"(flags) : "memory")
#else
#define WITH_DEFAULTS(call) call
#endif
#define APART static __attribute__((noinline)) /* so that no arithmetic is moved out of such a call */

INLINE ivec is_nan(vec x) { return ((ivec)x & 0x7fffffff) > 0x7f800000; } /* by its bits, whatever a compiler assumes */
INLINE vec choose(ivec condition, vec a, vec b) { return (vec)(((ivec)a & condition) | ((ivec)b & ~condition)); }

/* The smaller and the larger; if x is a NaN, the result is. */
#if __FINITE_MATH_ONLY__ /* a compiler may exchange the operands of minima and comparisons, so NaN are found by their bits */
INLINE vec bounded(vec x, float a, int sign)
{
    const vec bound = a - (vec){0};
    OPAQUE(x);
    const ivec beyond = sign > 0 ? x > bound : x < bound;
    return choose(beyond & ~is_nan(x), bound, x);
}
INLINE vec least(float a, vec x) { return bounded(x, a, 1); }
INLINE vec most(float a, vec x) { return bounded(x, a, -1); }
#elif VL == 16
INLINE vec least(float a, vec x) { return (vec)_mm512_min_ps((__m512)(a - (vec){0}), (__m512)x); }
INLINE vec most(float a, vec x) { return (vec)_mm512_max_ps((__m512)(a - (vec){0}), (__m512)x); }
#elif VL == 8
INLINE vec least(float a, vec x) { return (vec)_mm256_min_ps((__m256)(a - (vec){0}), (__m256)x); }
INLINE vec most(float a, vec x) { return (vec)_mm256_max_ps((__m256)(a - (vec){0}), (__m256)x); }
#else
INLINE vec least(float a, vec x) { return choose(x > a - (vec){0}, a - (vec){0}, x); }
INLINE vec most(float a, vec x) { return choose(x < a - (vec){0}, a - (vec){0}, x); }
#endif

/* Whether processor and system have the instructions. (Zig's compiler has no working __builtin_cpu_supports.) */
static int supported(void)
{
#if VL > 4
    const unsigned first = bit_OSXSAVE | bit_FMA, saved = VL == 16 ? 0xe6 : 6; /* registers that the system saves */
    const unsigned more = VL == 16 ? bit_AVX512F | bit_AVX512BW | bit_AVX512DQ | bit_AVX512VL : bit_AVX2;
    unsigned a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d) || (c & first) != first)
        return 0;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (b & more) != more)
        return 0;
#if H_BITS == 8 && defined(__AVX512VNNI__)
    if (!(c & bit_AVX512VNNI))
        return 0;
#endif
    __asm__("xgetbv" : "=a"(a), "=d"(d) : "c"(0));
    return (a & saved) == saved;
#else
    return 1;
#endif
}

INLINE vec get(const float *from, int count)
{
    vec a = {0};
    if (count >= VL)
        return *(const vec_unaligned *)from;
    memcpy(&a, from, 4 * (size_t)count);
    return a;
}

INLINE void put(float *to, vec a, int count)
{
    if (count >= VL)
        *(vec_unaligned *)to = a;
    else
        memcpy(to, &a, 4 * (size_t)count);
}

/* 1 / x to 2 in the last place, for normal x and 1 / x. */
INLINE vec reciprocal(vec x)
{
#if VL == 16
    vec y = (vec)_mm512_rcp14_ps((__m512)x);
    return y + y * (1.f - x * y);
#else
    return 1.f / x;
#endif
}

/* e^x for |x| <= 87, clamped there: 2^n times a polynomial of the rest (Cephes, S. Moshier). */
INLINE vec exponential(vec x)
{
    const float to_integer = 12582912.f; /* 1.5 * 2^23: the sum has the nearest integer in its last bits */
    x = most(-87.f, least(87.f, x));
    vec sum = x * 1.44269504f + to_integer;
    OPAQUE(sum);
    vec n = sum - to_integer, r = x - n * 0.693359375f;
    OPAQUE(r);
    r += n * 2.12194440e-4f;
    vec s = r * r;
    vec p = (r * 1.9875691500e-4f + 1.3981999507e-3f) * s + (r * 8.3334519073e-3f + 4.1665795894e-2f);
    p = p * s + (r * 1.6666665459e-1f + 5.0000001201e-1f);
    p = p * s + (r + 1.f);
    return p * (vec)(((ivec)sum << 23) + 0x3f800000);
}

INLINE vec sigmoid(vec x) { return reciprocal(1.f + exponential(-x)); }

/* A rational function, as in Eigen. */
INLINE vec hyperbolic_tangent(vec x)
{
    x = most(-7.90531110763549805f, least(7.90531110763549805f, x));
    vec s = x * x, s2 = s * s;
    vec p = s * 2.00018790482477e-13f + -8.60467152213735e-11f - s2 * 2.76076847742355e-16f;
    p = p * s2 + (s * 5.12229709037114e-08f + 1.48572235717979e-05f);
    p = p * s2 + (s * 6.37261928875436e-04f + 4.89352455891786e-03f);
    vec q = s2 * (s * 1.19825839466702e-06f + 1.18534705686654e-04f) + (s * 2.26843463243900e-03f + 4.89352518554385e-03f);
    return x * (p * reciprocal(q));
}

#define OF_FEW(rows, n) ((rows) * (n) < 8) /* sums that would wait for each other, and are split in two */

#if H_BITS == 8
typedef int8_t bytes __attribute__((vector_size(2 * VL), may_alias));
typedef int16_t halves __attribute__((vector_size(2 * VL), may_alias, aligned(4)));
typedef int16_t pairs __attribute__((vector_size(4 * VL), may_alias));
typedef int32_t word __attribute__((may_alias));

/* Numbers from -1 to 1 as whole numbers of 16 bits, of 1 / 32767, and after them a word that is 0, or a NaN if one of
   the numbers is. Returns them. */
#define WIDTH(k) (PADDED(k) / 2 + 1)
INLINE const float *whole(int k, const float *x, float *to)
{
    ivec missing = {0};
    for (int i = 0; i < k; i += VL) {
        const vec a = get(x + i, k - i);
        missing |= is_nan(a);
        *(halves *)(to + i / 2) = __builtin_convertvector((ivec)(most(-1, least(1, a)) * 32767.f + 12582912.f), halves);
    }
    int32_t any = 0;
    for (int i = 0; i < VL; i++) any |= missing[i];
    *(word *)(to + PADDED(k) / 2) = any;
    return to;
}

/* Weights of 8 bits for the products of pairs */
INLINE pairs widened(const float *w)
{
#if VL == 16
    return (pairs)_mm512_cvtepi8_epi16(*(const __m256i *)w);
#elif VL == 8
    return (pairs)_mm256_cvtepi8_epi16(*(const __m128i *)w);
#else
    return __builtin_convertvector(*(const bytes *)w, pairs);
#endif
}

/* a + the sums of the products of pairs */
INLINE ivec add_pairs(ivec a, pairs w, ivec x)
{
#if VL == 16 && defined(__AVX512VNNI__)
    return (ivec)_mm512_dpwssd_epi32((__m512i)a, (__m512i)w, (__m512i)x);
#elif VL == 16
    return a + (ivec)_mm512_madd_epi16((__m512i)w, (__m512i)x);
#elif VL == 8 && defined(__AVXVNNI__)
    return (ivec)_mm256_dpwssd_avx_epi32((__m256i)a, (__m256i)w, (__m256i)x);
#elif VL == 8
    return a + (ivec)_mm256_madd_epi16((__m256i)w, (__m256i)x);
#elif defined(__SSE2__)
    return a + (ivec)_mm_madd_epi16((__m128i)w, (__m128i)x);
#else
    return a + ((ivec)w << 16 >> 16) * (x << 16 >> 16) + ((ivec)w >> 16) * (x >> 16);
#endif
}

/* As `product`, for weights of 8 bits and rows of `whole` numbers. 32 bits have room for the products of 512 rows. */
INLINE void whole_product(int rows, int n, int k, int backwards, const float *x, int xs, const float *w, vec *sums)
{
    const int words = (k + 3) / 4;
    for (int begin = 0; begin < words; begin += 128) {
        const int count = words - begin < 128 ? words - begin : 128;
        ivec a[SUMS] = {{0}}, odd[SUMS] = {{0}};
        for (int i = 0; i < count; i++) {
            const int at = begin + (backwards ? count - 1 - i : i);
            UNROLL for (int g = 0; g < n; g++) {
                const float *from = w + ((at + 1) * n + g) * VL;
                const pairs low = widened(from), high = widened(from + VL / 2);
                __builtin_prefetch(from + (backwards ? -AHEAD : AHEAD));
                UNROLL for (int r = 0; r < rows; r++) {
                    const word *given = (const word *)(x + r * xs + 2 * at);
                    ivec *second = OF_FEW(rows, n) ? odd : a;
                    a[r * n + g] = add_pairs(a[r * n + g], low, given[0] - (ivec){0});
                    second[r * n + g] = add_pairs(second[r * n + g], high, given[1] - (ivec){0});
                }
            }
        }
        UNROLL for (int s = 0; s < rows * n; s++)
            sums[s] += __builtin_convertvector(a[s] + odd[s], vec) * *(const vec *)(w + s % n * VL);
    }
    UNROLL for (int s = 0; s < rows * n; s++) sums[s] += x[s / n * xs + PADDED(k) / 2];
}
#else
#define WIDTH(k) 0
#define whole(k, x, to) ((void)(to), (x))
#define whole_product(...) (void)0
#endif

/* sums[r][g] += x[r] times a group w of `n` vectors of columns and `k` rows, the last row first if `backwards`. */
INLINE void product(int bits, int rows, int n, int k, int backwards, const float *x, int xs, const float *w, vec *sums)
{
    if (bits == 8) {
        whole_product(rows, n, k, backwards, x, xs, w, sums);
        return;
    }
    vec a[SUMS], odd[SUMS] = {{0}};
    const int split = OF_FEW(rows, n), paired = split && bits == 32 ? k / 2 * 2 : 0;
    UNROLL for (int s = 0; s < rows * n; s++) a[s] = sums[s];
    for (int i = 0; i < ROWS(bits, k) && bits == 16; i++) {
        const int pair = backwards ? ROWS(bits, k) - 1 - i : i, row = 2 * pair, next = row + 1 < k ? row + 1 : row;
        UNROLL for (int g = 0; g < n; g++) {
            const ivec both = *(const ivec *)(w + (pair * n + g) * VL);
            __builtin_prefetch(w + (pair * n + g) * VL + (backwards ? -AHEAD : AHEAD));
            UNROLL for (int r = 0; r < rows; r++) {
                a[r * n + g] += (vec)(both << 16) * x[r * xs + row];
                if (split)
                    odd[r * n + g] += (vec)both * x[r * xs + next];
                else
                    a[r * n + g] += (vec)both * x[r * xs + next];
            }
        }
    }
    for (int i = 0; i < paired; i += 2) {
        const int row = backwards ? k - 1 - i : i, next = backwards ? row - 1 : row + 1;
        UNROLL for (int r = 0; r < rows; r++) {
            UNROLL for (int g = 0; g < n; g++) {
                a[r * n + g] += *(const vec *)(w + (row * n + g) * VL) * x[r * xs + row];
                odd[r * n + g] += *(const vec *)(w + (next * n + g) * VL) * x[r * xs + next];
            }
        }
    }
    for (int i = paired; i < k && bits == 32; i++) {
        const int row = backwards ? k - 1 - i : i;
        UNROLL for (int r = 0; r < rows; r++) {
            UNROLL for (int g = 0; g < n; g++) a[r * n + g] += *(const vec *)(w + (row * n + g) * VL) * x[r * xs + row];
        }
    }
    UNROLL for (int s = 0; s < rows * n; s++) sums[s] = a[s];
    if (split)
        UNROLL for (int s = 0; s < rows * n; s++) sums[s] += odd[s];
}

INLINE void tile(int bits, int rows, int n, int k, const float *x, int xs, const float *w, const float *b, float *y, int ys, int count)
{
    vec a[SUMS];
    UNROLL for (int s = 0; s < rows * n; s++) a[s] = *(const vec *)(b + s % n * VL);
    product(bits, rows, n, k, 0, x, xs, w, a);
    UNROLL for (int r = 0; r < rows; r++) {
        UNROLL for (int g = 0; g < n; g++) put(y + r * ys + g * VL, a[r * n + g], count - g * VL);
    }
}

INLINE void columns(int bits, int rows, int n, int k, const float *x, int xs, const float *w, const float *b, float *y, int ys, int count)
{
    const int rest = rows % TILE_ROWS;
    int r = 0;
    for (; r + TILE_ROWS <= rows; r += TILE_ROWS) tile(bits, TILE_ROWS, n, k, x + r * xs, xs, w, b, y + r * ys, ys, count);
    if (rest) tile(bits, rest, n, k, x + r * xs, xs, w, b, y + r * ys, ys, count);
}

/* y = b + x w, for `rows` rows of `k` numbers x, and of `count` numbers y. */
INLINE void dense(int bits, int rows, int k, int count, const float *x, int xs, const float *w, const float *b, float *y, int ys)
{
    const int n = BLOCKS(count), last = (n - 1) % TILE + 1;
    int j = 0;
    for (; j + TILE < n; j += TILE, w += TILE * ROWS(bits, k) * VL) columns(bits, rows, TILE, k, x, xs, w, b + j * VL, y + j * VL, ys, TILE * VL);
    columns(bits, rows, last, k, x, xs, w, b + (n - last) * VL, y + (n - last) * VL, ys, count - (n - last) * VL);
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
            for (int i = 0; i < VL; i += 4) total += (sum[i] + sum[i + 1]) + (sum[i + 2] + sum[i + 3]);
            y[r * ys + o] = total;
        }
}

/* Recurrent layers. Gates are in the order of ONNX. For each block of VL units there is one vector of each gate; the
   units that remain have their gates one after another, in as few vectors as possible.
   A kind is the number of gates in a product with h; that of an RNN, which has one gate and no others, is 16 more. A GRU with linear_before_reset = 0 multiplies h by the reset gate
   before the product of the last gate, and so has two products: RESET, of which the result is r * h (and z is kept in
   the place of c), and AFTER_RESET. */
enum { LSTM = 4, GRU = 3, RESET = 2, AFTER_RESET = 1, RNN = 17 };
#define OF_H(kind) ((kind) % 16)
#define GATES(kind) ((kind) == LSTM ? 4 : (kind) == RNN ? 1 : 3)
#define REST(units) ((units) % VL)
#define COLUMNS(gates, units) ((units) / VL * VL * (gates) + PADDED(REST(units) * (gates)))

/* Units of a group of blocks, and the number of such groups before the last one, which has all units that remain. */
#define GROUP_UNITS(gates) (GROUP / (gates) * VL)
#define GROUPS(gates, units) ((units) / GROUP_UNITS(gates) - ((units) >= GROUP_UNITS(gates) && (units) % GROUP_UNITS(gates) < VL))

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
    if (kind == RNN)
        return hyperbolic_tangent(a[0] + x[0]);
    vec z = *c, last = a[0];
    if (kind == GRU)
        z = sigmoid(a[0] + x[0]), last = sigmoid(a[1] + x[1]) * a[2];
    vec fresh = hyperbolic_tangent(x[2] + last);
    return fresh + z * (h - fresh);
}

/* The vector from the number `at` on of consecutive vectors, after which one more can be read. With 16 numbers, a vector
   that lies in two just stored is sooner taken from registers than from memory. */
INLINE vec across(const vec *from, int at)
{
#if VL == 16
    const vec *v = from + at / VL;
    const ivec places = at % VL + (ivec){0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    return at % VL ? (vec)_mm512_permutex2var_ps((__m512)v[0], (__m512i)places, (__m512)v[1]) : v[0];
#else
    return *(const vec_unaligned *)((const float *)from + at);
#endif
}

/* `n` vectors of sums of the recurrent product with h (`whole` with 8 bits), from the column `first`; those of a GRU begin with biases b. */
INLINE void recurrent_sums(int kind, int n, int first, int units, int backwards, const float *h, const float *w, const float *b, vec *a)
{
    UNROLL for (int s = 0; s < n; s++) a[s] = (vec){0};
    if (kind == GRU)
        UNROLL for (int s = 0; s < n; s++) a[s] = *(const vec *)(b + first + s * VL);
    product(H_BITS, 1, n, units, backwards, h, 0, w + first * ROWS(H_BITS, units), a);
}

/* The sums of group `q` into those of all. */
#define ALL_GROUPS(gates, units) (GROUPS(gates, units) + ((units) > GROUPS(gates, units) * GROUP_UNITS(gates)))
INLINE void sums_of_group(int kind, int q, int units, const float *h, const float *w, const float *b, float *sums)
{
    const int gates = OF_H(kind), size = GROUP_UNITS(gates), full = GROUPS(gates, units), at = q * size * gates;
    vec *to = (vec *)(sums + at);
    if (q < full)
        recurrent_sums(kind, size * gates / VL, at, units, 0, h, w, b, to);
    else
        recurrent_sums(kind, COLUMNS(gates, units - full * size) / VL, at, units, 0, h, w, b, to);
}

/* Results for `count` units from `first` on into `to`. `sums`: those of recurrent_sums for all units, if known. */
INLINE void group(int kind, int count, int first, int units, int backwards, const float *from, const float *w, const float *b,
                  const float *sums, const float *x, const float *h, float *c, float *to)
{
    const int gates = OF_H(kind), whole = count / VL * gates, n = COLUMNS(gates, count) / VL, rest = REST(count);
    vec a[SUMS], last[8];
    if (!sums) {
        recurrent_sums(kind, n, first * gates, units, backwards, from, w, b, a);
        UNROLL for (int s = whole; s < n; s++) last[s - whole] = a[s];
        last[n - whole] = (vec){0};
    }
    UNROLL for (int j = 0; j < count; j += VL) {
        const int at = first + j, stride = count - j < VL ? rest : VL;
        const vec *from_memory = sums ? (const vec *)(sums + at * gates) : stride < VL ? last : 0;
        vec own[4], input[4];
        if (from_memory)
            UNROLL for (int g = 0; g < gates; g++) own[g] = across(from_memory, g * stride);
        else
            UNROLL for (int g = 0; g < gates; g++) own[g] = a[j / VL * gates + g];
        UNROLL for (int g = 0; g < 4; g++)
            if (g < GATES(kind)) input[g] = across((const vec *)(x + at * GATES(kind)), g * stride);
        *(vec *)(to + at) = cell(kind, own, input, *(const vec *)(h + at), (vec *)(c + at));
    }
}

/* All groups, in one order or backwards: then the weights that were used last, and may be in the first-level cache, are
   used first. */
INLINE void groups(int kind, int backwards, int units, const float *from, const float *w, const float *b, const float *sums,
                   const float *x, const float *h, float *c, float *to)
{
    const int size = GROUP_UNITS(OF_H(kind)), full = GROUPS(OF_H(kind), units), left = units - full * size;
    if (left && backwards) group(kind, left, full * size, units, 1, from, w, b, sums, x, h, c, to);
    for (int q = 0; q < full; q++)
        group(kind, size, (backwards ? full - 1 - q : q) * size, units, backwards, from, w, b, sums, x, h, c, to);
    if (left && !backwards) group(kind, left, full * size, units, 0, from, w, b, sums, x, h, c, to);
}

/* One time step: the new h from the old, with c and, for RESET, a place for r * h, and one for `whole` numbers. */
INLINE void time_step(int kind, int backwards, int units, const float *w, const float *b, const float *sums, const float *x,
                      const float *h, float *c, float *reset_h, float *place, float *new_h)
{
    const float *from = sums ? h : whole(units, h, place);
    if (kind == RESET) {
        groups(RESET, backwards, units, from, w, b, sums, x, h, c, reset_h);
        from = whole(units, reset_h, place);
        groups(AFTER_RESET, backwards, units, from, w + COLUMNS(2, units) * ROWS(H_BITS, units), b, 0, x, h, c, new_h);
    } else
        groups(kind, backwards, units, from, w, b, sums, x, h, c, new_h);
}

/* Offsets in the weights of a layer: those of the input, its biases, those of h, biases of the recurrent product. */
#define INPUT_BIASES(bits, kind, k, units) (COLUMNS(GATES(kind), units) * ROWS(bits, k))
#define RECURRENT(bits, kind, k, units) (COLUMNS(GATES(kind), units) * (ROWS(bits, k) + 1))
#define RECURRENT_BIASES(bits, kind, k, units) (RECURRENT(bits, kind, k, units) + COLUMNS(GATES(kind), units) * ROWS(H_BITS, units))

#define CHUNK 24

#if THREADS > 1
INLINE uint64_t ticks(void)
{
#if defined(__SSE2__)
    return __builtin_ia32_rdtsc();
#elif defined(__aarch64__)
    uint64_t now;
    __asm__ volatile("mrs %0, cntvct_el0" : "=r"(now));
    return now;
#endif
}

INLINE void wait_a_little(void)
{
#if defined(__SSE2__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* One part of the products of a layer: of the gates of the input for to->rows rows, and of the sums of to->h, if it is
   not null. They are copied if a helper has computed them, which is `from`. */
INLINE void products(int bits, int kind, int k, int units, int rows, const struct lstm_trt_work *to, int part, const struct lstm_trt_work *from)
{
    const int gates = OF_H(kind), width = COLUMNS(GATES(kind), units), n = width / VL, tiles = (n + TILE - 1) / TILE, last = (n - 1) % TILE + 1;
    const int all = ALL_GROUPS(gates, units), group = GROUP_UNITS(gates) * gates;
    const int xs = bits == 8 ? WIDTH(k) : k, whole_chunk = rows >= CHUNK && to->rows == CHUNK;
    for (int t = tiles * part / THREADS; t < tiles * (part + 1) / THREADS && to->rows; t++) {
        const int at = t * TILE * VL, count = t < tiles - 1 ? TILE * VL : last * VL;
        const float *w = to->w + at * ROWS(bits, k), *b = to->w + INPUT_BIASES(bits, kind, k, units) + at;
        float *y = to->gates + at;
        if (from)
            for (int r = 0; r < to->rows; r++) memcpy(y + r * width, from->gates + at + r * width, 4 * (size_t)count);
        else if (t < tiles - 1 && whole_chunk)
            columns(bits, CHUNK, TILE, k, to->x, xs, w, b, y, width, TILE * VL);
        else if (t < tiles - 1)
            columns(bits, rows % CHUNK, TILE, k, to->x, xs, w, b, y, width, TILE * VL);
        else if (whole_chunk)
            columns(bits, CHUNK, last, k, to->x, xs, w, b, y, width, last * VL);
        else
            columns(bits, rows % CHUNK, last, k, to->x, xs, w, b, y, width, last * VL);
    }
    for (int q = all * part / THREADS; q < all * (part + 1) / THREADS && to->h; q++) {
        const int at = q * group, count = q < all - 1 ? group : COLUMNS(gates, units) - at;
        const float *w = to->w + RECURRENT(bits, kind, k, units), *b = to->w + RECURRENT_BIASES(bits, kind, k, units);
        if (from)
            memcpy(to->sums + at, from->sums + at, 4 * (size_t)count);
        else
            sums_of_group(kind, q, units, to->h, w, b, to->sums);
    }
}

/* All parts of some work, each by its thread. A helper reads and writes memory of its own, so that one that is late
   changes nothing, and what it reads does not change; it gets no new work before it has done the old. It is waited for
   no longer than the call takes alone, or before that is known, than this work does. */
static void together(struct lstm_trt_team *team, const struct lstm_trt_work *work)
{
    const uint64_t began = ticks();
    unsigned given[THREADS] = {0};
    for (int k = 1; k < THREADS; k++) {
        struct lstm_trt_helper *helper = team->helpers + k - 1;
        if (__atomic_load_n(&helper->done, __ATOMIC_ACQUIRE) != helper->given)
            continue;
        float *gates = helper->work.gates, *sums = helper->work.sums, *own_h = helper->copy + work->inputs;
        memcpy(helper->copy, work->x, 4 * (size_t)work->inputs);
        if (work->h)
            memcpy(own_h, work->h, 4 * (size_t)work->states);
        helper->work = *work, helper->work.gates = gates, helper->work.sums = sums;
        helper->work.x = helper->copy, helper->work.h = work->h ? own_h : 0;
        given[k] = helper->given + 1;
        __atomic_store_n(&helper->given, given[k], __ATOMIC_RELEASE);
    }
    work->part(work, 0, 0);
    const uint64_t own = ticks() - began, most = own + (team->last ? THREADS * team->last : THREADS * own + 2000);
    for (int k = 1; k < THREADS; k++) {
        struct lstm_trt_helper *helper = team->helpers + k - 1;
        int ready = 0;
        while (given[k] && !ready && ticks() - began < most) {
            ready = __atomic_load_n(&helper->done, __ATOMIC_ACQUIRE) == given[k];
            wait_a_little();
        }
        work->part(work, k, ready ? &helper->work : 0);
        team->late += !ready;
    }
}

static void begin(struct lstm_trt_team *team, struct lstm_trt_helper *helpers)
{
    team->helpers = helpers;
    team->stopped = 0;
    team->late = 0;
    team->last = 0;
}

static void help(struct lstm_trt_team *team, int number)
{
    struct lstm_trt_helper *helper = team->helpers + number - 1;
    while (!__atomic_load_n(&team->stopped, __ATOMIC_ACQUIRE)) {
        const unsigned given = __atomic_load_n(&helper->given, __ATOMIC_ACQUIRE);
        if (given != helper->done) {
            helper->work.part(&helper->work, number, 0);
            __atomic_store_n(&helper->done, given, __ATOMIC_RELEASE);
        }
        wait_a_little();
    }
}
#define TEAM , struct lstm_trt_team *team, lstm_trt_part *part, float *own
#else
#define TEAM
#endif

/* A layer over `rows` time steps of `k` inputs each, backwards in time if `reverse`, from the state that is in h and c to
   the state after it. `bits` are those of the weights of the input. h has room for three vectors of units and one of
   `whole` numbers; `sums` those of `prepare`, or null; `xp` has room for CHUNK rows of gates and a vector, as `sums`
   has, and with 8 bits for as many rows of `whole` inputs. Weights larger than NEAR_BYTES are read in alternating order. */
#define NEAR_BYTES 32768
INLINE void recurrent(int bits, int kind, int k, int units, int rows, int reverse, const float *x, const float *w, const float *sums,
                      float *h, float *c, float *xp, float *y, int ys TEAM)
{
    const int size = PADDED(units), columns = COLUMNS(GATES(kind), units), full = units / VL, rest = REST(units);
    const int alternate = 4 * columns * ROWS(H_BITS, units) > NEAR_BYTES, xs = bits == 8 ? WIDTH(k) : k;
    const float *wx = w, *bx = w + INPUT_BIASES(bits, kind, k, units), *wh = w + RECURRENT(bits, kind, k, units);
    const float *bh = w + RECURRENT_BIASES(bits, kind, k, units);
    float *place = xp + (rows < CHUNK ? rows : CHUNK) * columns + VL;
    for (int begin = 0; begin < rows; begin += CHUNK) {
        const int left = rows - begin, count = left < CHUNK ? left : CHUNK, at = reverse ? left - count : begin;
        const float *given = bits == 8 ? place : x + at * k;
        for (int i = 0; i < count && bits == 8; i++) (void)whole(k, x + (at + i) * k, place + i * xs);
#if THREADS > 1
        struct lstm_trt_work work = {part, given, w, sums && !begin ? 0 : whole(units, h, h + 3 * size), xp, own, count, count * xs, H_BITS == 8 ? WIDTH(units) : units};
        together(team, &work);
        work.rows = 0, work.inputs = 0, (void)wx, (void)bx;
#else
        if (left < CHUNK)
            dense(bits, rows % CHUNK, k, columns, given, xs, wx, bx, xp, columns);
        else
            dense(bits, CHUNK, k, columns, given, xs, wx, bx, xp, columns);
#endif
        for (int i = 0; i < count; i++) {
            const int row = reverse ? count - 1 - i : i, odd = (begin + i) & 1;
            const float *old = h + odd * size, *input = xp + row * columns;
            float *fresh = h + !odd * size, *to = y + (at + row) * ys;
#if THREADS > 1
            if (i) {
                work.h = whole(units, old, h + 3 * size);
                together(team, &work);
            }
            sums = work.h ? own : sums;
#endif
            if (sums && (THREADS > 1 || begin + i == 0))
                time_step(kind, 0, units, wh, bh, sums, input, old, c, h + 2 * size, h + 3 * size, fresh);
            else if (alternate && odd)
                time_step(kind, 1, units, wh, bh, 0, input, old, c, h + 2 * size, h + 3 * size, fresh);
            else
                time_step(kind, 0, units, wh, bh, 0, input, old, c, h + 2 * size, h + 3 * size, fresh);
            for (int j = 0; j < full; j++) put(to + j * VL, *(vec *)(fresh + j * VL), VL);
            if (rest) put(to + full * VL, *(vec *)(fresh + full * VL), rest);
        }
    }
    if (rows % 2) memcpy(h, h + size, 4 * (size_t)size);
}

/* The sums of the recurrent product for the next time step, which do not depend on its input. */
INLINE void prepare(int bits, int kind, int k, int units, const float *w, float *h, float *sums)
{
    const float *wh = w + RECURRENT(bits, kind, k, units), *b = w + RECURRENT_BIASES(bits, kind, k, units);
    const float *from = whole(units, h, h + 3 * PADDED(units));
    for (int q = 0; q < ALL_GROUPS(OF_H(kind), units); q++) sums_of_group(kind, q, units, from, wh, b, sums);
}

/* Pointwise functions; a and b are their parameters. */
INLINE vec relu(vec x, float a, float b) { return (void)a, (void)b, most(0, x); }
INLINE vec clip(vec x, float a, float b) { return least(b, most(a, x)); }
INLINE vec leaky_relu(vec x, float a, float b) { return (void)b, most(0, x) + a * least(0, x); }
INLINE vec hard_sigmoid(vec x, float a, float b) { return most(0, least(1, a * x + b)); }
INLINE vec elu(vec x, float a, float b) { return (void)b, most(0, x) + a * (exponential(least(0, x)) - 1); }
INLINE vec softsign(vec x, float a, float b) { return (void)a, (void)b, x / (1 + most(0, x) - least(0, x)); }
INLINE vec logistic(vec x, float a, float b) { return (void)a, (void)b, sigmoid(x); }
INLINE vec tangent(vec x, float a, float b) { return (void)a, (void)b, hyperbolic_tangent(x); }
INLINE vec power_of_e(vec x, float a, float b) { (void)a, (void)b; const vec root = exponential(x / 2); return root * root; }
INLINE vec square_root(vec x, float a, float b)
{
    (void)a, (void)b;
#if VL == 16
    return (vec)_mm512_sqrt_ps((__m512)x);
#elif VL == 8
    return (vec)_mm256_sqrt_ps((__m256)x);
#elif defined(__SSE__)
    return (vec)_mm_sqrt_ps((__m128)x);
#elif defined(__aarch64__)
    return (vec)vsqrtq_f32((float32x4_t)x);
#else
    for (int i = 0; i < VL; i++) x[i] = __builtin_sqrtf(x[i]);
    return x;
#endif
}
INLINE vec negated(vec x, float a, float b) { return (void)a, (void)b, -x; }
INLINE vec absolute(vec x, float a, float b) { return (void)a, (void)b, (vec)((ivec)x & 0x7fffffff); }
INLINE vec inverse(vec x, float a, float b) { return (void)a, (void)b, 1.f / x; }

/* A rational function up to 4, as in Eigen. */
INLINE vec error_function(vec x, float a, float b)
{
    (void)a, (void)b;
    x = most(-4, least(4, x));
    const vec s = x * x;
    vec p = s * -2.72614225801306e-10f + 2.77068142495902e-08f;
    p = p * s + -2.10102402082508e-06f;
    p = p * s + -5.69250639462346e-05f;
    p = p * s + -7.34990630326855e-04f;
    p = p * s + -2.95459980854025e-03f;
    p = p * s + -1.60960333262415e-02f;
    vec q = s * -1.45660718464996e-05f + -2.13374055278905e-04f;
    q = q * s + -1.68282697438203e-03f;
    q = q * s + -7.37332916720468e-03f;
    q = q * s + -1.42647390514189e-02f;
    return x * (p / q);
}

/* The exponent of x times ln 2, and a polynomial of the rest from sqrt(1/2) to sqrt(2) (Cephes, S. Moshier). */
INLINE vec natural_log(vec x, float a, float b)
{
    (void)a, (void)b;
    const ivec bits = (ivec)x, from_root = bits - 0x3f3504f3;
    const vec r = (vec)((from_root & 0x7fffff) + 0x3f3504f3) - 1.f, s = r * r;
    vec n = (vec)((from_root >> 23) + 0x4b400000); /* in the last bits of 1.5 * 2^23 */
    OPAQUE(n);
    n -= 12582912.f;
    vec p = r * 7.0376836292e-2f + -1.1514610310e-1f;
    p = p * r + 1.1676998740e-1f;
    p = p * r + -1.2420140846e-1f;
    p = p * r + 1.4249322787e-1f;
    p = p * r + -1.6668057665e-1f;
    p = p * r + 2.0000714765e-1f;
    p = p * r + -2.4999993993e-1f;
    p = p * r + 3.3333331174e-1f;
    vec y = p * r * s + n * -2.12194440e-4f - 0.5f * s;
    OPAQUE(y);
    y = r + y + n * 0.693359375f;
    const ivec none = {0}, infinite = none + 0x7f800000, size = bits & 0x7fffffff;
    y = choose(bits < 0, (vec)(none + 0x7fc00000), y);
    y = choose(size < 0x00800000, (vec)(none + (int32_t)0xff800000), y);
    y = choose(bits == infinite, (vec)infinite, y);
    return choose(is_nan(x), x, y);
}

#define POINTWISE(function, count, x, y, a, b) \
    for (int i = 0; i < (count); i += VL) put((y) + i, function(get((x) + i, (count) - i), a, b), (count) - i)

INLINE vec sum(vec x, vec z) { return x + z; }
INLINE vec difference(vec x, vec z) { return x - z; }
INLINE vec times(vec x, vec z) { return x * z; }
INLINE vec quotient(vec x, vec z) { return x / z; }
INLINE vec subtracted(vec x, vec z) { return z - x; }
INLINE vec divisor(vec x, vec z) { return z / x; }
INLINE vec larger(vec x, vec z) /* a NaN if one of them is */
{
    OPAQUE(x);
    return choose(((x < z) & ~is_nan(x)) | is_nan(z), z, x);
}
INLINE vec smaller(vec x, vec z) { return -larger(-x, -z); }

/* Comparisons give 1 or 0. */
INLINE vec less(vec x, vec z)
{
    OPAQUE(x);
    return (vec)((x < z) & ~is_nan(x) & ~is_nan(z) & (ivec)(1.f - (vec){0}));
}
INLINE vec greater(vec x, vec z) { return less(z, x); }
INLINE vec equal(vec x, vec z)
{
    OPAQUE(x);
    return (vec)((x == z) & ~is_nan(x) & ~is_nan(z) & (ivec)(1.f - (vec){0}));
}

/* z where the condition x is not 0, or where it is 0, and elsewhere 0. */
INLINE vec where_true(vec x, vec z) { return choose(x != 0.f, z, (vec){0}); }
INLINE vec where_false(vec x, vec z) { return choose(x != 0.f, (vec){0}, z); }

/* y = function(x, z) by rows; from a row of z to the next are zs. */
#define BINARY(function, rows, count, x, z, zs, y) \
    for (int r = 0; r < (rows); r++) \
        for (int i = 0; i < (count); i += VL) \
            put((y) + r * (count) + i, function(get((x) + r * (count) + i, (count) - i), get((z) + r * (zs) + i, (count) - i)), (count) - i)

/* y = x z for `batches` pairs of matrices of data: x of `rows` rows of k numbers, from one to the next xs, and z of k
   rows of `count` numbers, or if `by_columns` of `count` columns of k, from one to the next zs; batches are xb and zb
   apart. */
INLINE void data_product(int batches, int rows, int k, int count, int by_columns, int xb, int xs, int zb, int zs, const float *x,
                         const float *z, float *y)
{
    for (int r = 0; r < batches * rows; r++) {
        const float *row = x + r / rows * xb + r % rows * xs, *other = z + r / rows * zb;
        float *to = y + r * count;
        for (int j = 0; j < count && by_columns; j++) {
            vec sum = {0};
            for (int i = 0; i < k; i += VL) sum += get(row + i, k - i) * get(other + j * zs + i, k - i);
            to[j] = 0;
            for (int i = 0; i < VL; i++) to[j] += sum[i];
        }
        for (int j = 0; j < count && !by_columns; j += VL) {
            vec sum = {0};
            for (int i = 0; i < k; i++) sum += row[i] * get(other + i * zs + j, count - j);
            put(to + j, sum, count - j);
        }
    }
}

/* Rows of a table for `count` numbers x, which count from its end if they are negative. Those beyond it become the first
   or the last row, and a NaN, or a number that is no index, the first. */
INLINE void lookup(int count, int rows, int width, const float *x, const float *table, float *y)
{
    for (int i = 0; i < count; i++) {
        int32_t bits, at = 0;
        memcpy(&bits, x + i, 4);
        if ((bits & 0x7fffffff) < 0x4f000000) /* 2^31 */
            at = (int32_t)x[i];
        at = at < 0 ? at + rows : at;
        at = at < 0 ? 0 : at < rows ? at : rows - 1;
        memcpy(y + i * width, table + at * width, 4 * (size_t)width);
    }
}
