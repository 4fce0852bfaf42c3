// SPDX-License-Identifier: Apache-2.0
/*
 * This header covers the state of the simulated GPUs of one machine: a file that every process
 * maps. The file's layout is fixed (little-endian, the same on x86-64 and arm64). The end of this
 * file asserts every offset that a reader outside C may use.
 *
 * Access: gs_lock() guards everything but the identity records and the lock word. Values marked
 * "derived" are recomputed after the lock's holder died. All other values survive the holder as
 * written.
 */
#ifndef GPUSIM_STATE_H
#define GPUSIM_STATE_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "driver.h"

#define GS_MAGIC UINT64_C(0x314d495355504721) /* "!GPUSIM1" */
#define GS_VERSION 4u
#define GS_DEFAULT_PATH "/dev/gpusim/state"
#define GS_MAX_GPUS 16u
#define GS_MAX_CONNECTIONS 32u /* hardware queues of a context */
#define GS_MAX_PROCS 1024u     /* processes that use CUDA */
#define GS_MAX_OBSERVERS 1024u /* NVML users and tools: they take the lock but own nothing */
#define GS_MAX_IDS (GS_MAX_PROCS + GS_MAX_OBSERVERS)
#define GS_MAX_ITEMS 1024u /* launch queue depth of a process */
#define GS_MAX_DEPS 4u
#define GS_XID_RING 256u
#define GS_HISTORY_RING 1024u
#define GS_GPU_SAMPLES 128u
#define GS_PROC_SAMPLES 16u
#define GS_NVML_USERS 2048u /* live and ended; more than the GS_MAX_OBSERVERS that can live */
#define GS_SAMPLE_NS UINT64_C(100000000) /* one utilisation sample covers 100 ms */
/* GS_PERIOD_NS is the period of a process's sample on a sampled GPU. According to nvml.h, the
 * period is 1/6 s to 1 s, depending on the product. */
#define GS_PERIOD_NS UINT64_C(166666667)
#define GS_NONE UINT16_MAX               /* no item */
#define GS_NO_PROC UINT32_MAX
#define GS_MPS_CLIENTS 48u     /* MPS clients that one GPU can serve */
#define GS_DEMAND_ALL 1000000u /* a kernel that fills the whole GPU, in ppm */
/* GS_LOCK_BASE is the first lock byte. Identity i locks the byte GS_LOCK_BASE + i of the state
 * file. */
#define GS_LOCK_BASE INT64_C(0x4000000000)
/* GS_NVML_LOCK is the byte of NVML's own lock (struct gs_driver, nvml_lock). */
#define GS_NVML_LOCK (GS_LOCK_BASE + GS_MAX_IDS)

/* gs_sample holds the nanoseconds of GPU time in one window of GS_SAMPLE_NS (or GS_PERIOD_NS). */
struct gs_sample {
	uint64_t window; /* CLOCK_MONOTONIC / its length; the slot is window % ring size */
	uint64_t busy_ns;
};

enum gs_item_state { GS_ITEM_FREE = 0, GS_ITEM_PENDING = 1, GS_ITEM_DONE = 2 };

enum gs_item_kind {
	GS_ITEM_MARK = 0,    /* takes no time: event records, joins, waits */
	GS_ITEM_COMPUTE = 1, /* holds the GPU: kernels, memsets, copies on the device */
	GS_ITEM_COPY = 2,    /* copy engine: takes wall time, does not hold the GPU */
	GS_ITEM_HOST = 3,    /* done when its process reports its end (host functions) */
};

