// SPDX-License-Identifier: Apache-2.0

// An open-file-description lock on a slot's bytes of the file "usage" holds the slot. The mapping
// of the page keeps the description open without a file descriptor. The mapping was made from the
// descriptor and marked MADV_DONTFORK:
//
//   - A program that closes all descriptors does not lose its slot, and no descriptor exists that a
//     program could close and reuse.
//   - The child of a fork gets neither the descriptor, which is closed, nor the mapping. Only this
//     process's address space holds the lock. The lock therefore ends when the process dies, by any
//     means, or calls execve(). A child that uses CUDA takes a separate slot (state.h describes how
//     the child detects the fork).
//   - POSIX record locks would be dropped as soon as any code in the process closed any descriptor
//     of the file.
//   - The kernel closes a dying process's descriptors before the deferred release of its mappings'
//     files. Therefore the driver's own files, and with the files the memory, are gone before the
//     slot becomes free. In a process with several threads, the last thread may release the mapping
//     while another exiting thread still holds the descriptors. Therefore a slot that is free but
//     not empty stays until its process has exited (vg_dying).
//   - A fork waits while a thread takes a slot. Without the wait, the child would have the
//     descriptor, too, and keep the slot after its parent's end.
//
// The child of a fork that does not call execve() keeps the driver's files open, and a driver keeps
// the parent's memory as long. Therefore the child inherits a second lock, on the slot's byte at the
// start of the file. While the lock is held, a dead process's memory stays charged.
//
// See docs/decisions/0002-process-slots.md.

#define _GNU_SOURCE
#include "slot.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include "base/error.h"
#include "base/file.h"
#include "base/now.h"
#include "base/number.h"
#include "base/thread.h"
#include "bucket.h"
#include "dying.h"
#include "usage.h"

#ifndef F_OFD_SETLK
#define F_OFD_GETLK 36
#define F_OFD_SETLK 37
#endif

// vg_unmeasured_longest is the longest charge for the last work of a dead process, because the time
// of the death is not known.
static const uint64_t vg_unmeasured_longest = 1000000000;

// vg_usage_fd opens the usage file again, and returns -1 if the file is no longer the mapped file.
static int vg_usage_fd(const struct vg_pages *pages)
{
	struct stat info;
	int fd = open(pages->usage_path, O_RDWR | O_CLOEXEC | O_NONBLOCK);

	if (fd < 0)
		return -1;
	if (vg_file_stat(fd, &info) || info.st_ino != pages->usage_inode ||
	    info.st_dev != pages->usage_device || info.st_size != (off_t)sizeof *pages->usage) {
		close(fd);
		errno = ESTALE;
		return -1;
	}
	return fd;
}

static struct flock vg_slot_range(uint32_t slot, short type)
{
	return (struct flock){
		.l_type = type,
		.l_whence = SEEK_SET,
		.l_start = (off_t)(offsetof(struct vg_usage_page, slots) + slot * sizeof(struct vg_slot)),
		.l_len = sizeof(struct vg_slot),
	};
}

// vg_slot_lock takes or drops a file description's lock of a slot. vg_slot_lock fails immediately
// if another description holds the lock.
static int vg_slot_lock(int fd, uint32_t slot, short type)
{
	struct flock lock = vg_slot_range(slot, type);

	return fcntl(fd, F_OFD_SETLK, &lock);
}

// vg_retire moves a slot's counter to the container's sum for ended processes. vg_retire skips 0, to
// avoid writes to a sum that all processes share.
static void vg_retire(uint64_t *sum, uint64_t *counted)
{
	uint64_t value = vg_load(counted);

	if (!value)
		return;
	vg_add(sum, value);
	vg_store(counted, 0);
}

