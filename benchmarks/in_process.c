/* Times of the calls of a generated network in a process without Python: calls of NAME_run or NAME_step.

   cc -O2 -DNETWORK=NAME -DFUNCTION=_run -DROWS=NAME_WINDOW -include NAME.h in_process.c NAME.c -o in_process
   ./in_process WEIGHTS TRIALS
   Prints the duration of each call in nanoseconds, after as many calls that are not printed. */

#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)
#define OF(member) JOIN(NETWORK, member)

static struct NETWORK net;
static float weights[OF(_WEIGHTS)] __attribute__((aligned(64))), x[ROWS * OF(_INPUTS)], y[ROWS * OF(_OUTPUTS)];

static long long now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

int main(int count, char **arguments)
{
    const long trials = count > 2 ? atol(arguments[2]) : 1000;
    long long *times = calloc(trials, sizeof *times);
    FILE *file = count > 1 ? fopen(arguments[1], "rb") : NULL;
    for (unsigned i = 0; i < sizeof x / sizeof *x; i++) x[i] = rand() / (float)RAND_MAX - 0.5f;
    if (!times || !file || fread(weights, sizeof weights, 1, file) != 1 || OF(_init)(&net, weights))
        return 1;
    for (long i = -trials; i < trials; i++) {
        const long long begin = now();
        OF(FUNCTION)(&net, x, y);
        times[i < 0 ? 0 : i] = now() - begin;
    }
    for (long i = 0; i < trials; i++) printf("%lld\n", times[i]);
    return 0;
}
