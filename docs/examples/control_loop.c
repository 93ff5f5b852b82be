/* A control loop with a fixed period around a network that `lstm-trt export --c` wrote.
 *
 *     cc -std=gnu99 -O2 -DNETWORK=plasma control_loop.c plasma.c -o control_loop
 *     ./control_loop -p 1000 -n 10000 -o latencies.csv
 *     lstm-trt verdict latencies.csv --deadline-us 1000
 *
 * -DNETWORK= gives the name of the network: plasma.h is included and plasma_step is called. Compile plasma.c with the
 * options in its head. Latencies are written as a table that lstm-trt reads, with one row per tick:
 *
 *     latency_ns   from the intended start of the tick to the answer; with period 0 from the actual start
 *     step_ns      from the actual start to the answer
 *     prepare_ns   duration of prepare_next after the answer (option -e)
 *     warmup       1 for the first ticks (option -w), which statistics leave out
 *
 * and the start times and events of each tick. No tick is skipped: a slow one makes the following ticks late.
 *
 * Code of several threads (export --c --threads N) gets its helpers from the loop, which runs on core C (option -c), and
 * they on C + 1 and so on: compile with -pthread.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#ifndef NETWORK
#error "compile with -DNETWORK=NAME, the name of the network whose header is NAME.h"
#endif
#define QUOTED_(text) #text
#define QUOTED(text) QUOTED_(text)
#define JOINED_(a, b) a##b
#define JOINED(a, b) JOINED_(a, b)
#define NET(name) JOINED(NETWORK, name) /* NET(_step) is plasma_step */
#include QUOTED(NETWORK.h)

#if !NET(_STEP) || !NET(_OUTPUTS)
#error "this example needs a network with carried state (mode stream) and one output"
#endif
#define SAMPLE_FLOATS (NET(_STEP) * NET(_INPUTS))
#define ANSWER_FLOATS (NET(_STEP) * NET(_OUTPUTS))

struct tick {
    long long intended_ns, started_ns, answered_ns, prepared_ns;
    long involuntary_switches, minor_faults, major_faults; /* since the thread began */
};

static struct {
    double period_us, deadline_us;
    long ticks, warmup;
    int priority, prepare, core;
    const char *latencies, *samples, *answers, *weights; /* paths */
} options = {.period_us = 1000, .ticks = 10000, .warmup = 10, .priority = 80, .latencies = "latencies.csv"};

static const char usage[] =
    "usage: control_loop [options]\n"
    "  -p US    period (default 1000; 0: each tick starts when the previous one ends)\n"
    "  -d US    deadline (default: the period)\n"
    "  -n N     number of ticks (default 10000)\n"
    "  -w N     number of ticks that are warm-up (default 10)\n"
    "  -f N     priority of SCHED_FIFO (default 80; with 0, or period 0, the scheduling policy stays)\n"
    "  -e       call prepare_next after each answer\n"
    "  -c CORE  core of the loop (default 0), if the network's code has several threads\n"
    "  -o FILE  table of latencies to write (default latencies.csv)\n"
    "  -i FILE  samples as float32, used again from the first if there are more ticks (default: random)\n"
    "  -a FILE  answers to write as float32\n"
    "  -b FILE  weights, if they are not included in the network's C file\n";

extern const float NET(_weights)[] __attribute__((weak)); /* NULL if the network's C file does not include them */
static struct NETWORK net; /* an instance: its state and buffers */
static volatile sig_atomic_t stopped;

static void stop(int signal)
{
    (void)signal;
    stopped = 1;
}

static void fail(int status, const char *format, ...)
{
    va_list values;
    va_start(values, format);
    fputs("control_loop: ", stderr);
    vfprintf(stderr, format, values);
    fputc('\n', stderr);
    va_end(values);
    exit(status);
}

static double number(int option, const char *text, double least, double most)
{
    char *end;
    double value = strtod(text, &end);
    if (end == text || *end || !(value >= least && value <= most))
        fail(2, "-%c must be a number from %g to %g, not %s", option, least, most, text);
    return value;
}

/* Zeroed memory that is written once, so that no page fault is left for the loop. */
static void *touched_memory(size_t bytes)
{
    void *memory;
    if (posix_memalign(&memory, 64, bytes))
        fail(1, "no memory for %zu bytes: give fewer ticks with -n", bytes);
    return memset(memory, 0, bytes);
}

static FILE *opened(const char *path, const char *mode)
{
    FILE *file = fopen(path, mode);
    if (!file)
        fail(2, "cannot open %s: %s", path, strerror(errno));
    return file;
}