/* gs_item is a piece of queued work, which waits for its dependencies and then runs. */
struct gs_item {
	uint64_t seq; /* unique in the process, never 0 once used */
	uint32_t state;
	uint32_t kind;
	uint32_t gpu;
	uint32_t demand_ppm;   /* part of the GPU that the item occupies */
	uint64_t remaining_ns; /* GPU or copy time still to run */
	uint64_t ready_ns;     /* when the item's dependencies were met; 0: not yet */
	uint64_t start_ns;     /* 0: not started */
	uint64_t end_ns; /* end; for unfinished compute: when it arrives on the GPU */
	uint64_t tag; /* not 0: the item is kept when done, until its owner collects it */
	uint64_t dep_seq[GS_MAX_DEPS];
	uint16_t dep_item[GS_MAX_DEPS];
	/* The fields below are derived. An unready item is in the list of one unfinished dependency. */
	uint16_t next; /* in the item's list: ready, timed, or siblings below a dependency */
	uint16_t prev;
	uint16_t first_child;
	uint16_t ready; /* 1: in a ready or timed list */
	/*
	 * A kernel that meets another kernel of its process holds its GPU after its own time until the
	 * other kernel has finished too. The other kernel has the same addresses, exchanged, and the
	 * same turn. meet_mine is 0 for a kernel that meets no other.
	 */
	uint64_t meet_mine;
	uint64_t meet_theirs;
	uint64_t meet_turn;
	uint32_t met;   /* 1: both kernels have finished */
	uint32_t traps; /* 1: the kernel ends with an exception (trap.h) */
};

/* gs_mps is the role of a process in the Multi-Process Service. */
enum gs_mps { GS_MPS_NONE = 0, GS_MPS_CLIENT = 1, GS_MPS_SERVER = 2 };

/* gs_proc_gpu is a process's holdings and history on one GPU. */
struct gs_proc_gpu {
	uint64_t bytes; /* physical, contexts included */
	uint64_t peak_bytes;
	uint64_t gpu_time_ns; /* union of the times in which the process held the GPU */
	uint64_t context_bytes; /* part of bytes */
	uint32_t contexts;
	uint16_t ready_head; /* derived: compute items that may run */
	uint16_t ready_tail;
	uint64_t launches; /* kernels finished so far */
	uint64_t limit_bytes; /* MPS's limit on bytes, 0: none */
	uint32_t trapped; /* the result of all calls since a kernel trapped, 0: none */
	uint32_t reserved0;
	struct gs_sample samples[GS_PROC_SAMPLES];
};

struct gs_proc {
	uint32_t in_use;
	int32_t self_pid; /* in the process's own namespace */
	uint64_t pid_namespace; /* inode of the process's pid namespace, 0 if unknown */
	uint64_t start_ns; /* CLOCK_MONOTONIC at registration */
	uint64_t next_seq;
	int32_t seen_pid; /* pid as an outside observer last saw it, 0: never seen */
	uint16_t timed_head; /* derived: copies and launches in progress */
	uint16_t done_head;  /* derived: tagged items that the owner has not collected */
	char comm[16];
	char hostname[64]; /* of the process's UTS namespace: a pod's name */
	uint32_t pending;    /* derived: items not done */
	uint16_t free_head;  /* derived: free items below item_count */
	uint16_t item_count; /* items from here on were never used */
	uint32_t mps;        /* enum gs_mps */
	uint32_t mps_ppm;    /* the part of each GPU's SMs that a client may use */
	uint64_t exec_id;    /* as in gs_identity */
	uint32_t graphics;   /* 1: holds its GPUs through a graphics API; contexts are CUDA's */
	uint32_t encoder_percent; /* the process's share of the GPUs' video encoder time, 0: none */
	uint32_t decoder_percent; /* the same for decoders */
	uint32_t reserved0;
	uint64_t reserved[12];
	struct gs_proc_gpu gpu[GS_MAX_GPUS];
};

/* gs_faults holds the injected faults of one GPU, applied by NVML and by launches. */
struct gs_faults {
	uint32_t lost;            /* the GPU has fallen off the bus */
	uint32_t nvml_error;      /* NVML calls on this GPU return this code, 0: none */
	uint64_t nvml_hang_until; /* NVML calls block until this CLOCK_MONOTONIC ns */
	uint32_t recovery;        /* the action that NVML recommends: nvmlDeviceGpuRecoveryAction_t */
	uint32_t late_samples;    /* sizes of process samples that NVML returns one too small */
	uint32_t query_error;     /* NVML calls that need the GPU itself return this code, 0: none */
	uint32_t reserved0;
	uint64_t reserved[4];
};

/* gs_mig_role is the role of an entry of the table of GPUs in Multi-Instance GPU (MIG). */
enum gs_mig_role {
	GS_MIG_OFF = 0,    /* a GPU that is not in MIG mode */
	GS_MIG_ON = 1,     /* a GPU in MIG mode: only its MIG devices have memory and run work */
	GS_MIG_DEVICE = 2, /* a MIG device: a compute instance that fills its GPU instance */
	GS_MIG_GONE = 3,   /* a MIG device that was destroyed */
};

