/* One GPU with MIG instances in slots 0 and 2 of 3, seen from inside a container, and one that is not
   listed and may be named. A handle is the
   address of a device's UUID. Types and return codes as in nvml.h. */
#include <stdint.h>
#include <string.h>

enum { SUCCESS = 0, NOT_SUPPORTED = 3, NO_PERMISSION = 4, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7, TIMEOUT = 10, GPU_IS_LOST = 15 };

typedef const char *Device;

static const char *const UUIDS[] = {"GPU-0000", "MIG-0000", "MIG-0002", "GPU-0001"};

/* The handle of a GPU that says nothing any more. */
static const char LOST[] = "lost";

static int is_mig(Device device) { return device[0] == 'M'; }

int nvmlInit_v2(void) { return SUCCESS; }
int nvmlShutdown(void) { return SUCCESS; }

int nvmlSystemGetDriverVersion(char *text, unsigned length) {
    strncpy(text, "580.1.2", length);
    return SUCCESS;
}

int nvmlSystemGetCudaDriverVersion_v2(int *version) {
    *version = 13010;
    return SUCCESS;
}

int nvmlDeviceGetGpuInstanceId(Device device, unsigned *id) {
    if (!is_mig(device)) return NOT_SUPPORTED;
    *id = device == UUIDS[1] ? 3 : 9;
    return SUCCESS;
}

int nvmlDeviceGetComputeInstanceId(Device device, unsigned *id) {
    if (!is_mig(device)) return NOT_SUPPORTED;
    *id = 1;
    return SUCCESS;
}

int nvmlDeviceGetCudaComputeCapability(Device device, int *major, int *minor) {
    (void)device;
    *major = 9;
    *minor = 0;
    return SUCCESS;
}

int nvmlDeviceGetCount_v2(unsigned *count) {
    *count = 1;
    return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, Device *device) {
    if (index != 0) return NOT_FOUND;
    *device = UUIDS[0];
    return SUCCESS;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, Device *device) {
    for (unsigned i = 0; i < sizeof UUIDS / sizeof *UUIDS; ++i) {
        if (strcmp(uuid, UUIDS[i]) == 0) {
            *device = UUIDS[i];
            return SUCCESS;
        }
    }
    return NOT_FOUND;
}

int nvmlDeviceGetUUID(Device device, char *text, unsigned length) {
    if (device == LOST) return GPU_IS_LOST;
    strncpy(text, device, length);
    return SUCCESS;
}

int nvmlDeviceGetName(Device device, char *text, unsigned length) {
    strncpy(text, is_mig(device) ? "Test MIG 1g" : "Test", length);
    return SUCCESS;
}

int nvmlDeviceGetMaxMigDeviceCount(Device device, unsigned *count) {
    *count = is_mig(device) ? 0 : 3;
    return SUCCESS;
}

int nvmlDeviceGetMigDeviceHandleByIndex(Device device, unsigned index, Device *instance) {
    if (is_mig(device) || (index != 0 && index != 2)) return NOT_FOUND;
    *instance = UUIDS[index == 0 ? 1 : 2];
    return SUCCESS;
}

struct Memory {
    unsigned version;
    unsigned long long total, reserved, free, used;
};

int nvmlDeviceGetMemoryInfo_v2(Device device, struct Memory *memory) {
    if (!is_mig(device)) return NO_PERMISSION;
    memory->total = 10ULL << 30;
    memory->reserved = 1ULL << 30;
    memory->free = 7ULL << 30;
    memory->used = 2ULL << 30;
    return SUCCESS;
}

struct Rates {
    unsigned gpu, memory;
};

int nvmlDeviceGetUtilizationRates(Device device, struct Rates *rates) {
    if (is_mig(device)) return NOT_SUPPORTED;
    rates->gpu = 42;
    rates->memory = 7;
    return SUCCESS;
}

struct Process {
    unsigned pid;
    unsigned long long used;
    unsigned gpu_instance, compute_instance;
};

int nvmlDeviceGetComputeRunningProcesses_v3(Device device, unsigned *count,
                                            struct Process *processes) {
    (void)device;
    if (*count < 2) {
        *count = 2;
        return INSUFFICIENT_SIZE;
    }
    *count = 2;
    processes[0] = (struct Process){2000001, 2ULL << 30, 1, 0};
    processes[1] = (struct Process){2000002, (unsigned long long)-1, 1, 0};
    return SUCCESS;
}

int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(Device device, Device *parent) {
    if (!is_mig(device)) return NOT_SUPPORTED;
    *parent = UUIDS[0];
    return SUCCESS;
}

/* Tells XID 79 of the listed GPU, then nothing in time, then an error that has no number, of a GPU
   that cannot be told, then that a GPU is lost. MIG instances have no events of their own, and a GPU
   is registered once. */
static int told;
static Device registered;

int nvmlEventSetCreate(int **set) {
    told = 0;
    registered = 0;
    *set = &told;
    return SUCCESS;
}

int nvmlEventSetFree(int *set) { return set == &told ? SUCCESS : NOT_FOUND; }

int nvmlDeviceRegisterEvents(Device device, unsigned long long types, int *set) {
    const unsigned long long xid = 8;
    if (is_mig(device) || device == registered) return NOT_SUPPORTED;
    registered = device;
    return types == xid && set == &told ? SUCCESS : NOT_FOUND;
}

struct Event {
    Device device;
    unsigned long long type, data;
    unsigned gpu_instance, compute_instance;
};

int nvmlEventSetWait_v2(int *set, struct Event *event, unsigned milliseconds) {
    (void)milliseconds;
    *event = (struct Event){*set == 0 ? UUIDS[0] : LOST, 8, *set == 0 ? 79 : 999, -1U, -1U};
    switch ((*set)++) {
    case 1: return TIMEOUT;
    case 3: return GPU_IS_LOST;
    default: return SUCCESS;
    }
}