// vg_retire_unmeasured charges a dead process's unmeasured work. The charge is the time since the
// work's launch, at most vg_unmeasured_longest, because the time of the death is not known. For
// several dead processes, vg_retire_unmeasured charges the same time only once.
static void vg_retire_unmeasured(struct vg_container_device *sum, const struct vg_slot_device *device)
{
	uint64_t since = vg_load(&device->unmeasured_ns);
	uint64_t until = since ? vg_min(vg_now(), since + vg_unmeasured_longest) : 0;
	uint64_t settled = vg_load(&sum->unmeasured_ns);

	do {
		if (until <= vg_max(since, settled))
			return;
	} while (!__atomic_compare_exchange_n(&sum->unmeasured_ns, &settled, until, true, __ATOMIC_SEQ_CST,
					      __ATOMIC_SEQ_CST));
	vg_bucket_charge(sum, (int64_t)(until - vg_max(since, settled)));
	vg_add(&sum->retired_gpu_time_ns, until - vg_max(since, settled));
}

// vg_slot_retire settles the GPU time of a dead process.
static void vg_slot_retire(struct vg_pages *pages, uint32_t slot)
{
	for (uint32_t i = 0; i < VG_MAX_DEVICES; i++) {
		struct vg_container_device *sum = &pages->usage->header.devices[i];
		struct vg_slot_device *device = vg_slot_device(pages, slot, i);

		vg_retire_unmeasured(sum, device);
		if (vg_load(&device->unmeasured_ns))
			vg_store(&device->unmeasured_ns, 0);
		vg_retire(&sum->retired_gpu_time_ns, &device->gpu_time_ns);
		vg_retire(&sum->retired_wait_ns, &device->wait_ns);
		vg_retire(&sum->retired_launches, &device->launches);
	}
}

// vg_slot_clear empties a slot word by word, because other processes may be reading the slot.
// vg_slot_clear writes only words that are not zero, because nearly all words are zero at most
// starts. The caller holds the slot's lock.
static void vg_slot_clear(struct vg_pages *pages, uint32_t slot)
{
	uint64_t *words = (uint64_t *)(void *)&pages->usage->slots[slot];

	vg_slot_retire(pages, slot);
	for (size_t i = 0; i < sizeof(struct vg_slot) / sizeof *words; i++)
		if (vg_load(&words[i]))
			vg_store(&words[i], 0);
}