#define GS_MIG_MAX 7u /* MIG devices of a GPU */

struct gs_mig {
	uint32_t role;   /* enum gs_mig_role */
	uint32_t parent; /* of a MIG device: the entry of its GPU */
	uint32_t gpu_instance;
	uint32_t slices; /* of the GPU instance, of GS_MIG_MAX */
};

struct gs_gpu {
	/* The configuration is fixed at creation, except for mig. */
	uint8_t uuid[16];
	char name[96];
	char pci_bus_id[32]; /* "0000:3b:00.0" */
	uint64_t memory_bytes;
	uint32_t minor; /* the GPU's device file is gpu<minor> beside the state */
	uint32_t sm_count;
	uint32_t cc_major;
	uint32_t cc_minor;
	uint64_t context_bytes;
	uint64_t alloc_granularity; /* linear allocations are rounded up to a multiple of this size */
	uint64_t slice_ns;
	uint64_t switch_ns;         /* lost when a process is preempted */
	uint64_t default_kernel_ns; /* length of kernels without a time */
	uint64_t device_bandwidth;  /* bytes/s of memsets and copies on the device */
	uint64_t host_bandwidth;    /* bytes/s of copies from and to the host */
	uint64_t init_ns;           /* cuInit sleeps for this long */
	uint64_t context_start_ns;  /* creating a context sleeps for this long */
	uint64_t chunk_bytes;  /* small linear allocations share chunks of this size; 0: no chunks */
	uint64_t retain_bytes; /* of empty chunks that the driver keeps for a process */
	int64_t drift_ppm; /* rate by which the GPU's clock is faster than the host's */
	uint64_t slew_ppm; /* amplitude of a further drift: faster for half a period, then slower */
	uint64_t slew_period_ns;
	uint32_t connections; /* hardware queues of a context; 0: one for each stream */
	uint32_t idle_stamp;  /* 1: an event on an idle stream is stamped at once, whichever process has the GPU */
	uint64_t yield_ns;        /* lost when the last process had no work left */
	uint64_t gap_ns;          /* between an item and the item queued behind it */
	uint64_t launch_ns; /* from a launch, or the record of an event, to its arrival on the GPU */
	uint64_t power_period_ns; /* of the SMs' clock, see power_ppm */
	uint32_t power_ppm; /* the clock is faster by this for half a period, then slower */
	uint32_t crowding_ppm; /* the factor by which each other running kernel slows a kernel down */
	uint32_t copy_stamp; /* 1: an event behind a copy is stamped at its end, whichever process has the GPU */
	uint32_t sampled;    /* 1: each of NVML's samples names a single process, see timeline.h */
	struct gs_mig mig;
	/* These fields record time. */
	uint64_t slice_start_ns; /* 0: no slice */
	uint64_t hold_from_ns; /* compute starts no earlier (switching loss) */
	uint64_t busy_ns; /* union of the times in which any process held the GPU */
	uint32_t current; /* process slot that holds the GPU or held it last, GS_NO_PROC */
	uint32_t runnable_count; /* derived: bits in runnable */
	uint64_t used_bytes; /* derived: sum over the processes */
	struct gs_faults faults;
	uint64_t peak_used_bytes; /* the highest sum that live processes held at once */
	uint32_t compute_mode; /* as NVML's nvmlComputeMode_t */
	uint32_t reserved0;
	struct gs_sample period; /* the last period of a sampled GPU's utilisation */
	uint64_t reserved[12];
	uint64_t runnable[GS_MAX_PROCS / 64]; /* derived: processes with ready compute work */
	struct gs_sample samples[GS_GPU_SAMPLES];
};

/* gs_xid is an XID in the kernel log. */
struct gs_xid {
	uint64_t seq; /* 1, 2, …; entry i of the ring holds seq ≡ i mod GS_XID_RING */
	uint64_t time_ns;
	uint32_t gpu;
	uint32_t xid;
};

struct gs_history_gpu {
	uint64_t peak_bytes;
	uint64_t gpu_time_ns;
};