/* The floats of a file, whose number must be a positive multiple of `multiple`. */
static float *read_floats(const char *path, size_t multiple, size_t *count)
{
    FILE *file = opened(path, "rb");
    long bytes = fseek(file, 0, SEEK_END) ? -1 : ftell(file);
    if (bytes <= 0 || bytes % (multiple * sizeof(float)))
        fail(2, "%s must hold a multiple of %zu float32", path, multiple);
    float *floats = touched_memory(bytes);
    rewind(file);
    *count = fread(floats, sizeof(float), bytes / sizeof(float), file);
    if (*count != bytes / sizeof(float))
        fail(2, "cannot read %s", path);
    fclose(file);
    return floats;
}

static void close_written(FILE *file, const char *path)
{
    int failed = ferror(file);
    if (fclose(file) || failed)
        fail(1, "cannot write %s: %s", path, strerror(errno));
}

static long long now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000LL + now.tv_nsec;
}

static void sleep_until(long long ns)
{
    struct timespec until = {.tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL) == EINTR && !stopped)
        ;
}

/* What the machine does not allow is reported, and the loop runs without it. */
static void become_real_time(int priority)
{
    struct sched_param parameters = {.sched_priority = priority};
    if (mlockall(MCL_CURRENT)) /* everything is allocated before */
        fprintf(stderr, "control_loop: memory is not locked: %s (see ulimit -l)\n", strerror(errno));
    if (priority && sched_setscheduler(0, SCHED_FIFO, &parameters))
        fprintf(stderr, "control_loop: not scheduled as SCHED_FIFO: %s (see ulimit -r)\n", strerror(errno));
    prctl(PR_SET_TIMERSLACK, 1ul); /* without SCHED_FIFO, Linux wakes up to 50 us late to save interrupts */
}

/* Events that lstm-trt outliers compares with slow ticks. */
static void count_events(struct tick *tick)
{
    struct rusage usage;
    getrusage(RUSAGE_THREAD, &usage);
    tick->involuntary_switches = usage.ru_nivcsw;
    tick->minor_faults = usage.ru_minflt;
    tick->major_faults = usage.ru_majflt;
}

static void read_options(int argc, char **argv)
{
    int option;
    while ((option = getopt(argc, argv, "p:d:n:w:f:ec:o:i:a:b:h")) != -1)
        switch (option) {
        case 'p': options.period_us = number(option, optarg, 0, 1e9); break;
        case 'd': options.deadline_us = number(option, optarg, 1e-3, 1e9); break;
        case 'n': options.ticks = number(option, optarg, 1, 1e9); break;
        case 'w': options.warmup = number(option, optarg, 0, 1e9); break;
        case 'f': options.priority = number(option, optarg, 0, 99); break;
        case 'e': options.prepare = 1; break;
        case 'c': options.core = number(option, optarg, 0, 4095); break;
        case 'o': options.latencies = optarg; break;
        case 'i': options.samples = optarg; break;
        case 'a': options.answers = optarg; break;
        case 'b': options.weights = optarg; break;
        case 'h': fputs(usage, stdout); exit(0);
        default: exit(2); /* getopt has printed the reason */
        }
    if (optind < argc)
        fail(2, "unknown argument %s", argv[optind]);
    if (!options.deadline_us)
        options.deadline_us = options.period_us;
}

#if NET(_THREADS)
static pthread_t helpers[NET(_THREADS) - 1];

static void pin(int core)
{
    cpu_set_t cores;
    CPU_ZERO(&cores);
    CPU_SET(core, &cores);
    if (sched_setaffinity(0, sizeof cores, &cores))
        fprintf(stderr, "control_loop: not pinned to core %d: %s\n", core, strerror(errno));
}

static void *help(void *number)
{
    pin(options.core + (int)(intptr_t)number);
    NET(_help)(&net, (int)(intptr_t)number);
    return NULL;
}

static void start_helpers(void)
{
    for (intptr_t i = 1; i < NET(_THREADS); i++)
        if (pthread_create(&helpers[i - 1], NULL, help, (void *)i))
            fail(1, "cannot start a thread");
    pin(options.core);
}

static void stop_helpers(void)
{
    NET(_stop)(&net);
    for (int i = 1; i < NET(_THREADS); i++)
        pthread_join(helpers[i - 1], NULL);
    printf("%lu parts were not computed in time by a helper\n", net.team.late);
}
#else
static void start_helpers(void) {}
static void stop_helpers(void) {}
#endif