static void vg_slot_sign(struct vg_pages *pages, uint32_t index)
{
	struct vg_slot *slot = &pages->usage->slots[index];
	uint32_t *high_water = &pages->usage->header.high_water;
	uint32_t seen = __atomic_load_n(high_water, __ATOMIC_SEQ_CST);
	struct timespec now;

	while (seen <= index && !__atomic_compare_exchange_n(high_water, &seen, index + 1, true,
							     __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
		continue;
	clock_gettime(CLOCK_BOOTTIME, &now);
	vg_store(&slot->attached_ns, (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec);
	prctl(PR_GET_NAME, slot->name);
	__atomic_store_n(&slot->pid, (uint32_t)getpid(), __ATOMIC_SEQ_CST);
}

// vg_usage_map_of maps the open file and unmaps the earlier mapping. The child of a fork gets the
// mapping only if `inherited`. If the child does not get the mapping, the description's locks end
// with this address space.
static int vg_usage_map_of(struct vg_pages *pages, int fd, bool inherited)
{
	void *mapped = mmap(NULL, sizeof *pages->usage, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	if (mapped == MAP_FAILED)
		return -1;
	if (!inherited && madvise(mapped, sizeof *pages->usage, MADV_DONTFORK)) {
		munmap(mapped, sizeof *pages->usage);
		return -1;
	}
	if (pages->usage)
		munmap(pages->usage, sizeof *pages->usage);
	pages->usage = mapped;
	return 0;
}

// vg_usage_open_mapped opens, checks and maps the usage page. vg_usage_open_mapped returns the
// page's descriptor, or -1 with `error` set.
static int vg_usage_open_mapped(struct vg_pages *pages, bool inherited, struct vg_error *error)
{
	int fd = vg_usage_open(pages, error);

	if (fd < 0 || vg_usage_map_of(pages, fd, inherited) == 0)
		return fd;
	vg_error_set(error, "cannot map %s: %s", pages->usage_path, strerror(errno));
	close(fd);
	return -1;
}

int vg_slot_map(struct vg_pages *pages, struct vg_error *error)
{
	int fd = vg_usage_open_mapped(pages, true, error);

	if (fd < 0)
		return -1;
	close(fd);
	return 0;
}

static bool vg_slot_holds(const struct vg_pages *pages, uint32_t slot, uint32_t device)
{
	const struct vg_slot_device *held = vg_slot_device(pages, slot, device);

	return vg_load(&held->used) != 0 || vg_load(&held->pending) != 0;
}

// vg_slot_left reports whether a slot may be emptied, because the slot has no memory or its process
// is gone. The caller holds the slot's lock. vg_slot_left does not read a slot that was never
// taken, which may be a hole in the file.
static bool vg_slot_left(const struct vg_pages *pages, uint32_t slot)
{
	const uint32_t *pid = &pages->usage->slots[slot].pid;

	for (uint32_t i = 0; i < VG_MAX_DEVICES && slot < vg_slots_in_use(pages); i++)
		if (vg_slot_holds(pages, slot, i))
			return !vg_dying(__atomic_load_n(pid, __ATOMIC_SEQ_CST));
	return true;
}

// vg_heir_range returns the byte that the children of a slot's process lock.
static struct flock vg_heir_range(uint32_t slot)
{
	return (struct flock){.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = (off_t)slot, .l_len = 1};
}

_Static_assert(VG_MAX_SLOTS <= offsetof(struct vg_usage_page, slots), "the bytes of slots");

// vg_slot_has_heirs reports whether a child of the slot's process may keep the driver's memory.
static bool vg_slot_has_heirs(int fd, uint32_t slot)
{
	struct flock lock = vg_heir_range(slot);

	return fcntl(fd, F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

// vg_slot_is_signed_by_living reports whether a slot has the pid of another living process. The
// kernel finds a process much faster than it searches all locks.
static bool vg_slot_is_signed_by_living(const struct vg_pages *pages, uint32_t slot)
{
	uint32_t pid = __atomic_load_n(&pages->usage->slots[slot].pid, __ATOMIC_SEQ_CST);

	// A slot with this process's pid is from before the process called execve.
	return pid != 0 && pid != (uint32_t)getpid() && pid <= INT_MAX && (kill((pid_t)pid, 0) == 0 || errno == EPERM);
}

// vg_slot_find_from locks the first free slot from `first` to `end`. With `unsigned_only`,
// vg_slot_find_from skips slots with the pid of a living process, because few of these slots are
// free.
static int vg_slot_find_from(const struct vg_pages *pages, int fd, uint32_t first, uint32_t end,
			     bool unsigned_only)
{
	for (uint32_t i = first; i < end; i++) {
		if (unsigned_only && vg_slot_is_signed_by_living(pages, i))
			continue;
		if (vg_slot_lock(fd, i, F_WRLCK))
			continue;
		if (vg_slot_left(pages, i) && !vg_slot_has_heirs(fd, i))
			return (int)i;
		vg_slot_lock(fd, i, F_UNLCK);
	}
	return vg_no_slot;
}

// vg_slot_find tries some of the slots that were taken before, then the slots that were never
// taken, and finally all slots. If hundreds of processes start at once, each process should not
// query the kernel about hundreds of slots. The number of used slots stays low, because a try is
// likely to find a free slot if many slots are free.
static int vg_slot_find(const struct vg_pages *pages, int fd)
{
	static const uint32_t tries = 8;
	uint32_t taken = vg_slots_in_use(pages);
	uint32_t start = taken > tries ? (uint32_t)getpid() * tries % (taken - tries) : 0;
	int slot = vg_slot_find_from(pages, fd, start, start + tries < taken ? start + tries : taken, true);

	if (slot == vg_no_slot)
		slot = vg_slot_find_from(pages, fd, taken, VG_MAX_SLOTS, false);
	return slot == vg_no_slot ? vg_slot_find_from(pages, fd, 0, taken, false) : slot;
}

// vg_slot_is_signed reports whether a slot has the pid of a process, which has reserved the slot's
// room in the file.
static bool vg_slot_is_signed(const struct vg_pages *pages, uint32_t slot)
{
	return slot < vg_slots_in_use(pages) &&
	       __atomic_load_n(&pages->usage->slots[slot].pid, __ATOMIC_SEQ_CST) != 0;
}

// vg_slot_reserve makes the file system allocate room for a slot. The file has holes, and a store
// into a hole of a full file system kills the process.
static int vg_slot_reserve(int fd, uint32_t slot)
{
	struct flock range = vg_slot_range(slot, F_WRLCK);
	int failed;

	do
		failed = fallocate(fd, 0, range.l_start, range.l_len);
	while (failed && errno == EINTR);
	// If the file system cannot allocate, a store may fail later.
	return failed && errno != EOPNOTSUPP && errno != ENOSYS && errno != EPERM ? -1 : 0;
}

// ---- forks, which wait while the descriptor of a slot is open

// These declarations are of the C library's functions. glibc has __register_atfork, which its
// pthread_atfork calls, and musl has pthread_atfork. The declarations are weak, because a process
// whose C library lacks a strong symbol would not start.
int __register_atfork(void (*prepare)(void), void (*parent)(void), void (*child)(void), void *library)
	__attribute__((weak));
int pthread_atfork(void (*prepare)(void), void (*parent)(void), void (*child)(void)) __attribute__((weak));

static bool vg_watch_forks(void (*before)(void), void (*after)(void))
{
	if (__register_atfork)
		return __register_atfork(before, after, after, NULL) == 0;
	return pthread_atfork && pthread_atfork(before, after, after) == 0;
}

// vg_taking is the pid of the process while a thread takes a slot or forks. A child whose fork did
// not call these functions may find the parent's pid, and ignores that pid.
static _Atomic int vg_taking;

// vg_fork_begins waits until no other thread takes a slot or forks. The wait is limited, because a
// signal handler may fork in the same thread that takes a slot.
static void vg_fork_begins(void)
{
	const struct timespec nap = {.tv_nsec = 20000};
	const int naps = 10000;
	int own = getpid();

	for (int i = 0; i < naps; i++) {
		int holder = atomic_load(&vg_taking);

		if (holder != own && atomic_compare_exchange_strong(&vg_taking, &holder, own))
			return;
		nanosleep(&nap, NULL);
	}
}

// vg_heirs is the slot whose memory the children of a fork keep.
static struct {
	_Atomic int pid; // process with the slot; 0 after the first fork
	uint32_t slot;
	const char *path; // of the usage page, in memory that a child may not have
} vg_heirs;

// vg_heirs_lock takes the lock that children inherit. Only the mapping of the file's start holds the
// lock, and execve() removes the mapping.
static void vg_heirs_lock(void)
{
	int own = getpid();
	int saved = errno;
	struct flock lock;
	int fd;

	if (!atomic_compare_exchange_strong(&vg_heirs.pid, &own, 0))
		return;
	fd = open(vg_heirs.path, O_RDWR | O_CLOEXEC | O_NONBLOCK);
	lock = vg_heir_range(vg_heirs.slot);
	if (fd >= 0 && fcntl(fd, F_OFD_SETLK, &lock) == 0)
		(void)mmap(NULL, 1, PROT_READ, MAP_SHARED, fd, 0);
	if (fd >= 0)
		close(fd);
	errno = saved;
}

static void vg_fork_prepares(void)
{
	int kept = vg_thread_keep();

	vg_fork_begins();
	vg_heirs_lock();
	vg_thread_let(kept);
}

static void vg_fork_ends(void)
{
	atomic_store(&vg_taking, 0);
}

// vg_forks_wait makes forks of other threads wait until vg_fork_ends.
static void vg_forks_wait(void)
{
	static bool known; // also true in the child of a fork

	vg_fork_begins();
	if (!known)
		known = vg_watch_forks(vg_fork_prepares, vg_fork_ends);
}

// vg_slot_open maps the usage page, and locks a free slot through the page's descriptor.
static int vg_slot_open(struct vg_pages *pages, struct vg_error *error)
{
	int fd = vg_usage_open_mapped(pages, false, error);
	int slot;

	if (fd < 0)
		return vg_no_slot;
	slot = vg_slot_find(pages, fd);
	if (slot == vg_no_slot)
		vg_error_set(error, "%u processes of this container use the GPU already, or %s cannot be locked",
			     VG_MAX_SLOTS, pages->usage_path);
	else if (!vg_slot_is_signed(pages, (uint32_t)slot) && vg_slot_reserve(fd, (uint32_t)slot)) {
		vg_error_set(error, "%s cannot be written: %s; make room in /run on the node",
			     pages->usage_path, strerror(errno));
		slot = vg_no_slot;
	}
	close(fd);
	return slot;
}

int vg_slot_take(struct vg_pages *pages, struct vg_error *error)
{
	int slot;

	vg_forks_wait();
	slot = vg_slot_open(pages, error);
	vg_fork_ends();
	if (slot == vg_no_slot)
		return -1;
	for (uint32_t i = 0; i < VG_MAX_DEVICES; i++)
		atomic_store(&pages->own[i], 0);
	vg_slot_clear(pages, (uint32_t)slot);
	vg_slot_sign(pages, (uint32_t)slot);
	pages->slot = slot;
	vg_heirs.slot = (uint32_t)slot;
	vg_heirs.path = pages->usage_path;
	atomic_store(&vg_heirs.pid, getpid());
	return 0;
}

// vg_slot_reap empties a slot if its process is dead. If children may keep the memory, vg_slot_reap
// settles only the GPU time. vg_slot_reap returns false if the process is still exiting.
static bool vg_slot_reap(struct vg_pages *pages, int fd, uint32_t slot)
{
	bool left;

	if (vg_slot_lock(fd, slot, F_WRLCK))
		return true;
	left = vg_slot_left(pages, slot);
	if (left && vg_slot_has_heirs(fd, slot))
		vg_slot_retire(pages, slot);
	else if (left)
		vg_slot_clear(pages, slot);
	vg_slot_lock(fd, slot, F_UNLCK);
	return left;
}

bool vg_slots_reap(struct vg_pages *pages, uint32_t device)
{
	uint32_t slots = vg_slots_in_use(pages);
	int kept = vg_thread_keep();
	int fd = vg_usage_fd(pages);
	bool gone = true;

	// Without the file, dead processes stay charged, which may refuse but never over-grants.
	for (uint32_t i = 0; fd >= 0 && i < slots; i++)
		if ((int)i != pages->slot && vg_slot_holds(pages, i, device))
			gone &= vg_slot_reap(pages, fd, i);
	if (fd >= 0)
		close(fd);
	vg_thread_let(kept);
	return gone;
}

void vg_slots_settle(struct vg_pages *pages, uint32_t device)
{
	uint32_t slots = vg_slots_in_use(pages);
	int kept = vg_thread_keep();
	int fd = -1;

	for (uint32_t i = 0; i < slots; i++) {
		if ((int)i == pages->slot || !vg_load(&vg_slot_device(pages, i, device)->unmeasured_ns) ||
		    vg_slot_is_signed_by_living(pages, i))
			continue;
		if (fd < 0)
			fd = vg_usage_fd(pages);
		if (fd < 0)
			break;
		vg_slot_reap(pages, fd, i);
	}
	if (fd >= 0)
		close(fd);
	vg_thread_let(kept);
}

// vg_slot_is_free reports whether no process holds a slot's lock. vg_slot_is_free does not take the
// lock, so that a process that is searching for a free slot does not find the slot held. Without a
// file (fd -1), vg_slot_is_free returns false.
static bool vg_slot_is_free(int fd, uint32_t slot)
{
	struct flock lock = vg_slot_range(slot, F_WRLCK);

	return fcntl(fd, F_OFD_GETLK, &lock) == 0 && lock.l_type == F_UNLCK;
}

void vg_slots_live(const struct vg_pages *pages, bool live[VG_MAX_SLOTS])
{
	uint32_t slots = vg_slots_in_use(pages);
	int kept = vg_thread_keep();
	int fd = vg_usage_fd(pages);

	for (uint32_t i = 0; i < slots; i++)
		live[i] = !vg_slot_is_free(fd, i);
	if (fd >= 0)
		close(fd);
	vg_thread_let(kept);
}