/* gs_history is an ended process. */
struct gs_history {
	uint64_t seq; /* 1, 2, …, as for XIDs */
	uint64_t start_ns;
	uint64_t end_ns; /* when the process's end was detected */
	uint64_t pid_namespace;
	int32_t self_pid;
	int32_t seen_pid;
	char comm[16];
	char hostname[64];
	uint64_t exec_id;
	uint64_t reserved[16];
	struct gs_history_gpu gpu[GS_MAX_GPUS];
};

/* gs_identity is the holder of an identity byte. F_GETLK does not report a process's own locks. */
struct gs_identity {
	uint64_t exec_id; /* random per execve, from the auxiliary vector */
	int32_t self_pid;
	uint32_t in_use;
};

/*
 * gs_nvml_user is a process that has initialised NVML. exec_id, pid_namespace and self_pid together
 * identify the process, also in the table of CUDA's processes.
 */
struct gs_nvml_user {
	uint64_t exec_id;
	uint64_t pid_namespace;
	uint64_t start_ns; /* of the process's first call */
	uint64_t calls;    /* of any exported function; written by its own process */
	int32_t self_pid;
	int32_t seen_pid; /* as for gs_proc */
	uint32_t identity; /* held by the process while the process lives */
	uint32_t in_use;
	char comm[16];
	char hostname[64];
	uint64_t reserved[4];
};

#define GS_MAX_SHARED 1024u
#define GS_MAX_IMPORTERS 15u

struct gs_importer {
	uint32_t slot;
	uint32_t count; /* 0: a free entry */
};

/* gs_shared is memory that was exported to other processes (shared.h). */
struct gs_shared {
	uint64_t id; /* 0: a free entry */
	uint64_t bytes;
	uint32_t gpu;
	uint32_t charged; /* slot of the process that is charged with the memory */
	uint32_t made; /* 1: the charged process allocated it and holds it */
	uint32_t reserved;
	struct gs_importer importers[GS_MAX_IMPORTERS];
};

struct gs_state {
	uint64_t magic;
	uint32_t version;
	uint32_t gpu_count;
	uint64_t size; /* of the whole file */
	uint64_t clock_ns; /* the timeline is computed up to this CLOCK_MONOTONIC ns */
	uint32_t lock; /* 0, or identity + 1 with marks (lock.c) */
	uint32_t recoveries; /* number of times that a dead holder's lock was taken over */
	uint64_t last_reap_ns;
	uint64_t xid_seq; /* last XID, 0: none */
	uint64_t history_seq;
	uint64_t driver_version; /* CUDA's, 13000 */
	char driver_version_text[16]; /* NVML's, "580.159.04" */
	uint64_t spin_ns; /* a waiter sleeps until this time before its expected time, then polls */
	uint64_t timed[GS_MAX_PROCS / 64]; /* derived: processes with copies in progress */
	uint64_t last_living; /* processes that were alive at last_reap_ns */
	uint64_t procs_end; /* slots from here on were never taken and need no scan */
	struct gs_driver driver; /* fixed at creation */
	uint64_t pid_namespace; /* in which the machine was created: the host's */
	uint64_t nvml_user_seq; /* entries of nvml_users taken so far */
	uint64_t traps; /* kernels that end with an exception, launched so far */
	uint64_t reserved[(3832 - sizeof(struct gs_driver)) / 8];
	struct gs_gpu gpus[GS_MAX_GPUS];
	struct gs_xid xids[GS_XID_RING];
	struct gs_history history[GS_HISTORY_RING];
	struct gs_identity identities[GS_MAX_IDS];
	struct gs_proc procs[GS_MAX_PROCS];
	struct gs_item items[GS_MAX_PROCS][GS_MAX_ITEMS];
	struct gs_nvml_user nvml_users[GS_NVML_USERS];
	uint64_t shared_id; /* of the last entry */
	struct gs_shared shared[GS_MAX_SHARED];
};

/* ---- an open state ---- */

enum gs_role {
	GS_PROCESS, /* takes a process slot: libcuda */
	GS_OBSERVER /* takes an observer's identity: NVML, tools */
};