static void write_table(FILE *file, const struct tick *before, const struct tick *ticks, long count)
{
    fputs("trial,warmup,intended_ns,latency_ns,start_ns,step_ns,prepare_ns,"
          "involuntary_switches,minor_faults,major_faults\n", file);
    for (long i = 0; i < count; before = &ticks[i++]) {
        const struct tick *tick = &ticks[i];
        fprintf(file, "%ld,%d,%lld,%lld,%lld,%lld,%lld,%ld,%ld,%ld\n", i, i < options.warmup,
                tick->intended_ns, tick->answered_ns - tick->intended_ns, tick->started_ns,
                tick->answered_ns - tick->started_ns, tick->prepared_ns - tick->answered_ns,
                tick->involuntary_switches - before->involuntary_switches,
                tick->minor_faults - before->minor_faults, tick->major_faults - before->major_faults);
    }
}

int main(int argc, char **argv)
{
    read_options(argc, argv);
    const long long period_ns = options.period_us * 1e3 + 0.5;
    const double deadline_ns = options.deadline_us * 1e3;

    /* Everything that the loop uses is allocated and written to before it. */
    size_t count = 1024 * SAMPLE_FLOATS;
    float *samples;
    if (options.samples)
        samples = read_floats(options.samples, SAMPLE_FLOATS, &count);
    else {
        uint32_t random = 1;
        samples = touched_memory(count * sizeof(float));
        for (size_t i = 0; i < count; i++, random = random * 1664525u + 1013904223u)
            samples[i] = (int32_t)random / 2147483648.0f; /* uniform from -1 to 1 */
    }
    float *answers = touched_memory(options.ticks * ANSWER_FLOATS * sizeof(float));
    struct tick *ticks = touched_memory(options.ticks * sizeof(struct tick)), before;
    float *weights_read = NULL;
    if (options.weights) {
        size_t weights_count;
        weights_read = read_floats(options.weights, 1, &weights_count);
        if (weights_count != NET(_WEIGHTS))
            fail(2, "%s has %zu numbers, the weights have %d", options.weights, weights_count, NET(_WEIGHTS));
    } else if (!NET(_weights))
        fail(2, "give the weights, %s.bin, with -b", QUOTED(NETWORK));
    static const char *const reasons[] = {
        [1] = "memory is not aligned", [2] = "these are the weights of another network",
        [3] = "this processor lacks instructions that the file was compiled for"};
    int refused = NET(_init)(&net, weights_read ? weights_read : NET(_weights));
    if (refused)
        fail(2, "%s_init returned %d: %s", QUOTED(NETWORK), refused, reasons[refused & 3]);
    FILE *latencies_file = opened(options.latencies, "w");
    FILE *answers_file = options.answers ? opened(options.answers, "wb") : NULL;

    struct sigaction action = {.sa_handler = stop};
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    /* The kernel stops a SCHED_FIFO loop that never sleeps for a part of each second. */
    start_helpers(); /* before: they spin, and with SCHED_FIFO nothing else would run on their cores */
    become_real_time(period_ns ? options.priority : 0);

    long done = 0, misses = 0;
    long long longest_ns = 0, next_ns = now_ns() + period_ns;
    const float *sample = samples;
    float *answer = answers;
    count_events(&before);
    while (done < options.ticks) {
        struct tick *tick = &ticks[done];
        if (period_ns)
            sleep_until(next_ns);
        if (stopped)
            break;
        /* Read the sensors here. */
        tick->started_ns = now_ns();
        tick->intended_ns = period_ns ? next_ns : tick->started_ns;
        NET(_step)(&net, sample, answer);
        tick->answered_ns = now_ns();
        /* Set the actuators here. */
        long long latency_ns = tick->answered_ns - tick->intended_ns;
        if (done >= options.warmup) {
            misses += deadline_ns && latency_ns > deadline_ns; /* a controller would react to a miss here */
            longest_ns = latency_ns > longest_ns ? latency_ns : longest_ns;
        }
        if (options.prepare)
            NET(_prepare_next)(&net);
        tick->prepared_ns = now_ns();
        count_events(tick);
        next_ns += period_ns;
        done++;
        answer += ANSWER_FLOATS;
        sample += SAMPLE_FLOATS;
        if (sample == samples + count)
            sample = samples;
    }

    stop_helpers();
    write_table(latencies_file, &before, ticks, done);
    close_written(latencies_file, options.latencies);
    if (answers_file) {
        fwrite(answers, sizeof(float), done * ANSWER_FLOATS, answers_file);
        close_written(answers_file, options.answers);
    }
    printf("%ld ticks%s, %ld after warm-up: the longest %.3f us", done, stopped ? " (stopped)" : "",
           done > options.warmup ? done - options.warmup : 0, longest_ns / 1e3);
    if (deadline_ns)
        printf(", %ld longer than the deadline of %g us", misses, options.deadline_us);
    printf("; %s\n", options.latencies);
    free(samples);
    free(answers);
    free(ticks);
    free(weights_read);
    return 0;
}
