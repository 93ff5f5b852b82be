/* What c_race.py calls of each library: LAYERS of UNITS, FEATURES inputs, and ROWS samples of a call.
   With one sample the state is carried from call to call. The weights are those of each layer,
   W (4 UNITS, inputs), R (4 UNITS, UNITS) and one bias, gates in the order of Keras and PyTorch; then
   those of the dense layer of one output, and its bias. `unused` stands for the instance that
   generated code is given: from Python, an argument takes as long as the smallest layers. */
#ifdef __cplusplus
extern "C" {
#endif
void peer_init(const float *weights);
void peer_reset(void);
void peer_step(const float *x, float *y, void *unused);
#ifdef __cplusplus
}
#endif