struct gs_handle {
	struct gs_state *state;
	int fd;
	uint32_t id;   /* identity; of a GS_PROCESS also its process slot */
	uint64_t exec_id;
	pid_t pid;     /* of the opener; a forked child must not use the handle */
	char dir[256]; /* of the state and device files */
	pthread_mutex_t mutex; /* serialises the threads of this process */
};

/* gs_gpu_config holds one GPU's fixed values for gs_create(). */
struct gs_gpu_config {
	uint8_t uuid[16];
	char name[96];
	char pci_bus_id[32];
	uint64_t memory_bytes;
	uint32_t minor, sm_count, cc_major, cc_minor;
	uint64_t context_bytes, alloc_granularity, slice_ns, switch_ns;
	uint64_t default_kernel_ns, device_bandwidth, host_bandwidth;
	uint64_t init_ns, context_start_ns;
	uint64_t chunk_bytes, retain_bytes;
	int64_t drift_ppm;
	uint64_t slew_ppm, slew_period_ns;
	uint32_t connections, idle_stamp;
	uint64_t yield_ns, gap_ns, launch_ns, power_period_ns;
	uint32_t power_ppm, crowding_ppm, copy_stamp, sampled;
	struct gs_mig mig;
};

/* gs_gpu_defaults fills in the defaults of the GPU with this index. */
void gs_gpu_defaults(struct gs_gpu_config *config, uint32_t index);

/* gs_machine is the configuration of a machine. */
struct gs_machine {
	struct gs_driver driver;
	uint64_t cuda_version;         /* 13000 */
	char driver_version[16];       /* "580.159.04" */
	struct gs_gpu_config gpus[GS_MAX_GPUS];
	uint32_t gpu_count;
};

/* gs_driver_defaults fills in the default driver. */
void gs_driver_defaults(struct gs_machine *machine);

/* ---- Multi-Instance GPU (mig.c, migchange.c) ---- */

/*
 * gs_mig_make fills in the configuration of a MIG device from the configuration of its GPU, which
 * is entry `parent`. The profile is a name such as "1g.10gb": compute slices and memory in GiB.
 * gs_mig_make returns false for any other text. The caller sets the GPU instance and the UUID.
 */
bool gs_mig_make(struct gs_gpu_config *config, const struct gs_gpu_config *gpu, uint32_t parent,
		 const char *profile);

/* gs_mig_cap returns the minor number of the capability of a GPU instance of the GPU with this
 * minor number. The next number is the capability of the compute instance. */
uint32_t gs_mig_cap(uint32_t minor, uint32_t gpu_instance);

/* gs_card returns the GPU of a MIG device, and the GPU itself otherwise. Faults strike cards. */
struct gs_gpu *gs_card(struct gs_state *state, uint32_t gpu);

/*
 * gs_mig_create adds a MIG device to a running machine, and returns its entry or -errno. -EINVAL:
 * the GPU is not in MIG mode, or the profile is no profile; -ENOSPC: the GPU has too few slices
 * left, or the machine too few entries. gs_mig_destroy destroys a MIG device, and returns 0 or
 * -errno. -EBUSY: a process uses the device.
 */
int gs_mig_create(struct gs_handle *handle, uint32_t gpu, const char *profile,
		  const uint8_t uuid[16]);
int gs_mig_destroy(struct gs_handle *handle, uint32_t gpu);

/* gs_random_uuid derives a version 4 UUID from a seed. */
void gs_random_uuid(uint64_t *seed, uint8_t uuid[16]);

#define GS_UUID_SIZE 41

/* gs_uuid_text writes "GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx", or "MIG-…" for a MIG device. */
void gs_uuid_text(const struct gs_gpu *gpu, char text[GS_UUID_SIZE]);

/* gs_set_gpu writes a configuration to an entry of the table of GPUs. */
void gs_set_gpu(struct gs_gpu *gpu, const struct gs_gpu_config *config);

/* gs_make_devices creates the device files of an entry. gs_make_devices returns 0 or -errno. */
int gs_make_devices(const char *dir, const struct gs_gpu_config *config);

/* gs_create creates dir/state and one device file per GPU. gs_create returns 0 or -errno. */
int gs_create(const char *dir, const struct gs_machine *machine);

