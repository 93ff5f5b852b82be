/* A stand-in for libnvidia-ml.so.1 beside cuda.c, as far as it is asked. With SHIM_NVML=none it finds no driver. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OK = 0, NOT_SUPPORTED = 3, NOT_FOUND = 6, DRIVER_NOT_LOADED = 9 };
typedef long Device; /* a handle: its place + 1 */

static long setting(const char *name, long otherwise) {
  const char *text = getenv(name);
  return text && *text ? atol(text) : otherwise;
}

int nvmlInitWithFlags(unsigned flags) { return getenv("SHIM_NVML") ? DRIVER_NOT_LOADED : OK; }
int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
int nvmlShutdown(void) { return OK; }
const char *nvmlErrorString(int code) { return "NVML error"; }
int nvmlDeviceGetCount_v2(unsigned *number) { *number = (unsigned)setting("SHIM_DEVICES", 1); return OK; }

int nvmlDeviceGetHandleByIndex_v2(unsigned place, Device *device) {
  if (place >= setting("SHIM_DEVICES", 1)) return NOT_FOUND;
  *device = place + 1;
  return OK;
}

/* "0000:01:00.0" is the first, as cuDeviceGetPCIBusId says. */
int nvmlDeviceGetHandleByPciBusId_v2(const char *address, Device *device) {
  *device = strtol(address + 5, NULL, 16);
  return *device < 1 || *device > setting("SHIM_DEVICES", 1) ? NOT_FOUND : OK;
}

int nvmlDeviceGetName(Device device, char *name, unsigned length) {
  snprintf(name, length, device > 1 ? "NVIDIA Shim %ld" : "NVIDIA Shim", device - 1);
  return OK;
}

int nvmlDeviceGetMemoryInfo(Device device, unsigned long long *memory) {
  memory[0] = (unsigned long long)setting("SHIM_MEMORY", 1L << 30);
  memory[1] = memory[0];
  memory[2] = 0;
  return OK;
}

int nvmlDeviceGetCudaComputeCapability(Device device, int *major, int *minor) {
  long both = setting("SHIM_CAPABILITY", 90);
  *major = (int)both / 10;
  *minor = (int)both % 10;
  return OK;
}

int nvmlDeviceGetComputeMode(Device device, int *mode) { *mode = (int)setting("SHIM_COMPUTE_MODE", 0); return OK; }
int nvmlDeviceGetMigMode(Device device, unsigned *now, unsigned *pending) { return NOT_SUPPORTED; }
int nvmlDeviceGetPersistenceMode(Device device, unsigned *mode) { *mode = 1; return OK; }
int nvmlSystemGetDriverVersion(char *text, unsigned length) { snprintf(text, length, "580.65.06"); return OK; }
int nvmlSystemGetCudaDriverVersion(int *version) { *version = (int)setting("SHIM_VERSION", 13000); return OK; }
int nvmlDeviceGetClockInfo(Device device, int kind, unsigned *mhz) { *mhz = (unsigned)setting("SHIM_MHZ", 1500); return OK; }
int nvmlDeviceGetMaxClockInfo(Device device, int kind, unsigned *mhz) { *mhz = 1980; return OK; }
int nvmlDeviceGetApplicationsClock(Device device, int kind, unsigned *mhz) { return NOT_SUPPORTED; }
int nvmlDeviceGetPowerManagementLimit(Device device, unsigned *mw) { *mw = 700000; return OK; }
int nvmlDeviceGetTemperature(Device device, int sensor, unsigned *celsius) { *celsius = 40; return OK; }
int nvmlDeviceGetPowerUsage(Device device, unsigned *mw) { *mw = 90000; return OK; }
int nvmlDeviceGetCurrentClocksEventReasons(Device device, unsigned long long *mask) { *mask = 0; return OK; }
