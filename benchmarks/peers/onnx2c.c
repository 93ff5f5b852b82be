// The function that onnx2c generates, in code.c.
#include "code.c"
#include "peer.h"

static float state[LAYERS][2][UNITS];
#define OF(layer) (void *)state[layer][0], (void *)state[layer][1]

void peer_init(const float *weights) { (void)weights; } /* they are in the code */

void peer_reset(void) { memset(state, 0, sizeof state); }

void peer_step(const float *x, float *y, void *unused)
{
    (void)unused;
#if ROWS > 1
    entry((const void *)x, (void *)y);
#elif LAYERS == 1
    entry((const void *)x, OF(0), (void *)y, OF(0));
#elif LAYERS == 2
    entry((const void *)x, OF(0), OF(1), (void *)y, OF(0), OF(1));
#else
    entry((const void *)x, OF(0), OF(1), OF(2), (void *)y, OF(0), OF(1), OF(2));
#endif
}