/* gs_destroy removes the files of gs_create(). gs_destroy returns 0 or -errno. */
int gs_destroy(const char *dir);

/* gs_path returns $GPUSIM_STATE, or GS_DEFAULT_PATH. */
const char *gs_path(void);

/*
 * gs_open opens the state and takes an identity. gs_open returns 0 or -errno: -ENOENT no such file,
 * -EPROTO not a state of this version, -ENOSPC no free identity.
 */
int gs_open(struct gs_handle *handle, const char *path, enum gs_role role);

/*
 * gs_close releases the identity and unmaps the state. A library must not call gs_close before its
 * process ends. Closing the file drops every lock of the process on the file, including locks of the
 * other library.
 */
void gs_close(struct gs_handle *handle);

/* gs_gpu_visible reports whether this process may use the GPU or MIG device, because the process can
 * open the device files. */
bool gs_gpu_visible(const struct gs_handle *handle, uint32_t gpu);

/* gs_now returns CLOCK_MONOTONIC in ns. */
uint64_t gs_now(void);

/* gs_lock takes the machine-wide lock, and repairs the state after a dead holder. */
void gs_lock(struct gs_handle *handle);
void gs_unlock(struct gs_handle *handle);

/*
 * gs_proc_alive reports whether the process in this slot lives. gs_proc_alive sets *pid to the
 * process's pid in the caller's pid namespace, or to 0 if the process has no pid in the namespace.
 * gs_proc_alive needs no lock.
 */
bool gs_proc_alive(struct gs_handle *handle, uint32_t slot, pid_t *pid);

/* gs_proc_next returns the next slot in use from *cursor on (start with 0), or NULL at the end. The
 * caller holds the lock. */
struct gs_proc *gs_proc_next(struct gs_handle *handle, uint32_t *cursor);

/* gs_reap frees memory, queued work and slots of dead processes. gs_reap returns the number of live
 * processes. The caller holds the lock. */
uint32_t gs_reap(struct gs_handle *handle);

/* gs_slot returns the index of a process in the table. */
uint32_t gs_slot(const struct gs_handle *handle, const struct gs_proc *proc);

/*
 * gs_charge charges physical memory to the calling process, and gs_uncharge reverses a charge.
 * gs_charge reaps dead processes, and returns false if the GPU has too little memory left. The
 * caller holds the lock.
 */
bool gs_charge(struct gs_handle *handle, uint32_t gpu, uint64_t bytes);
void gs_uncharge(struct gs_handle *handle, uint32_t gpu, uint64_t bytes);

/* gs_pid_namespace returns the inode of the caller's pid namespace, or 0 if the namespace is
 * unknown. */
uint64_t gs_pid_namespace(void);

/* gs_nvml_user_alive reports whether an entry's process lives, and sets *pid as gs_proc_alive()
 * does. */
bool gs_nvml_user_alive(struct gs_handle *handle, const struct gs_nvml_user *user, pid_t *pid);

/* gs_nvml_user_add adds the calling process to the users of NVML. The caller holds the lock. */
struct gs_nvml_user *gs_nvml_user_add(struct gs_handle *handle);

/* gs_nvml_calls returns the number of a process's calls of NVML. The three values identify the process.
 * The caller holds the lock. */
uint64_t gs_nvml_calls(const struct gs_state *state, uint64_t exec_id, uint64_t pid_namespace,
		       int32_t self_pid);

/* gs_add_xid records an XID. The caller holds the lock. */
void gs_add_xid(struct gs_state *state, uint32_t gpu, uint32_t xid);

/*
 * gs_advance computes the timeline of all GPUs up to now (see timeline.h). GPU times, busy times
 * and samples are correct only after this call. The caller holds the lock.
 */
void gs_advance(struct gs_handle *handle, uint64_t now);

/* gs_compute computes the work up to now, including the work of dead processes. The caller holds
 * the lock. */
void gs_compute(struct gs_state *state, uint64_t now);

/* ---- layout, for readers in other languages ---- */

#define GS_ASSERT_AT(type, field, offset) \
	_Static_assert(offsetof(struct type, field) == (offset), #type "." #field)
#define GS_ASSERT_SIZE(type, size) _Static_assert(sizeof(struct type) == (size), #type)

#include "state_layout.h"

#endif
